"""A federation to which operations happen, one after the other: programs die, links are cut, disks fill, members go.

A scenario is a list of `Operation`, plain data; `scenario(seed)` makes one at random, and `Walk.play` takes any. All
parties are real and on disk, in one process: twelve tenants, five trustees and a provider, over eight weeks, which are
two epochs with a series each. Tenants have leases of their own in each epoch.

- `HOLD` does what is due. What goes wrong before it, goes wrong within it.
- A program that dies at a write writes nothing from then on (`tests/support/disks.py`); its files are opened anew.
- A disk that is full refuses every write from one on, until the week's attempt is over.
- A link that is cut loses a question, or the answer to it after the party has given it.
- A trustee that is lost for good has a successor: three others hand over. A seat is lost once.

`Walk.complaints` is what must not be, and is asked for after every operation: a week that was charged twice, a release
that is not exact, a message that is another one when it is repeated, an error that only a bug explains. `Walk.ended`
holds the last week undisturbed and asks whether anything is lost: only a tenant that missed both the last opening of an
epoch and its second one may lose weeks.
"""

import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from crypto.errors import CohortTooSmall, PharoahError, Refusal, Unreachable
from crypto.ids import LeaseId, TenantId
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.queries import Query
from provider_server.fleet.leases import Lease
from provider_server.network.grid_tenants import GridTenants
from provider_server.rounds.provider import Provider
from provider_server.rounds.release import Release
from provider_server.store.round_store import RoundState
from provider_server.week import federated_week
from simulation.judge.exactness import weeks_counted
from simulation.run.federation import Federation
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.home import create, pin
from tenant_client.network.flower_app import client_app
from tenant_client.records.journal import Failure
from tenant_client.rounds.tenant import StartedLease, Tenant
from tests.support.disks import Disks, Killed, Trouble
from tests.support.factories import a_descriptor
from tests.support.federations import CONTEXT, Grounds, Witness, is_exact
from tests.support.seats import Holders, succeed
from trustee.trustee import Trustee, TrusteeLimits

WEEKS, EPOCH, TENANTS = 8, 4, 12
POINTS = {"provider": 60, "tenant": 12, "trustee": 8}  # as many writes as each has in a week, or a few more


class Kind(StrEnum):
    """What may happen."""

    HOLD = "hold"  # what is due: a week's round, or one that waits
    KILL_PROVIDER = "kill provider"
    KILL_TENANT = "kill tenant"
    KILL_TRUSTEE = "kill trustee"
    FILL_PROVIDER = "fill provider"
    FILL_TENANT = "fill tenant"
    FILL_TRUSTEE = "fill trustee"
    CUT_TENANT = "cut tenant"
    CUT_TRUSTEE = "cut trustee"
    TRUSTEE_AWAY = "trustee away"
    TRUSTEE_BACK = "trustee back"
    LOSE_TRUSTEE = "lose trustee"
    LEAVE = "leave"
    JOIN = "join"
    SKEW = "skew"
    RESTART = "restart"


DISKS = {kind for kind in Kind if kind.value.startswith(("kill", "fill"))}
RARELY = dict.fromkeys((Kind.JOIN, Kind.LEAVE, Kind.LOSE_TRUSTEE), 0.5)
FREQUENCY = {Kind.HOLD: 12, Kind.KILL_PROVIDER: 3, Kind.TRUSTEE_AWAY: 2} | RARELY


@dataclass(frozen=True)
class Operation:
    """One thing that happens: to whom, and where that has a place or a moment, at which one."""

    kind: Kind
    party: int = 0
    at: int = 0


def scenario(seed: int, operations: int) -> list[Operation]:
    """A random list of operations; the same seed gives the same."""
    chosen = random.Random(seed)
    kinds = chosen.choices(list(Kind), [FREQUENCY.get(kind, 1.0) for kind in Kind], k=operations)
    return [Operation(kind, chosen.randrange(TENANTS * 5), chosen.randrange(60)) for kind in kinds]


