"""What the page reads from the store and the home, decoded once for as long as nothing has changed.

Besides releases, bundles and plans: who has answered the round that is open (not what), which trustees have, and which
tenants the rounds make suspicious. The page's process opens `context.key`, for the names of the provider's own
contexts, and never `signing.key`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from crypto.ids import TenantId, VerifyKey
from crypto.signing import open_signed, reopened
from federation.base.clock import now_hour
from federation.base.key_files import HomeError, read_key
from federation.protocol.bundle import Bundle
from federation.protocol.directory import Chain, Directory, DirectoryEntry
from federation.protocol.plan import Plan
from federation.protocol.subjects import Subject
from provider_server.fleet import node_codes
from provider_server.fleet.analysis.buildup import Shift
from provider_server.fleet.analysis.drift import Alarm
from provider_server.fleet.hints import node_reports
from provider_server.fleet.hints.node_reports import NodeReport
from provider_server.fleet.learning import hardware, on_probation
from provider_server.fleet.learning.hardware import Kept, label_of, levels_of
from provider_server.fleet.learning.operators_set import as_operators_see, opened
from provider_server.fleet.learning.publication_gate import outlook
from provider_server.fleet.learning.votes import SuspectedPart, suspected
from provider_server.fleet.leases import Lease, context_tokens
from provider_server.fleet.node_codes import NodeCodeRow
from provider_server.fleet.parts import FabricParts
from provider_server.fleet.release import Release
from provider_server.rounds.context_names import names_by_label, names_by_token
from provider_server.rounds.grouping import TenantScores
from provider_server.rounds.home import settings_of
from provider_server.rounds.store.round_store import Answer, KeptRound, RoundState
from provider_server.rounds.store.store import Store, reporting

SHORT = 8  # digits of a token or an id that are shown
_AWAITED = {
    RoundState.ENDORSING: Answer.ENDORSEMENT,
    RoundState.GIVING_UP: Answer.EMPTY,
    RoundState.UNMASKING: Answer.SHARE,
}


@dataclass(frozen=True)
class ContextPlace:
    """What a context's token stands for: its number, and the build-up level where the token says one."""

    context: int
    level: int | None


@dataclass(frozen=True)
class SeenRound:
    """A round: its plan, where it is, and, while it is open, who has answered it."""

    plan: Plan
    state: RoundState
    answered: frozenset[TenantId]
    trustees_answered: frozenset[int]


@dataclass(frozen=True, eq=False)
class Votes:
    """What the newest release with votes says; `release` None before there is one."""

    parts: FabricParts
    release: Release | None
    suspects: tuple[SuspectedPart, ...]

    @classmethod
    def of(
        cls,
        parts: FabricParts | None,
        secret: bytes,
        releases: Sequence[Release],
        leases: Callable[[float, float], Sequence[Lease]],
    ) -> "Votes | None":
        """None without a fabric."""
        if parts is None:
            return None
        newest = newest_with(Subject.VOTES, releases)
        if newest is None:
            return cls(parts, None, ())
        plan = newest.plan
        counted = leases(newest.first_hour, plan.end_hour)
        return cls(parts, newest, suspected(newest, counted, parts, parts.tokens(secret, plan.epoch)))


def newest_with(subject: Subject, releases: Sequence[Release]) -> Release | None:
    """The newest release that has an optional marginal."""
    has = [one for one in releases if one.counts(subject)]
    return has[-1] if has else None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Everything that the pages show comes from here. Rounds, releases and bundles are oldest first.

    `operators` are findings that tenants do not see, by the number of the bundle that they stand beside. `names` are
    what the provider calls hardware groups, by token, and `groups` those of telemetry by number; `reports` is the
    newest hour of telemetry, node by node, `codes` what error codes of nodes come from, and
    `shifts` groups that have moved as a whole.
    """

    directory: Directory
    rounds: tuple[SeenRound, ...]
    releases: tuple[Release, ...]
    bundles: tuple[Bundle, ...]
    alarms: tuple[Alarm, ...]
    suspects: frozenset[TenantId]
    kept: Kept | None
    places: Mapping[str, ContextPlace]
    votes: Votes | None = None
    operators: Mapping[int, Bundle] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[int, str] = field(default_factory=dict)
    reports: tuple[NodeReport, ...] = ()
    codes: tuple[NodeCodeRow, ...] = ()
    shifts: tuple[Shift, ...] = ()

    @cached_property
    def learnt(self) -> tuple[Bundle, ...]:
        """What operators see beside each bundle, oldest first."""
        return tuple(as_operators_see(self.bundles, self.operators))

    def name(self, token: str) -> str:
        """A hardware group for a person: what the provider calls it, or the beginning of its token."""
        return self.names.get(token) or f"hardware group {token[:SHORT]}…"

    def group_name(self, number: int) -> str:
        """What the provider calls a group of telemetry's."""
        return self.groups.get(number, f"hardware group {number}")

    def told(self, alarm: Alarm) -> str:
        """An alarm for a person: the thing by its name, or by the beginning of its token."""
        return f"{self.thing(alarm)}{alarm.text.removeprefix(alarm.what)}"

    def thing(self, alarm: Alarm) -> str:
        """What an alarm is about."""
        kind, _, token = alarm.what.partition(" ")
        return self.names.get(token) or f"{kind} {token[:SHORT]}".strip()


