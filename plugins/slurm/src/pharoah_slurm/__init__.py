"""Leases of Slurm's jobs: its accounting is read, and each start of a tenant's job is a lease."""
