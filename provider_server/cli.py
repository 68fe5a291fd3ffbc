"""`pharoah-provider`: the provider's half of Pharoah, one function per verb in `verbs_*.py`."""

from collections.abc import Callable

from provider_server import verbs_learning, verbs_page, verbs_server, verbs_store, verbs_telemetry
from transport.console import CommandLine

app = CommandLine(
    name="pharoah-provider",
    help="The provider's half of Pharoah: found a federation, run it, and see what passed the gate.",
)

VERBS: tuple[Callable[..., None], ...] = (
    verbs_server.init,
    verbs_server.enrol,
    verbs_server.revoke,
    verbs_server.renew_certificate,
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
