"""`pharoah-provider`: the provider's half of Pharoah, one function per verb in `verbs_*.py`."""

from collections.abc import Callable

import typer

from provider_server import verbs_learning, verbs_page, verbs_server, verbs_store, verbs_telemetry
from transport import tls

app = typer.Typer(
    name="pharoah-provider",
    help="The provider's half of Pharoah: found a federation, run it, and see what passed the gate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    callback=tls.forbid_1_2,  # before a verb imports gRPC
)

VERBS: tuple[Callable[..., None], ...] = (
    verbs_server.init,
    verbs_server.enrol,
    verbs_server.lease,
    verbs_server.serve,
    verbs_telemetry.contexts,
    verbs_telemetry.hazard,
    verbs_telemetry.repaired,
    verbs_learning.learn,
    verbs_learning.explain,
    verbs_learning.publish,
    verbs_page.page,
    verbs_store.ledger,
    verbs_store.release,
    verbs_store.findings,
    verbs_store.backup,
    verbs_store.restore,
)
for verb in VERBS:
    app.command()(verb)
app.command("round")(verbs_server.round_)
