"""Learns from releases and publishes the findings as signed, numbered bundles.

Shares a store with the `Provider`, which holds the rounds. A bundle is stored before it is sent to anybody.
"""

import dataclasses
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from crypto.ids import RoundId
from crypto.signing import SigningKey, open_signed
from federation.protocol.bundle import Bundle, CatalogueEntry, ContextName
from federation.protocol.noise import NoiseSampler, SystemSampler
from provider_server.analysis.prediction import Comparison
from provider_server.fleet.leases import Lease
from provider_server.fleet.own_failures import OwnRecord
from provider_server.learning import findings as learning, publication_gate
from provider_server.learning.bundle import charges, compose
from provider_server.learning.factors import add_factors
from provider_server.learning.findings import Findings
from provider_server.learning.links import Names, agreed, renamed
from provider_server.learning.own_noise import noisy
from provider_server.learning.own_sight import Exact, OwnSight, enough
from provider_server.learning.small_changes import with_small_changes_left_out
from provider_server.learning.verdicts import within_budget
from provider_server.rounds import release as gate
from provider_server.rounds.release import Release
from provider_server.store.store import Store

Learner = Callable[[Sequence[Release], Sequence[Lease], OwnSight | None], Findings]
Namer = Callable[[int], Sequence[ContextName]]
ContextLinks = Callable[[int, int], Names]


def nothing_linked(before: int, now: int) -> Names:
    """No context is known by name, so none of its tokens are linked."""
    return {}


def nothing_named(epoch: int) -> Sequence[ContextName]:
    """No context has a public name."""
    return ()


