"""The tables of the tenant's database, `tenant.db`."""
