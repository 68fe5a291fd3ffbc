"""`pharoah-provider`: the provider's half of Pharoah, one function per verb in `verbs_*.py`."""

from provider_server import verbs_learning, verbs_page, verbs_server, verbs_status, verbs_store, verbs_telemetry
from transport.console import CommandLine

FEDERATION, FLEET, RELEASES, STORE = "Federation", "Fleet", "What was learnt", "Store"

app = CommandLine(
    name="pharoah-provider",
    help="The provider's half of Pharoah: found a federation, run it, and see what passed the gate.",
)
app.add(FEDERATION, verbs_server.init, verbs_server.enrol, verbs_server.revoke, verbs_server.renew_certificate)
app.add(FEDERATION, verbs_server.serve, verbs_status.status, verbs_server.round_, verbs_page.page)
app.add(FLEET, verbs_server.lease, verbs_telemetry.contexts, verbs_telemetry.hazard, verbs_telemetry.repaired)
app.add(RELEASES, verbs_store.release, verbs_store.ledger, verbs_learning.learn, verbs_learning.explain)
app.add(RELEASES, verbs_learning.publish, verbs_store.findings)
app.add(STORE, verbs_store.backup, verbs_store.restore)