class Publisher:
    """Publishes under the signing key, which it never shows.

    `learner` turns releases and leases into findings; `namer` gives the public names of contexts in an epoch, and
    `contexts` their tokens in an older epoch (first) beside those in a newer one. Own failures enter with noise for
    `own_epsilon` in each unit, drawn by `sampler`; without it exactly, in rows with enough owners.
    """

    def __init__(
        self,
        store: Store,
        signing_key: SigningKey,
        learner: Learner = learning.learn,
        namer: Namer = nothing_named,
        contexts: ContextLinks = nothing_linked,
        own_epsilon: float | None = None,
        sampler: NoiseSampler | None = None,
    ) -> None:
        self._store = store
        self._signing_key = signing_key
        self._learner = learner
        self._namer = namer
        self._contexts = contexts
        self._own_epsilon = own_epsilon
        self._sampler = sampler or SystemSampler()
        self._last: tuple[list[RoundId], list[Lease], OwnRecord | None, Findings] | None = None

    def releases(self) -> list[Release]:
        """All releases, oldest first."""
        return [gate.from_bytes(data) for data in self._store.releases()]

    def learn(self, releases: Sequence[Release]) -> Findings:
        """The findings from `releases` and the provider's own exposure; earlier bundles limit new accusations."""
        charged = charges(map(self._open, self._store.bundles()), releases[-1].plan)
        names = self._names(releases)
        releases, leases = renamed(releases, self._leases(releases), names)
        findings = self._findings(releases, leases, names)
        findings = dataclasses.replace(findings, pairs=tuple(within_budget(findings.pairs, charged)))
        return add_factors(findings, releases, leases)

    def review(self, releases: Sequence[Release]) -> Comparison | None:
        """Compares how the learner and the bundle in force predict the newest window; None where they cannot be."""
        in_force = self.newest()
        if in_force is None:
            return None
        names = self._names(releases)

        def candidate(before: Sequence[Release]) -> Findings:
            return self._findings(*renamed(before, self._leases(before), names), names)

        releases, leases = renamed(releases, self._store.leases(0, releases[-1].plan.end_hour), names)
        return publication_gate.review(releases, leases, in_force, candidate)

    def outlook(self, releases: Sequence[Release]) -> publication_gate.Outlook:
        """How well the bundles so far predicted the windows after them, and drift alarms."""
        leases = self._store.leases(0, releases[-1].plan.end_hour)
        return publication_gate.outlook(releases, leases, [self._open(signed) for signed in self._store.bundles()])

    def publish(self, releases: Sequence[Release], findings: Findings) -> bytes:
        """Signs, stores and returns the next bundle."""
        before, names = self.newest(), self._namer(releases[-1].plan.epoch)
        own = self._own_statement(releases)
        if before is None:
            return self.issue(compose(0, (), releases, findings, names=names, own=own))
        number, catalogue = before.number + 1, before.catalogue
        bundle = compose(number, catalogue, releases, findings, rules=before.rules, names=names, own=own)
        return self.issue(with_small_changes_left_out(before, bundle) if any(own) else bundle)

    def publish_catalogue(self, catalogue: Sequence[CatalogueEntry]) -> bytes:
        """The bundle in force with another catalogue, or bundle 0: a catalogue and no findings."""
        before = self.newest()
        if before is None:
            return self.issue(Bundle(0, 0, 0, tuple(catalogue), (), (), None))
        return self.issue(replace(before, number=before.number + 1, catalogue=tuple(catalogue)))

    def issue(self, bundle: Bundle) -> bytes:
        """Signs and stores a bundle, which is then the one in force."""
        signed = self._signing_key.sign(bundle)
        self._store.add_bundle(bundle.number, signed)
        return signed

    def newest(self) -> Bundle | None:
        """The bundle in force."""
        newest = self._store.newest_bundle()
        return None if newest is None else self._open(newest[1])

    def unpublished(self) -> bool:
        """Whether no bundle includes the newest release yet."""
        releases, newest = self._store.releases(), self.newest()
        if not releases:
            return False
        return newest is None or newest.until_hour < gate.from_bytes(releases[-1]).plan.end_hour

    def _names(self, releases: Sequence[Release]) -> Names:
        """The tokens in the newest release's epoch of those in older ones, as far as they are linked."""
        newest = releases[-1].plan
        older = {made.plan.epoch for made in releases} - {newest.epoch}
        names = dict(agreed(self._store.links(newest.epoch), newest.owners_minimum)) if older else {}
        for epoch in older:
            names |= self._contexts(epoch, newest.epoch)
        return names

    def _findings(self, releases: Sequence[Release], leases: list[Lease], names: Names) -> Findings:
        """The last ones are kept: what was learnt for one bundle is what the review of the next asks for."""
        rounds = [made.plan.round_id for made in releases]
        record = self._store.own.record()
        if self._last is None or self._last[:3] != (rounds, leases, record):
            own = self._own(releases, leases, names, record)
            self._last = rounds, leases, record, self._learner(releases, leases, own)
        return self._last[3]

    def _own(
        self, releases: Sequence[Release], leases: Sequence[Lease], names: Names, record: OwnRecord | None
    ) -> OwnSight | None:
        """What was seen in the windows of `releases`, as far as a bundle may tell it; None where nobody ever looked."""
        if record is None:
            return None
        if self._own_epsilon is None:
            return Exact(record, releases[-1].plan.owners_minimum)
        return noisy(self._store.own, record, releases, leases, names, self._own_epsilon, self._sampler)

    def _own_statement(self, releases: Sequence[Release]) -> tuple[int, float]:
        """Owners of a batch of exact own failures, and epsilon of noisy ones: one of both, 0 where none enter."""
        if self._store.own.record() is None:
            return 0, 0.0
        exact = 0 if self._own_epsilon else enough(releases[-1].plan.owners_minimum)
        return exact, self._own_epsilon or 0.0

    def _leases(self, releases: Sequence[Release]) -> list[Lease]:
        return self._store.leases(min(made.plan.first_hour for made in releases), releases[-1].plan.end_hour)

    def _open(self, signed: bytes) -> Bundle:
        return open_signed(Bundle, signed, self._signing_key.public)
