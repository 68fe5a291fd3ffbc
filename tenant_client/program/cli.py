"""`pharoah-tenant`: the tenant's command line. A verb is a function in `program/verbs/`, imported when called."""

from federation.base.console import AskingVerb, CommandLine, GroupWithDefault, add_later, group
from tenant_client.program.verbs.job_command import JobCommand

JOBS, BEFORE, FEDERATION, YOURS = "Jobs", "Before a job", "Federation", "Your data"
VERBS = "tenant_client.program.verbs"


class JournalGroup(GroupWithDefault):
    """`journal` alone shows it."""

    default = "show"


app = CommandLine(
    name="pharoah-tenant",
    help="Run and diagnose training jobs, check workloads against hardware, and see all data that leaves this machine.",
    verbs=VERBS,
)
app.add(JOBS, "job.run", cls=JobCommand)
app.add(JOBS, "job.attach", "hints.watch", "status.status", "status.leases", "expectations.expectations")
app.add(JOBS, "diagnose.diagnose", "explain.explain", "path.path", "stragglers.stragglers", "restart.restart")
app.add(JOBS, "status.reasons", "diagnose.teach", "replacement.replacement", "resources.resources")
app.add(JOBS, "incidents.helped", "incidents.rules", "vote.vote")
app.add(BEFORE, "check.check", cls=AskingVerb)
app.add(BEFORE, "gate.gate", "exclude.exclude", "admission.admission", "changes.changes")
app.add(BEFORE, "workload.describe", "workload.tokens", "workload.compare", "workload.catalogue")
add_later(app, f"{VERBS}.workload.tokens", name="signature", hidden=True)  # its old name
app.add(FEDERATION, "federation.enrol", "federation.serve")
app.add(YOURS, "evidence.evidence", "owner.budget", "owner.preview", "owner.sent", "page.page")

journal = group("journal", "Show what ran and why it ended, or correct a cause.", cls=JournalGroup)
add_later(journal, f"{VERBS}.journal.fix")
add_later(journal, f"{VERBS}.journal.show_journal", name="show")
app.add_typer(journal, rich_help_panel=JOBS)
