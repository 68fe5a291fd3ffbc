"""`pharoah-provider`: the provider's command line, one function per verb in `verbs/`."""

from federation.base.console import CommandLine
from provider_server.program.verbs import (
    expectations,
    keys,
    learning,
    leases,
    nodes,
    online,
    own_failures,
    page,
    path,
    recipe,
    seats,
    server,
    slow,
    slurm,
    snapshots,
    spares,
    status,
    store,
    telemetry,
    votes,
)

FEDERATION, FLEET, RELEASES = "Federation", "Fleet", "Releases and findings"

app = CommandLine(
    name="pharoah-provider",
    help="The provider's side of Pharoah: found a federation, run it, and publish what its releases show.",
)
app.add(FEDERATION, server.init, server.enrol, server.revoke, seats.reseat, server.renew_certificate)
app.add(FEDERATION, server.serve, online.online, status.status, server.round_, page.page, keys.keys)
app.add(FLEET, leases.lease, leases.lease_events, slurm.slurm, slurm.lease_key)
app.add(FLEET, telemetry.contexts, telemetry.hazard, recipe.recipe, telemetry.repaired)
app.add(FLEET, own_failures.own_failures)
app.add(FLEET, snapshots.snapshot, snapshots.changes)
app.add(FLEET, nodes.watch_nodes, nodes.node_check, nodes.node_service, nodes.placement, nodes.probes, path.path)
app.add(FLEET, spares.spares)
app.add(RELEASES, store.release, store.ledger, learning.learn, learning.explain)
app.add(RELEASES, votes.votes, slow.slow, expectations.expectations)
app.add(RELEASES, learning.publish, learning.catalogue, store.findings)