@dataclass(frozen=True)
class _Reached:
    """A trustee as the provider reaches it."""

    walk: "Walk"
    inner: Trustee

    @property
    def index(self) -> int:
        return self.inner.index

    def follow(self, update: bytes) -> bytes:
        return self._over_the_link(self.inner.follow, update)

    def endorse(self, request: bytes) -> bytes:
        return self._over_the_link(self.inner.endorse, request)

    def unmask(self, call: bytes) -> bytes:
        return self._over_the_link(self.inner.unmask, call)

    def _over_the_link(self, method: Callable[[bytes], bytes], request: bytes) -> bytes:
        lost = f"trustee {self.index} does not answer"
        if self.index in self.walk.away or self.walk.cut.get(("trustee", self.index)) == "question":
            raise Unreachable(lost)
        try:
            answer = method(request)
        except Killed:
            self.walk.dead.add(("trustee", self.index))
            raise Unreachable(lost) from None
        if ("trustee", self.index) in self.walk.cut:
            raise Unreachable(lost)
        return answer


@dataclass
class Walk:
    """A federation below `root`, between two operations."""

    root: Path
    grounds: Grounds
    founders: int
    seats: Holders
    disks: Disks = field(default_factory=Disks)
    armed: dict[Path, Trouble] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)
    gone: set[TenantId] = field(default_factory=set)
    cut: dict[tuple[str, int], str] = field(default_factory=dict)
    unheard: set[tuple[int, int]] = field(
        default_factory=set
    )  # tenants that a second opening could not ask, and its epoch
    dead: set[tuple[str, int]] = field(default_factory=set)
    done: Counter[Kind] = field(default_factory=Counter)
    met: Counter[Kind] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    succeeded: set[int] = field(default_factory=set)
    since: dict[int, int] = field(default_factory=dict)  # the first week of the epoch in which a tenant joined
    _exact: int = 0

    @classmethod
    def founded(cls, root: Path, tenants: int) -> "Walk":
        """A new federation, with jobs that run all the weeks and fail in each of them."""
        openings = (*range(1, EPOCH + 1), EPOCH)
        grounds = Grounds.founded(root, tenants, horizon=EPOCH, weeks_per_epoch=EPOCH, openings=openings)
        walk = cls(root, grounds, tenants, Holders.founded(grounds.federation))
        walk.open()
        for number in range(tenants):
            walk.begin(number, 0)
        return walk

    def open(self) -> None:
        """Opens everybody from what is on disk."""
        with self.disks.watched():
            self.trustees = {index: self._trustee(index) for index in range(1, 6)}
            homes = sorted((self.root / "tenants").iterdir())
            self.tenants = {number: self._tenant(number) for number in range(len(homes))}
            self.provider = self._provider()

    def close(self) -> None:
        """Closes everybody."""
        self._federation().close()

    def _tenant(self, number: int) -> Tenant:
        return self.grounds.tenant(self.root, number, tuple(self.trustees.values()))

    def _trustee(self, index: int, entries: Sequence[bytes] = ()) -> Trustee:
        """Trustee `index`, as whoever holds the seat opens it; one that is new gets the `entries` of the directory."""
        own, first = self.seats.holders[index - 1], self.grounds.federation.trustees[index - 1]._share
        keys, memory = (first, own.signing, own.mask), self._path("trustee", index)
        return Trustee(*keys, entries, memory, os.urandom, TrusteeLimits(), self.seats.shares[index])

    def _provider(self) -> Provider:
        provider = self.grounds.provider(self.root)
        self.disks.watch(provider, self._path("provider", 0))
        return provider

    def _path(self, role: str, number: int) -> Path:
        names = {"tenant": f"tenants/{number:03d}/tenant.db", "trustee": f"trustees/{number}.db"}
        return self.root / names.get(role, "provider/provider.db")

    def begin(self, number: int, week: int) -> None:
        """A tenant's jobs of a week and of each epoch from then on; one of them fails in each week."""
        self.since[number] = week // EPOCH * EPOCH
        for first in (week, *range((week // EPOCH + 1) * EPOCH, WEEKS, EPOCH)):
            self._begin(number, first, (first // EPOCH + 1) * EPOCH)

    def _begin(self, number: int, week: int, until: int) -> None:
        tenant, start_h = self.tenants[number], week * HOURS_PER_WEEK + 1.0
        labels = self.provider.context_labels(start_h, CONTEXT, 0)
        leases = [LeaseId(bytes([number, week, lease]) + bytes(13)) for lease in range(2)]
        end_h = until * HOURS_PER_WEEK - 4.0
        self.provider.record_leases(Lease(lease, tenant.id, 4, start_h, end_h, labels) for lease in leases)
        epoch = self.provider.epoch(start_h)
        tenant.start_leases([StartedLease(lease, start_h, labels, a_descriptor()) for lease in leases], epoch)
        hours = [HOURS_PER_WEEK * at + 30.0 + number for at in range(week, until)]
        tenant.record([Failure(str(leases[0]), hour, hour - start_h, "nvlink_error") for hour in hours])

    # ---- operations --------------------------------------------------------------------------------------------------

    def play(self, operations: Sequence[Operation]) -> Iterator[tuple[Operation, list[str]]]:
        """Lets them happen, one by one, until seven weeks are over; each with what is wrong after it."""
        for operation in operations:
            if self.weeks_over() >= WEEKS - 1:
                return
            self.happen(operation)
            yield operation, self.complaints()

    def happen(self, operation: Operation) -> None:
        """One operation. What dies, fills or is cut does so within the next `HOLD`, after which it is mended."""
        kind, at = operation.kind, operation.at
        role = kind.value.rpartition(" ")[2]
        number = self._party(role, operation.party)
        self.done[kind] += 1
        if kind is Kind.HOLD:
            self.disks.troubles, self.armed = self.armed, {}
            self._hold()
            self._mend()
        elif kind in DISKS:
            path = self._path(role, number)
            self.armed[path] = Trouble(kind, 1 + at % POINTS[role], is_death=kind.value.startswith("kill"))
        elif kind in (Kind.CUT_TENANT, Kind.CUT_TRUSTEE):
            self.cut[role, number] = "question" if at % 2 else "answer"
        elif kind is Kind.TRUSTEE_AWAY:
            self.away.add(number)
        elif kind is Kind.TRUSTEE_BACK:
            self.away.clear()
        elif kind is Kind.LOSE_TRUSTEE:
            self._lose(number)
        elif kind is Kind.LEAVE:
            self._leave(self._party("tenant", operation.party))
        elif kind is Kind.JOIN:
            self._join()
        elif kind is Kind.SKEW:
            self._skew(self._party("tenant", operation.party), 1 if at % 2 else -1)
        else:
            self._reopen_provider()

    def _mend(self) -> None:
        """Ends what went wrong during a week, and opens anew who died."""
        self.met.update(Kind(trouble.kind) for trouble in self.disks.troubles.values() if trouble.met)
        self.disks.troubles = {}
        self.cut.clear()
        self._bury()

    def _party(self, role: str, party: int) -> int:
        return 1 + party % 5 if role in ("trustee", "away") else party % len(self.tenants)

    def _hold(self) -> None:
        """What the round runner does when it looks: the next week that is over, or the oldest round that waits."""
        week = (self.provider.last_end_hour() or 0) // HOURS_PER_WEEK
        start = min(week, WEEKS - 1) * HOURS_PER_WEEK
        try:
            with local_task():
                reached = [_Reached(self, trustee) for trustee in self.trustees.values()]
                tenants = GridTenants(LocalGrid(self._apps()), 0.0, 0.0)
                witnessed = Witness(self.root / "witness").trustees(reached)
                federated_week(self.provider, None, tenants, witnessed, (start, start + HOURS_PER_WEEK))
        except Killed:
            self.dead.add(("provider", 0))
        except (sqlite3.OperationalError, sa.exc.OperationalError):
            self.dead.add(("provider", 0))  # its disk is full: it is started again
        except CohortTooSmall:
            pass
        except Refusal as refusal:
            self.errors.append(f"{type(refusal).__name__}: {refusal.what}")
        except PharoahError:
            pass  # a trustee is away: the round waits

    def _apps(self) -> dict[int, Any]:
        witness = Witness(self.root / "witness")
        return {
            number: client_app(self._answering(number, witness.answerer(number, tenant.answer)))
            for number, tenant in self.tenants.items()
            if tenant.id not in self.gone
        }

    def _answering(self, number: int, answer: Callable[[Query, bytes], bytes]) -> Callable[[Query, bytes], bytes]:
        def over_the_link(verb: Query, payload: bytes) -> bytes:
            try:
                return reached(verb, payload)
            except PharoahError:
                if verb is Query.UNHEARD:
                    self.unheard |= {(number, one.plan.epoch) for one in self.provider.waiting() if one.plan.is_second}
                raise

        def reached(verb: Query, payload: bytes) -> bytes:
            lost = Unreachable(f"tenant {number} does not answer")
            if self.cut.get(("tenant", number)) == "question" or ("tenant", number) in self.dead:
                raise lost
            try:
                said = answer(verb, payload)
            except Killed:
                self.dead.add(("tenant", number))
                raise lost from None
            if ("tenant", number) in self.cut:
                raise lost
            return said

        return over_the_link

    def _bury(self) -> None:
        """Opens anew who died."""
        with self.disks.watched():
            for role, number in sorted(self.dead):
                if role == "provider":
                    self._reopen_provider()
                elif role == "trustee":
                    self.trustees[number].close()
                    self.trustees[number] = self._trustee(number)
                else:
                    self.tenants[number].close()
                    self.tenants[number] = self._tenant(number)
        self.dead = set()

    def _reopen_provider(self) -> None:
        self.provider.close()
        self.provider = self._provider()

    def _lose(self, number: int) -> None:
        """A trustee is lost with all that it had; three others let a successor have its seat."""
        if number in self.succeeded:
            return
        self.succeeded.add(number)
        self.trustees[number].close()
        self._path("trustee", number).unlink()
        dealers = [index for index in self.trustees if index != number][-3:]
        self.seats = succeed(self.seats, self.provider, number, dealers)
        for index, trustee in self.trustees.items():
            trustee._renewed = self.seats.shares[index]
        with self.disks.watched():
            self.trustees[number] = self._trustee(number, self.provider.members.chain.entries)

    def _leave(self, number: int) -> None:
        left = self.tenants[number].id
        if left not in self.gone and len(self.tenants) - len(self.gone) > self.founders - 3:
            self.provider.members.enrol([], left=[left])
            self.gone.add(left)

    def _join(self) -> None:
        number, home = len(self.tenants), self.root / "tenants" / f"{len(self.tenants):03d}"
        if number == self.founders + 4:
            return
        self.provider.members.enrol([create(home, os.urandom, 0.0)])
        pin(home, self.provider.members.chain.entries)
        for trustee in self.trustees.values():
            trustee.follow(self.provider.members.update())
        (home / "policy.toml").write_text((self.root / "tenants" / "000" / "policy.toml").read_text())
        with self.disks.watched():
            self.tenants[number] = self._tenant(number)
        self.begin(number, self.weeks_over())

    def _skew(self, number: int, hours: int) -> None:
        self.tenants[number]._clock = lambda: (self.weeks_over() + 1) * HOURS_PER_WEEK + 24.0 + hours

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def weeks_over(self) -> int:
        """How many weeks have a round, released or not."""
        return (self.provider.last_end_hour() or 0) // HOURS_PER_WEEK

    def complaints(self) -> list[str]:
        """What is wrong, whatever happened: nothing."""
        return [*self.errors, *self._about_charges(), *self._about_releases(), *self._about_messages()]

    def ended(self) -> list[str]:
        """What is wrong once everybody is back and the last week was held: nothing is lost either."""
        self.away.clear()
        self._mend()
        for _ in range(3 * WEEKS):
            if self.weeks_over() == WEEKS and self.provider.unfinished() is None:
                break
            self._hold()
        states = [kept.state for kept in self.provider.store.rounds.rounds()]
        unreleased = [] if set(states) == {RoundState.RELEASED} else [f"rounds end as {states}"]
        return [*unreleased, *self.complaints(), *self._about_losses(), *self._about_places()]

    def _federation(self) -> Federation:
        parties = tuple(self.trustees.values()), tuple(self.tenants.values())
        return Federation(self.provider, None, *parties)  # type: ignore[arg-type]  # nothing is published

    def _about_charges(self) -> Iterator[str]:
        for number, tenant in self.tenants.items():
            weeks = Counter(week for charge in tenant.ledger.charges() for week in charge.weeks)
            twice = sorted(week for week, times in weeks.items() if times > 1)
            if twice:
                yield f"tenant {number} was charged twice for the weeks {twice}"

    def _about_releases(self) -> Iterator[str]:
        releases = self.provider.releases()
        for release in releases[self._exact :]:
            if not is_exact(self._federation(), release):
                yield f"the release of hours {release.plan.start_hour}–{release.plan.end_hour} is not exact"
        self._exact = len(releases)

    def _about_messages(self) -> Iterator[str]:
        for of, what in Witness(self.root / "witness").seen().items():
            if len(what) != 1:
                yield f"{of}: {len(what)} different ones"

    def _about_losses(self) -> Iterator[str]:
        """Every week of every member that is here is in a last total, and what it failed in it.

        But for the weeks of an epoch whose last opening it missed, and the second one or its question for what is
        charged.
        """
        releases = self.provider.releases()
        counted = weeks_counted(releases)
        failures = 0
        for number, tenant in self.tenants.items():
            weeks = counted[tenant.id]
            excused = {epoch for who, epoch in self.unheard if who == number}
            lost = set(range(self.since[number], WEEKS)) - weeks - _missed_twice(releases, tenant.id)
            lost = {week for week in lost if week // EPOCH not in excused}
            if lost and tenant.id not in self.gone:
                yield f"the weeks {sorted(lost)} of tenant {number} are lost"
            happened = tenant.journal.failures(0, WEEKS * HOURS_PER_WEEK)
            failures += sum(int(one.failure.at_h) // HOURS_PER_WEEK in weeks for one in happened)
        totals = {made.plan.series and made.plan.series.name: float(made.tables[0].events.sum()) for made in releases}
        if abs(sum(totals.values()) - failures) > 1:
            yield f"the totals count {sum(totals.values()):.2f} failures of {failures}"

    def _about_places(self) -> Iterator[str]:
        """All mask trustees opened the same sets; a successor those of the series that it took over, and later ones."""
        opened = {
            index: [(str(name), str(request)) for name, request, done in trustee.rounds() if done]
            for index, trustee in self.trustees.items()
        }
        longest = max(opened.values(), key=len)
        for index, sets in opened.items():
            missing = 0 if index in self.succeeded or not sets else len(longest) - len(sets)
            if missing or not set(sets) <= set(longest):
                yield f"trustee {index} opened different sets"
        for index, trustee in self.trustees.items():
            with suppress(StopIteration):
                yield f"trustee {index} saw two sets: {next(iter(trustee.conflicts()))[0]}"


def _missed_twice(releases: Sequence[Release], tenant: TenantId) -> set[int]:
    """The weeks of the epochs of whose second opening a tenant was not part."""
    missed = (made for made in releases if made.plan.is_second and tenant not in {one.tenant for one in made.answered})
    return {week for made in missed for week in range(made.plan.epoch * EPOCH, (made.plan.epoch + 1) * EPOCH)}


@contextmanager
def a_walk(root: Path, tenants: int = TENANTS) -> Iterator[Walk]:
    """A new federation, closed in the end."""
    walk = Walk.founded(root, tenants)
    try:
        yield walk
    finally:
        walk.close()