def natural(text: str) -> list[tuple[int, str]]:
    """A key by which node-2 comes before node-10.

    >>> sorted(["node-10", "node-2"], key=natural)
    ['node-2', 'node-10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


class Reader:
    """Reads one store and one home, from any thread; HomeError where there is no federation in them."""

    def __init__(self, home: Path, store: Store, parts: FabricParts | None = None) -> None:
        self._home = home
        self._settings = settings_of(home)
        self._parts = parts
        self._store = store
        self._context_secret = read_key(home / "context.key")
        self._learnt: tuple[object, _Learnt] | None = None
        if not store.entries():
            raise HomeError("the database contains no directory", hint="found a federation: `pharoah-provider init`")

    def snapshot(self) -> Snapshot:
        """As things are now; StoreFailed where the store does not answer, DecodeError for what is damaged."""
        with reporting():
            kept_rounds = self._store.rounds.rounds()
            learnt = self._as_learnt(kept_rounds)
            entries = self._store.entries()
            chain = Chain.begin(entries[0], _provider_key(entries)).extended(entries[1:])
            rounds = tuple(self._seen(one) for one in kept_rounds)
            note = self._store.rounds.suspicion()
        kept = hardware.load(self._home)
        if kept is not None:
            kept = on_probation.load(self._home).hold(kept, now_hour())
        called = names_by_label(self._store, self._settings, kept)
        return Snapshot(
            directory=chain.directory,
            rounds=rounds,
            releases=learnt.releases,
            bundles=learnt.bundles,
            alarms=learnt.alarms,
            suspects=TenantScores.from_dict(note).suspects(),
            kept=kept,
            places=places(self._context_secret, learnt.epochs, kept),
            votes=learnt.votes,
            operators=learnt.operators,
            names=_names(self._context_secret, learnt.epochs, called, kept),
            groups={one.number: called[label_of(one.number)] for one in kept.contexts.contexts} if kept else {},
            reports=tuple(node_reports.newest(self._home)),
            codes=node_codes.load(self._home).rows,
            shifts=tuple(node_reports.load_shifts(self._home)),
        )

    def _as_learnt(self, rounds: Sequence[KeptRound]) -> "_Learnt":
        """Releases and bundles only grow, so their number tells whether they have changed."""
        newest = self._store.newest_bundle()
        state = (
            newest[0] if newest else None,
            self._store.own.findings_kept(),
            sum(one.state == RoundState.RELEASED for one in rounds),
        )
        if self._learnt is None or self._learnt[0] != state:
            self._learnt = state, _Learnt.of(self._store, self._parts, self._context_secret)
        return self._learnt[1]

    def _seen(self, kept: KeptRound) -> SeenRound:
        plan, state = reopened(Plan, kept.signed_plan), RoundState(kept.state)
        kind = _AWAITED.get(state)
        answers = self._store.rounds.answers(kept.round_id, kind) if kind else {}
        answered = self._store.rounds.contributors(kept.round_id)
        return SeenRound(plan, state, frozenset(answered), frozenset(answers))


@dataclass(frozen=True, eq=False)
class _Learnt:
    releases: tuple[Release, ...]
    bundles: tuple[Bundle, ...]
    alarms: tuple[Alarm, ...]
    votes: Votes | None
    operators: Mapping[int, Bundle]

    @classmethod
    def of(cls, store: Store, parts: FabricParts | None, secret: bytes) -> "_Learnt":
        key = _provider_key(store.entries())
        releases = tuple(store.releases())
        bundles = tuple(open_signed(Bundle, signed, key) for signed in store.bundles())
        votes = Votes.of(parts, secret, releases, store.leases)
        beside = opened(store.own.findings())
        if not releases:
            return cls(releases, bundles, (), votes, beside)
        leases = store.leases(0, releases[-1].plan.end_hour)
        return cls(releases, bundles, outlook(releases, leases, bundles).alarms, votes, beside)

    @cached_property
    def epochs(self) -> frozenset[int]:
        """Those that tokens come from."""
        return frozenset(one.epoch for one in self.bundles) | frozenset(one.plan.epoch for one in self.releases)


def places(secret: bytes, epochs: Iterable[int], kept: Kept | None) -> dict[str, ContextPlace]:
    """What the tokens of the provider's own contexts stand for; those of contexts in other words stay tokens."""
    found: dict[str, ContextPlace] = {}
    if kept is None:
        return found
    for epoch in epochs:
        for context in kept.contexts.contexts:
            for level in levels_of(kept):
                tokens = context_tokens(secret, epoch, label_of(context.number), level)
                found[tokens["context"]] = ContextPlace(context.number, None)
                found[tokens["context_level"]] = ContextPlace(context.number, level)
    return found


def _names(secret: bytes, epochs: Iterable[int], called: Mapping[str, str], kept: Kept | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for epoch in epochs:
        found |= names_by_token(partial(context_tokens, secret, epoch), called, levels_of(kept))
    return found


def _provider_key(entries: Sequence[bytes]) -> VerifyKey:
    """The provider's key, from the first entry of the directory."""
    provider: VerifyKey = reopened(DirectoryEntry, entries[0]).provider
    return provider
