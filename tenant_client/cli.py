"""`pharoah-tenant`: what a tenant can see and ask on its own machine, one function per verb in `verbs_*.py`."""

import typer

from tenant_client import verbs_owner

app = typer.Typer(
    name="pharoah-tenant",
    help="The tenant's half of Pharoah: see what leaves, what it costs, and whether a job fits its hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for verb in (verbs_owner.budget, verbs_owner.preview, verbs_owner.check):
    app.command()(verb)
