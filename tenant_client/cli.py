"""`pharoah-tenant`: what a tenant can see and ask on its own machine, one function per verb in `verbs_*.py`."""

from tenant_client import (
    verbs_check,
    verbs_confirm,
    verbs_federation,
    verbs_job,
    verbs_online,
    verbs_owner,
    verbs_page,
    verbs_status,
    verbs_trustee,
    verbs_workload,
)
from transport.console import AskingVerb, CommandLine

JOBS, BEFORE, FEDERATION, YOURS = "Jobs", "Before a job", "Federation", "Your data"

app = CommandLine(
    name="pharoah-tenant",
    help="The tenant's half of Pharoah: see what leaves, what it costs, and whether a job fits its hardware.",
)
app.add(JOBS, verbs_job.run, cls=verbs_job.JobCommand, context_settings={"allow_interspersed_args": False})
app.add(JOBS, verbs_job.attach, verbs_online.watch, verbs_status.status, verbs_status.leases, verbs_owner.journal)
app.add(JOBS, verbs_job.diagnose, verbs_status.reasons, verbs_job.teach)
app.add(BEFORE, verbs_check.check, cls=AskingVerb)
app.add(BEFORE, verbs_check.changes, verbs_workload.describe, verbs_workload.signature, verbs_workload.compare)
app.add(BEFORE, verbs_workload.catalogue)
app.add_typer(verbs_confirm.app, rich_help_panel=BEFORE)
app.add(FEDERATION, verbs_federation.enrol, verbs_federation.serve)
app.add_typer(verbs_trustee.app, rich_help_panel=FEDERATION)
app.add(YOURS, verbs_owner.budget, verbs_owner.preview, verbs_owner.sent, verbs_page.page)
