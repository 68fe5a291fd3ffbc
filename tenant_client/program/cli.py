"""`pharoah-tenant`: the tenant's command line. A verb is a function in `program/verbs/`, imported when called."""

from typing import Annotated

import click
import typer

from federation.base.console import JSON, AskingVerb, CommandLine, GroupWithDefault, add_later, group
from tenant_client.program.verbs.job_command import JobCommand

JOBS, BEFORE, DATA, FEDERATION = "Jobs", "Before a job", "Your data", "Federation"
VERBS = "tenant_client.program.verbs"
START = (
    "start here",
    "  pharoah-tenant run -- COMMAND    run a job, and record why it fails",
    "  pharoah-tenant diagnose FILE     say why a job failed, from its logs",
    "  pharoah-tenant -h                list all verbs",
)

# Old spellings, and the new one of each. The sections of `show` and the verbs of groups have the options of old.
RENAMED = {
    "leases": "jobs",
    "journal": "show --only journal",
    "journal show": "show --only journal",
    "journal fix": "patterns fix",
    "explain": "show --only explain",
    "changes": "show --only changes",
    "restart": "show --only restart",
    "path": "show --only path",
    "stragglers": "show --only stragglers",
    "resources": "show --only resources",
    "replacement": "show --only replacement",
    "expectations": "show --only expectations",
    "gate": "check gate",
    "exclude": "check exclude",
    "admission": "check admission",
    "reasons": "patterns reasons",
    "teach": "patterns teach",
    "rules": "patterns rules",
    "helped": "patterns helped",
    "vote": "patterns vote",
    "describe": "workload describe",
    "tokens": "workload tokens",
    "signature": "workload tokens",
    "compare": "workload compare",
    "catalogue": "workload catalogue",
    "preview": "privacy preview",
    "budget": "privacy budget",
    "sent": "privacy sent",
    "evidence": "privacy evidence",
    "enrol": "join",
}


class ShowGroup(GroupWithDefault):
    """`--only SECTION` may stand anywhere; without it `show` is the summary."""

    default = "summary"

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """As it is called, in place of click's words for a verb of a group."""
        return ["[JOB]", "[--only SECTION]", "[OPTIONS]"]

    def _with_verb(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = next((place for place, word in enumerate(args) if word.partition("=")[0] == "--only"), None)
        if place is None or args[0] in self.commands:
            return super()._with_verb(ctx, args)
        word, equals, section = args[place].partition("=")
        rest = args[place + 1 :]
        if not equals and rest:
            section, *rest = rest
        if section not in self.commands:
            raise click.BadParameter(f"pass one of {', '.join(self.commands)}", ctx, param_hint=word)
        return [section, *args[:place], *rest]


class CheckGroup(GroupWithDefault):
    """A first word that is no verb of this group is an argument of `fit`."""

    default = "fit"


app = CommandLine(
    name="pharoah-tenant",
    help="Run and diagnose training jobs, check workloads against hardware, and see all data that leaves this machine.",
    verbs=VERBS,
    start=START,
    renamed=RENAMED,
    shared={
        "--home": "Home, by default ~/.local/share/pharoah; also PHAROAH_HOME.",
        "--json": JSON,
    },
    order="run jobs show diagnose watch patterns check workload status page privacy join serve",
)
app.add(JOBS, "job.run", cls=JobCommand)
app.add(JOBS, "job.attach", hidden=True)
app.add(JOBS, "jobs.jobs", "diagnose.diagnose", "hints.watch")
app.add(DATA, "status.status", "page.page")
app.add(FEDERATION, "federation.join", "federation.serve")

show = group(
    "show",
    "Show a job on one screen, or one section about it.\n\n`show JOB --only SECTION -h` has the options of a section.",
    cls=ShowGroup,
)
for section in (
    "show.summary",
    "show.cause",
    "show.evidence",
    "explain.explain",
    "changes.changes",
    "show.precedents",
    "restart.restart",
    "path.path",
    "stragglers.stragglers",
    "resources.resources",
    "replacement.replacement",
    "expectations.expectations",
    "journal.journal",
):
    add_later(show, f"{VERBS}.{section}", rich_help_panel="Sections")


@show.callback()
def _show(
    *,
    only: Annotated[str, typer.Option("--only", metavar="SECTION", help="Show this section alone.")] = "",
) -> None:
    """Option of `show`, which `ShowGroup` reads."""


app.add_typer(show, rich_help_panel=JOBS)

patterns = group("patterns", "What failures look like: reasons, and what you teach.")
for verb in ("status.reasons", "diagnose.teach", "incidents.rules", "incidents.helped", "vote.vote", "journal.fix"):
    add_later(patterns, f"{VERBS}.{verb}")
app.add_typer(patterns, rich_help_panel=JOBS)

check = group("check", "Check whether a workload fits its hardware.\n\n`check JOB` is `check fit JOB`.", cls=CheckGroup)
add_later(check, f"{VERBS}.check.fit", cls=AskingVerb)
for verb in ("gate.gate", "exclude.exclude", "admission.admission"):
    add_later(check, f"{VERBS}.{verb}")
app.add_typer(check, rich_help_panel=BEFORE)

workload = group("workload", "Describe and compare workloads.")
for verb in ("describe", "tokens", "compare", "catalogue"):
    add_later(workload, f"{VERBS}.workload.{verb}")
app.add_typer(workload, rich_help_panel=BEFORE)

privacy = group("privacy", "Show what leaves this machine, and what it costs.")
for verb in ("preview", "budget", "sent"):
    add_later(privacy, f"{VERBS}.owner.{verb}")
app.add_typer(privacy, rich_help_panel=DATA)
