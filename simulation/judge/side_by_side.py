"""What many sets of releases teach, learnt side by side."""

from collections.abc import Iterator, Sequence

from federation.protocol.bundle import Bundle
from provider_server.fleet.learning.bundle import compose
from provider_server.fleet.learning.findings import learn
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release
from simulation.run.engines import Engine

Batches = Sequence[Sequence[Release]]


def learn_all(engine: Engine, batches: Batches, leases: Sequence[Lease]) -> Iterator[Bundle]:
    """The bundle that each batch of releases would be published as, in their order."""
    return engine.map(_learnt, (batches, leases), range(len(batches)))


def _learnt(shared: tuple[Batches, Sequence[Lease]], place: int) -> Bundle:
    batches, leases = shared
    releases = batches[place]
    return compose(len(releases), (), releases, learn(releases, leases))
