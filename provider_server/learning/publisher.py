"""Learns from releases and publishes what was learnt as signed bundles, one after the other.

Rounds are the `Provider`'s; both work on one store. A bundle is kept before anybody is told of it.
"""

from collections.abc import Callable, Sequence

from crypto.ids import RoundId
from crypto.signing import SigningKey, open_signed
from federation.protocol.bundle import Bundle, CatalogueEntry
from provider_server.analysis.prediction import Comparison
from provider_server.fleet.leases import Lease
from provider_server.learning import findings as learning, publication_gate
from provider_server.learning.bundle import compose
from provider_server.learning.factors import add_factors
from provider_server.learning.findings import Findings
from provider_server.rounds import release as gate
from provider_server.rounds.release import Release
from provider_server.store.store import Store

Learner = Callable[[Sequence[Release], Sequence[Lease]], Findings]


class Publisher:
    """Holds the provider's signing key and does not show it. `learner` makes findings of releases and their leases."""

    def __init__(self, store: Store, signing_key: SigningKey, learner: Learner = learning.learn) -> None:
        self._store = store
        self._signing_key = signing_key
        self._learner = learner
        self._last: tuple[list[tuple[RoundId, bytes]], list[Lease], Findings] | None = None

    def releases(self) -> list[Release]:
        """All releases, oldest first."""
        return [gate.from_bytes(data) for data in self._store.releases()]

    def learn(self, releases: Sequence[Release]) -> Findings:
        """What `releases` say together, with the provider's own exposure."""
        leases = self._leases(releases)
        return add_factors(self._findings(releases, leases), releases, leases)

    def review(self, releases: Sequence[Release]) -> Comparison | None:
        """How the learner of today predicts the newest week beside the bundle in force; None where nothing compares."""
        in_force = self.newest()
        leases = self._store.leases(0, releases[-1].plan.end_hour)
        return None if in_force is None else publication_gate.review(releases, leases, in_force, self._candidate)

    def outlook(self, releases: Sequence[Release]) -> publication_gate.Outlook:
        """How well the bundles so far predicted the weeks after them, and what has changed since."""
        leases = self._store.leases(0, releases[-1].plan.end_hour)
        return publication_gate.outlook(releases, leases, [self._open(signed) for signed in self._store.bundles()])

    def publish(self, releases: Sequence[Release], findings: Findings) -> bytes:
        """The next bundle, signed and kept."""
        before = self.newest()
        if before is None:
            return self.issue(compose(0, (), releases, findings))
        return self.issue(compose(before.number + 1, before.catalogue, releases, findings, rules=before.rules))

    def publish_catalogue(self, catalogue: Sequence[CatalogueEntry]) -> bytes:
        """Bundle 0: a catalogue and no findings."""
        return self.issue(Bundle(0, 0, 0, tuple(catalogue), (), (), None))

    def issue(self, bundle: Bundle) -> bytes:
        """Signs a bundle and keeps it: from now on it is the one in force."""
        signed = self._signing_key.sign(bundle)
        self._store.add_bundle(bundle.number, signed)
        return signed

    def newest(self) -> Bundle | None:
        """The bundle in force."""
        newest = self._store.newest_bundle()
        return None if newest is None else self._open(newest[1])

    def unpublished(self) -> bool:
        """Whether the newest release is in no bundle yet."""
        releases, newest = self._store.releases(), self.newest()
        if not releases:
            return False
        return newest is None or newest.until_hour < gate.from_bytes(releases[-1]).plan.end_hour

    def _candidate(self, releases: Sequence[Release]) -> Findings:
        return self._findings(releases, self._leases(releases))

    def _findings(self, releases: Sequence[Release], leases: list[Lease]) -> Findings:
        """The last ones are kept: what was learnt for one week's bundle is what the next week's review asks for."""
        rounds = [(made.plan.round_id, made.observed.tobytes()) for made in releases]
        if self._last is None or self._last[:2] != (rounds, leases):
            self._last = rounds, leases, self._learner(releases, leases)
        return self._last[2]

    def _leases(self, releases: Sequence[Release]) -> list[Lease]:
        return self._store.leases(min(made.plan.first_hour for made in releases), releases[-1].plan.end_hour)

    def _open(self, signed: bytes) -> Bundle:
        return open_signed(Bundle, signed, self._signing_key.public)
