"""Claims: what a tenant shows others of a lease, so that they can verify it."""
