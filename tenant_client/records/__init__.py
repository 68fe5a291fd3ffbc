"""What the tenant keeps in its own database, `tenant.db`."""
