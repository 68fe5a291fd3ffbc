"""`python -m tenant_client` is `pharoah-tenant`."""

from tenant_client.cli import app

app(prog_name="pharoah-tenant")
