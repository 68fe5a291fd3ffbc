"""What many sets of releases teach, learnt side by side: a process for each core of this machine."""

import signal
from collections.abc import Iterator, Sequence
from multiprocessing import get_all_start_methods, get_context

from federation.protocol.bundle import Bundle
from provider_server.fleet.leases import Lease
from provider_server.learning.bundle import compose
from provider_server.learning.findings import learn
from provider_server.rounds.release import Release

Batches = Sequence[Sequence[Release]]
_inherited: tuple[Batches, Sequence[Lease]] = (), ()


def learn_all(batches: Batches, leases: Sequence[Lease]) -> Iterator[Bundle]:
    """The bundle that each batch of releases would be published as, in their order.

    One after the other where processes cannot be forked: a fork inherits the leases, and sending them takes long.
    """
    if "fork" not in get_all_start_methods():
        yield from (_learnt(releases, leases) for releases in batches)
        return
    with get_context("fork").Pool(initializer=_inherit, initargs=(batches, leases)) as pool:
        yield from pool.imap(_learnt_at, range(len(batches)))
        pool.close()  # its processes end by themselves: some may not be ready yet for the signal that would end them
        pool.join()


def _inherit(batches: Batches, leases: Sequence[Lease]) -> None:
    global _inherited  # the only way in that copies nothing
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler of the parent's would be run here, and end nothing
    _inherited = batches, leases


def _learnt_at(place: int) -> Bundle:
    batches, leases = _inherited
    return _learnt(batches[place], leases)


def _learnt(releases: Sequence[Release], leases: Sequence[Lease]) -> Bundle:
    return compose(len(releases), (), releases, learn(releases, leases))
