"""Training loops with synthetic data, one module for each job. They need PyTorch and the tenant's hook, no more."""
