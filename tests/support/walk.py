"""A federation to which operations happen, one after the other: programs die, links are cut, disks fill, members go.

A scenario is a list of `Operation`, plain data; `scenario(seed)` makes one at random, and `Walk.play` takes any. All
parties are real and on disk, in one process: twelve tenants, five trustees and a provider, over eight weeks, which are
two epochs of four windows. Tenants have leases of their own in each epoch.

- `HOLD` does what is due. What goes wrong before it, goes wrong within it.
- A program that dies at a write writes nothing from then on (`tests/support/disks.py`); its files are opened anew.
- A disk that is full refuses every write from one on, until the week's attempt is over.
- A link that is cut loses a question, or the answer to it after the party has given it.
- A trustee that is lost for good has a successor: three others hand over. A seat is lost once. A round that cannot go
  on without the one that is lost is given up.
- Where an epoch begins, the mask trustees make new keys.

`Walk.complaints` is what must not be, and is asked for after every operation: a week that was charged twice, a release
that is not exact, a message that is another one when it is repeated, an error that only a bug explains. `Walk.ended`
holds the last week undisturbed and asks whether anything is lost: a week may be that of the last windows of an epoch
that the tenant missed, or of a round that was given up after trustees had endorsed its set.
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
from crypto.ids import LeaseId, RoundId, TenantId
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.queries import Query
from provider_server.fleet.leases import Lease
from provider_server.rounds.network.grid_tenants import GridTenants
from provider_server.rounds.planning import MaskKeysServed
from provider_server.rounds.provider import Provider
from provider_server.rounds.round import Round
from provider_server.rounds.store.round_store import RoundState
from provider_server.rounds.week import MaskHolder, federated_week, give_up
from simulation.run.federation import Federation
from simulation.run.local_grid import LocalGrid, local_task
from tenant_client.doctor.records.journal import Failure
from tenant_client.rounds.home import create, pin
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.tenant import StartedLease, Tenant
from tests.support.disks import Disks, Killed, Trouble
from tests.support.exactness import weeks_counted
from tests.support.factories import a_descriptor
from tests.support.federations import CONTEXT, Grounds, Witness, is_exact
from tests.support.seats import Holders, hand_keys, renew_mask_keys, succeed
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
    given_up: set[RoundId] = field(default_factory=set)
    served: bool = False  # mask keys have, in an epoch that is over
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
        windows = tuple(range(1, EPOCH + 1))
        grounds = Grounds.founded(root, tenants, windows=windows, weeks_per_epoch=EPOCH)
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
        """Ends what went wrong during a week, opens anew who died, and makes mask keys where new ones are wanted."""
        self.met.update(Kind(trouble.kind) for trouble in self.disks.troubles.values() if trouble.met)
        self.disks.troubles = {}
        self.cut.clear()
        self._bury()
        if self.served:
            self.seats, self.served = renew_mask_keys(self.seats, self._federation()), False

    def _party(self, role: str, party: int) -> int:
        return 1 + party % 5 if role in ("trustee", "away") else party % len(self.tenants)

    def _hold(self) -> None:
        """What the round runner does when it looks: the next week that is over, or the round that waits."""
        week = (self.provider.last_end_hour() or 0) // HOURS_PER_WEEK
        start = min(week, WEEKS - 1) * HOURS_PER_WEEK
        try:
            with local_task():
                tenants = GridTenants(LocalGrid(self._apps()), 0.0, 0.0)
                federated_week(self.provider, None, tenants, self._reached(), (start, start + HOURS_PER_WEEK))
        except Killed:
            self.dead.add(("provider", 0))
        except (sqlite3.OperationalError, sa.exc.OperationalError):
            self.dead.add(("provider", 0))  # its disk is full: it is started again
        except CohortTooSmall:
            pass
        except MaskKeysServed:
            self.served = True
        except Refusal as refusal:
            self.errors.append(f"{type(refusal).__name__}: {refusal.what}")
        except PharoahError:
            pass  # a trustee is away: the round waits

    def _reached(self) -> list[MaskHolder]:
        reached = [_Reached(self, trustee) for trustee in self.trustees.values()]
        return Witness(self.root / "witness").trustees(reached)

    def _apps(self) -> dict[int, Any]:
        witness = Witness(self.root / "witness")
        return {
            number: client_app(self._answering(number, witness.answerer(number, tenant.answer)))
            for number, tenant in self.tenants.items()
            if tenant.id not in self.gone
        }

    def _answering(self, number: int, answer: Callable[[Query, bytes], bytes]) -> Callable[[Query, bytes], bytes]:
        def over_the_link(verb: Query, payload: bytes) -> bytes:
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
        for trustee in self.trustees.values():
            hand_keys(trustee, self.seats)
        with self.disks.watched():
            self.trustees[number] = self._trustee(number, self.provider.members.chain.entries)
        self._give_up_without(number)

    def _give_up_without(self, number: int) -> None:
        """Gives the open round up if it needs a trustee that is lost, or answers that tenants will not give any more.

        One who is away may be missing for it: then the next `HOLD` goes on with it.
        """
        waiting = self.provider.unfinished()
        if waiting is None:
            return
        if number in {one.index for one in waiting.plan.trustees} or waiting.state is RoundState.COLLECTING:
            self.given_up.add(waiting.plan.round_id)
            with suppress(PharoahError):
                give_up(self.provider, self._reached(), waiting)

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
            self._mend()
        return [*self._about_states(), *self.complaints(), *self._about_losses(), *self._about_places()]

    def _federation(self) -> Federation:
        parties = tuple(self.trustees.values()), tuple(self.tenants.values())
        return Federation(self.provider, None, *parties)  # type: ignore[arg-type]  # nothing is published

    def _about_states(self) -> Iterator[str]:
        for round_ in self._rounds():
            wanted = RoundState.REFUSED if round_.plan.round_id in self.given_up else RoundState.RELEASED
            if round_.state is not wanted:
                yield f"the round of hours {round_.plan.start_hour}–{round_.plan.end_hour} ends as {round_.state}"

    def _rounds(self) -> list[Round]:
        return [self.provider._round(kept) for kept in self.provider.store.rounds.rounds()]

    def _about_charges(self) -> Iterator[str]:
        for number, tenant in self.tenants.items():
            paid = [charge for charge in tenant.ledger.charges() if not charge.is_given_back]
            weeks = Counter(week for charge in paid for week in _weeks(charge.start_h, charge.end_h))
            twice = sorted(week for week, times in weeks.items() if times > 1)
            if twice:
                yield f"tenant {number} was charged twice for the weeks {twice}"

    def _about_releases(self) -> Iterator[str]:
        releases = self.provider.store.releases()
        for release in releases[self._exact :]:
            if not is_exact(self._federation(), release):
                yield f"the release of hours {release.plan.start_hour}–{release.plan.end_hour} is not exact"
        self._exact = len(releases)

    def _about_messages(self) -> Iterator[str]:
        for of, what in Witness(self.root / "witness").seen().items():
            if len(what) != 1:
                yield f"{of}: {len(what)} different ones"

    def _about_losses(self) -> Iterator[str]:
        """A week that no endorsed set names a tenant for counts in the next window of which the set does."""
        counted, failures = weeks_counted(self.provider.store.releases()), 0
        for number, tenant in self.tenants.items():
            weeks, wanted = counted[tenant.id], self._to_count(number, tenant.id)
            if (lost := wanted - weeks) and tenant.id not in self.gone:
                yield f"the weeks {sorted(lost)} of tenant {number} are lost"
            if more := weeks - wanted:
                yield f"the weeks {sorted(more)} of tenant {number} count, and no set says that they wait"
            happened = tenant.journal.failures(0, WEEKS * HOURS_PER_WEEK)
            failures += sum(int(one.failure.at_h) // HOURS_PER_WEEK in weeks for one in happened)
        total = sum(round(float(made.tables[0].events.sum())) for made in self.provider.store.releases())
        if total != failures:
            yield f"the releases count {total} failures of {failures}"

    def _to_count(self, number: int, tenant: TenantId) -> set[int]:
        """The weeks that a tenant counts in if nothing is lost: by the sets of the rounds, and who was released."""
        found, waiting, epoch = set[int](), set[int](), 0
        released = {made.plan.round_id for made in self.provider.store.releases()}
        for round_ in self._rounds():
            plan, ended = round_.plan, round_.ended()
            waiting = {week for week in waiting if plan.epoch == epoch} | set(_weeks(*plan.window))
            epoch = plan.epoch
            if ended is None or tenant in ended.endorsed.tenants:
                found |= waiting if plan.round_id in released else set()
                waiting = set()
        return {week for week in found if week >= self.since[number]}

    def _about_places(self) -> Iterator[str]:
        """All mask trustees opened the same set of a round, and none saw two."""
        opened: dict[RoundId, set[str]] = {}
        for index, trustee in self.trustees.items():
            for name, request, is_opened in trustee.rounds():
                opened.setdefault(name, set()).update([str(request)] if is_opened else [])
            with suppress(StopIteration):
                yield f"trustee {index} saw two sets: {next(iter(trustee.conflicts()))[0]}"
        yield from (f"two sets of round {name} were opened" for name, sets in opened.items() if len(sets) > 1)


def _weeks(start_hour: float, end_hour: float) -> range:
    return range(int(start_hour) // HOURS_PER_WEEK, int(end_hour) // HOURS_PER_WEEK)


@contextmanager
def a_walk(root: Path, tenants: int = TENANTS) -> Iterator[Walk]:
    """A new federation, closed in the end."""
    walk = Walk.founded(root, tenants)
    try:
        yield walk
    finally:
        walk.close()
