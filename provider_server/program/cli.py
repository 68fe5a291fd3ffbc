"""`pharoah-provider`: the provider's command line. A verb is a function in `program/verbs/`, imported when called."""

import click
import typer

from federation.base.console import JSON, CommandLine, GroupWithDefault, add_later, group

RUN, MEMBERS, FLEET, LEARNT = "Run", "Members", "Fleet", "What is learnt"
VERBS = "provider_server.program.verbs"
START = (  # without words; PHAROAH_PROVIDER_HOME stands for --home
    "pharoah-provider init --committee FILE --home HOME        found a federation",
    "pharoah-provider tenants enrol CARD... --out INVITATION   add its tenants",
    "pharoah-provider serve                                    run it",
    "pharoah-provider -h                                       all verbs",
)
RENAMED = {  # old spelling: new one
    "online": "serve --online-only",
    "enrol": "tenants enrol",
    "revoke": "tenants revoke",
    "reseat": "trustees reseat",
    "keys": "trustees keys",
    "lease": "leases record",
    "lease-events": "leases events",
    "slurm": "leases slurm",
    "lease-key": "leases key",
    "contexts": "nodes contexts",
    "hazard": "nodes hazard",
    "recipe": "nodes recipe",
    "repaired": "nodes repaired",
    "own-failures": "nodes own-failures",
    "snapshot": "nodes snapshot",
    "changes": "nodes changes",
    "watch-nodes": "nodes watch",
    "node-check": "nodes check",
    "node-service": "nodes service",
    "placement": "nodes risk",
    "nodes placement": "nodes risk",
    "probes": "nodes probes",
    "path": "nodes path",
    "spares": "nodes spares",
    "round": "rounds hold",
    "release": "rounds releases",
    "ledger": "rounds ledger",
    "learn": "findings learn",
    "explain": "findings explain",
    "publish": "findings publish",
    "votes": "findings votes",
    "slow": "findings slow",
    "expectations": "findings expectations",
    "catalogue": "findings catalogue",
}


class ListGroup(GroupWithDefault):
    """A group that lists what there is where no verb is named; a mistyped verb is no argument of that list."""

    default = "list"

    def _with_verb(self, ctx: click.Context, args: list[str]) -> list[str]:
        return args if args and args[0][:1] != "-" else super()._with_verb(ctx, args)


app = CommandLine(
    name="pharoah-provider",
    help="The provider's side of Pharoah: run a federation, and publish what its releases show.",
    verbs=VERBS,
    start=START,
    renamed=RENAMED,
    shared={
        "--home": "Home; also PHAROAH_PROVIDER_HOME.",
        "--database": "URL of the database; one with a password: as PHAROAH_DATABASE.",
        "--json": JSON,
    },
)
app.add(RUN, "init.init", "serve.serve", "status.status", "page.page", "init.renew_certificate")


def _add_group(panel: str, below: typer.Typer, *verbs: str) -> None:
    for verb in verbs:
        add_later(below, f"{VERBS}.{verb}")
    app.add_typer(below, rich_help_panel=panel)


_add_group(
    MEMBERS,
    group("tenants", "List, enrol or remove tenants, or revoke their sessions.", ListGroup),
    *("tenants.list_", "tenants.enrol", "tenants.revoke"),
)
_add_group(
    MEMBERS,
    group("trustees", "Put a handover in force, or show the keys of all."),
    *("trustees.reseat", "trustees.keys"),
)
_add_group(
    FLEET,
    group("leases", "Record who has which nodes, by hand or from Slurm."),
    *("leases.record", "lease_events.events", "leases.key"),
)
_add_group(
    FLEET,
    group("nodes", "Learn from telemetry which nodes fail, and plan by it."),
    *(
        "contexts.contexts",
        "hazard.hazard",
        "recipe.recipe",
        "contexts.repaired",
        "own_failures.own_failures",
        "codes.codes",
    ),
    *("snapshots.snapshot", "snapshots.changes", "serve.watch"),
    *("nodes.risk", "nodes.probes", "spares.spares"),
)
_add_group(
    LEARNT,
    group("rounds", "Hold a round, list releases and their privacy cost, or begin and end a pilot."),
    *("rounds.hold", "rounds.releases", "rounds.ledger", "rounds.pilot", "rounds.move_store"),
)
_add_group(
    LEARNT,
    group("findings", "List, explain and publish what all tenants' jobs show.", ListGroup),
    *("findings.list_", "learning.learn", "learning.explain", "learning.publish", "votes.votes", "slow.slow"),
    *("expectations.expectations", "learning.catalogue"),
)
