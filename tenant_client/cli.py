"""`pharoah-tenant`: what a tenant can see and ask on its own machine, one function per verb in `verbs_*.py`."""

from federation.runtime.console import AskingVerb, CommandLine, Verb
from tenant_client.verbs import check, confirm, federation, hints, job, owner, page, status, workload

JOBS, BEFORE, FEDERATION, YOURS = "Jobs", "Before a job", "Federation", "Your data"

app = CommandLine(
    name="pharoah-tenant",
    help="The tenant's half of Pharoah: see what leaves, what it costs, and whether a job fits its hardware.",
)
app.add(JOBS, job.run, cls=job.JobCommand, context_settings={"allow_interspersed_args": False})
app.add(JOBS, job.attach, hints.watch, status.status, status.leases, owner.journal)
app.add(JOBS, job.diagnose, status.reasons, job.teach)
app.add(BEFORE, check.check, cls=AskingVerb)
app.add(BEFORE, check.changes, workload.describe, workload.tokens, workload.compare)
app.add(BEFORE, workload.catalogue)
app.command("signature", cls=Verb, hidden=True)(workload.tokens)  # its old name
app.add_typer(confirm.app, rich_help_panel=BEFORE)
app.add(FEDERATION, federation.enrol, federation.serve)
app.add(YOURS, owner.budget, owner.preview, owner.sent, page.page)
