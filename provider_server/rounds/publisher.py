"""Learns from releases, publishes the findings as signed, numbered bundles, and keeps those for operators beside them.

A bundle is learnt from tenants' sums, and from benchmark jobs of the provider's own if the `learner` has any: `learn`
does not read what the provider saw of tenants' jobs. What operators see is
learnt from both (`learn_for_operators`), stored and not sent. Shares a store with the `Provider`, which holds the
rounds. A bundle is stored before it is sent to anybody.
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace
from numpy.linalg import LinAlgError

from crypto.ids import RoundId
from crypto.signing import SigningKey, open_signed
from federation.protocol.bundle import Bundle, CatalogueEntry, ContextName
from federation.protocol.versions import OLDEST
from provider_server.fleet.analysis.hazard import Unsettled
from provider_server.fleet.analysis.prediction import Comparison
from provider_server.fleet.learning import findings as learning, publication_gate
from provider_server.fleet.learning.bundle import charges, compose
from provider_server.fleet.learning.findings import Findings
from provider_server.fleet.learning.links import Names, agreed, renamed
from provider_server.fleet.learning.operators_set import OperatorsSet, as_operators_see, opened
from provider_server.fleet.learning.verdicts import within_budget
from provider_server.fleet.leases import Lease
from provider_server.fleet.own_failures import OwnRecord
from provider_server.fleet.release import Release
from provider_server.rounds.store.store import Store

Learner = Callable[[Sequence[Release], Sequence[Lease], OwnRecord | None], Findings]
Namer = Callable[[int], Sequence[ContextName]]
ContextLinks = Callable[[int, int], Names]
_Input = tuple[list[RoundId], list[Lease], OwnRecord | None]
logger = logging.getLogger(__name__)


def nothing_linked(before: int, now: int) -> Names:
    """No context is known by name, so none of its tokens are linked."""
    return {}


def nothing_named(epoch: int) -> Sequence[ContextName]:
    """No context has a public name."""
    return ()


class Publisher:
    """Publishes under the signing key, which it never shows.

    `learner` turns releases and leases into findings; `namer` gives the public names of contexts in an epoch, and
    `contexts` their tokens in an older epoch (first) beside those in a newer one.
    """

    def __init__(
        self,
        store: Store,
        signing_key: SigningKey,
        learner: Learner = learning.learn,
        namer: Namer = nothing_named,
        contexts: ContextLinks = nothing_linked,
    ) -> None:
        self._store = store
        self._signing_key = signing_key
        self._learner = learner
        self._namer = namer
        self._contexts = contexts
        self._last: dict[bool, tuple[_Input, Findings]] = {}

    def releases(self) -> list[Release]:
        """All releases, oldest first."""
        return self._store.releases()

    def learn(self, releases: Sequence[Release]) -> Findings:
        """The findings for tenants, from the sums in `releases` and the provider's own exposure.

        Earlier bundles limit new accusations.
        """
        return self._learnt(releases, None, self._bundles())

    def learn_for_operators(self, releases: Sequence[Release]) -> Findings:
        """The findings for operators: from these, and from what the provider saw itself.

        Earlier such findings limit new accusations. Where the fit fails, what tenants' sums say alone; the log says so.
        """
        record, before = self._store.own.record(), self._for_operators()
        if record is not None:
            try:
                return self._learnt(releases, record, before)
            except (Unsettled, LinAlgError) as error:
                logger.warning("findings for operators are those of tenants' sums alone: %s", error)
        return self._learnt(releases, None, before)

    def _learnt(self, releases: Sequence[Release], record: OwnRecord | None, told_before: Sequence[Bundle]) -> Findings:
        charged = charges(told_before, releases[-1].plan)
        releases, leases = renamed(releases, self._leases(releases), self._names(releases))
        findings = self._findings(releases, leases, record)
        return dataclasses.replace(findings, pairs=tuple(within_budget(findings.pairs, charged)))

    def review(self, releases: Sequence[Release]) -> Comparison | None:
        """Compares how the learner and the bundle in force predict the newest window; None where they cannot be."""
        in_force = self.newest()
        if in_force is None:
            return None
        names = self._names(releases)

        def candidate(before: Sequence[Release]) -> Findings:
            return self._findings(*renamed(before, self._leases(before), names), None)

        releases, leases = renamed(releases, self._store.leases(0, releases[-1].plan.end_hour), names)
        return publication_gate.review(releases, leases, in_force, candidate)

    def outlook(self, releases: Sequence[Release]) -> publication_gate.Outlook:
        """How well the bundles so far predicted the windows after them, and drift alarms."""
        leases = self._store.leases(0, releases[-1].plan.end_hour)
        return publication_gate.outlook(releases, leases, self._bundles())

    def publish(self, releases: Sequence[Release], findings: Findings) -> bytes:
        """Signs, stores and returns the next bundle, and keeps what operators see beside it."""
        before, names = self.newest(), self._namer(releases[-1].plan.epoch)
        number, catalogue, rules = (before.number + 1, before.catalogue, before.rules) if before else (0, (), ())
        bundle = compose(number, catalogue, releases, findings, rules=rules, names=names)
        beside = None
        if self._store.own.record() is not None:
            seen = self.learn_for_operators(releases).with_first_rates_of(findings)
            beside = OperatorsSet.beside(bundle, compose(number, (), releases, seen))
        signed = self.issue(bundle)
        if beside is not None:
            self._store.own.add_findings(number, beside.to_bytes())
        return signed

    def publish_catalogue(self, catalogue: Sequence[CatalogueEntry]) -> bytes:
        """The bundle in force with another catalogue, or bundle 0: a catalogue and no findings."""
        before = self.newest()
        if before is None:
            return self.issue(Bundle(0, 0, 0, tuple(catalogue), (), (), None))
        return self.issue(replace(before, number=before.number + 1, catalogue=tuple(catalogue)))

    def issue(self, bundle: Bundle) -> bytes:
        """Signs and stores a bundle, which is then the one in force."""
        last = self._store.newest_release()
        signed = self._signing_key.sign(bundle, OLDEST if last is None else last.plan.protocol)
        self._store.add_bundle(bundle.number, signed)
        return signed

    def newest(self) -> Bundle | None:
        """The bundle in force."""
        newest = self._store.newest_bundle()
        return None if newest is None else self._open(newest[1])

    def unpublished(self) -> bool:
        """Whether no bundle includes the newest release yet."""
        release, newest = self._store.newest_release(), self.newest()
        if release is None:
            return False
        return newest is None or newest.until_hour < release.plan.end_hour

    def _names(self, releases: Sequence[Release]) -> Names:
        """The tokens in the newest release's epoch of those in older ones, as far as they are linked."""
        newest = releases[-1].plan
        older = {made.plan.epoch for made in releases} - {newest.epoch}
        names = dict(agreed(self._store.links(newest.epoch), newest.owners_minimum)) if older else {}
        for epoch in older:
            names |= self._contexts(epoch, newest.epoch)
        return names

    def _findings(self, releases: Sequence[Release], leases: list[Lease], record: OwnRecord | None) -> Findings:
        """The last ones are kept: what was learnt for one bundle is what the review of the next asks for."""
        asked = [made.plan.round_id for made in releases], leases, record
        last = self._last.get(record is None)
        if last is None or last[0] != asked:
            last = self._last[record is None] = asked, self._learner(releases, leases, record)
        return last[1]

    def _bundles(self) -> list[Bundle]:
        """All bundles, oldest first."""
        return [self._open(signed) for signed in self._store.bundles()]

    def _for_operators(self) -> list[Bundle]:
        """What operators saw beside each of them."""
        return as_operators_see(self._bundles(), opened(self._store.own.findings()))

    def _leases(self, releases: Sequence[Release]) -> list[Lease]:
        return self._store.leases(min(made.plan.first_hour for made in releases), releases[-1].plan.end_hour)

    def _open(self, signed: bytes) -> Bundle:
        return open_signed(Bundle, signed, self._signing_key.public)
