"""`python -m provider_server` is `pharoah-provider`."""

from provider_server.program.cli import app

app(prog_name="pharoah-provider")
