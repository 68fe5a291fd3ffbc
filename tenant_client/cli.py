"""`pharoah-tenant`: the tenant's command line. Each verb is a function in `tenant_client/verbs/`."""

from federation.runtime.console import AskingVerb, CommandLine, Verb
from tenant_client.verbs import (
    admission,
    changes,
    check,
    confirm,
    evidence,
    exclude,
    expectations,
    explain,
    federation,
    gate,
    hints,
    incidents,
    job,
    owner,
    page,
    path,
    replacement,
    resources,
    restart,
    status,
    stragglers,
    vote,
    workload,
)

JOBS, BEFORE, FEDERATION, YOURS = "Jobs", "Before a job", "Federation", "Your data"

app = CommandLine(
    name="pharoah-tenant",
    help="Run and diagnose training jobs, check workloads against hardware, and see all data that leaves this machine.",
)
app.add(JOBS, job.run, cls=job.JobCommand, context_settings={"allow_interspersed_args": False})
app.add(JOBS, job.attach, hints.watch, status.status, status.leases)
app.add_typer(owner.journal, rich_help_panel=JOBS)
app.add(JOBS, expectations.expectations)
app.add(
    JOBS, job.diagnose, explain.explain, path.path, stragglers.stragglers, restart.restart, status.reasons, job.teach
)
app.add(JOBS, replacement.replacement, resources.resources)
app.add(JOBS, incidents.helped, incidents.rules, vote.vote)
app.add(BEFORE, check.check, cls=AskingVerb)
app.add(BEFORE, gate.gate, exclude.exclude, admission.admission)
app.add(BEFORE, changes.changes, workload.describe, workload.tokens, workload.compare)
app.add(BEFORE, workload.catalogue)
app.command("signature", cls=Verb, hidden=True)(workload.tokens)  # its old name
app.add_typer(confirm.app, rich_help_panel=BEFORE)
app.add(FEDERATION, federation.enrol, federation.serve)
app.add(YOURS, evidence.evidence, owner.budget, owner.preview, owner.sent, page.page)
