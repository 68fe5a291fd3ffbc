"""`pharoah-tenant`: what a tenant can see and ask on its own machine, one function per verb in `verbs_*.py`."""

from collections.abc import Callable

import typer

from tenant_client import (
    verbs_check,
    verbs_confirm,
    verbs_federation,
    verbs_job,
    verbs_online,
    verbs_owner,
    verbs_page,
    verbs_trustee,
    verbs_workload,
)
from transport import tls

app = typer.Typer(
    name="pharoah-tenant",
    help="The tenant's half of Pharoah: see what leaves, what it costs, and whether a job fits its hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    callback=tls.forbid_1_2,  # before a verb imports gRPC
)

VERBS: tuple[Callable[..., None], ...] = (
    verbs_federation.enrol,
    verbs_federation.serve,
    verbs_workload.describe,
    verbs_workload.signature,
    verbs_workload.compare,
    verbs_workload.catalogue,
    verbs_owner.journal,
    verbs_owner.budget,
    verbs_owner.preview,
    verbs_owner.sent,
    verbs_check.check,
    verbs_check.changes,
    verbs_online.watch,
    verbs_page.page,
    verbs_job.attach,
    verbs_job.diagnose,
    verbs_job.teach,
)
for verb in VERBS:
    app.command()(verb)
app.command(cls=verbs_job.JobCommand, context_settings={"allow_interspersed_args": False})(verbs_job.run)
app.add_typer(verbs_confirm.app)
app.add_typer(verbs_trustee.app)
