"""What happens in a soak, week by week: every chapter breaks something before or during a round, and mends it.

A chapter is a generator. It runs up to its `yield` before the week's round is due, and goes on when it is; whatever it
breaks it mends before it ends. `MUST` are the alerts that have to fire meanwhile, `MAY` those that may.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests import needs
from tests.soak.federation import Soaked
from tests.support import postgres
from tests.support.versions import Installed

Story = Iterator[None]
HOURS = 3600
WAITED_S = 60.0  # a round has been tried, and its provider has looked at its nodes after it
LOOKED_S = 20.0  # the provider looks at what the next round lacks every fifteen seconds
RENEWED_IN_WEEK = 27  # two weeks before certificates of CERTIFICATE_DAYS end
WAITING = ("PharoahRoundWaiting", "PharoahReleaseOverdue")
AWAY = ("PharoahProviderDown", *WAITING)


@dataclass(frozen=True)
class Chapter:
    """One week's events, and the alerts that must and that may fire from its beginning to the next week's end."""

    title: str
    tell: Callable[[Soaked], Story]
    must: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    needs_disk: str = ""


@dataclass
class Book:
    """Chapters in the order in which they are told; then programs are killed at random, in every other week."""

    later: Installed
    stack: ExitStack
    chance: random.Random = field(default_factory=lambda: random.Random(31))

    def chapters(self, soaked: Soaked) -> Iterator[Chapter]:
        """One for each week, without end."""
        told = iter([one for one in self._told() if not one.needs_disk or one.needs_disk in soaked.disks])
        renewed = False
        while True:
            if soaked.is_last_of_epoch and renewed:
                yield KEYS
            elif soaked.is_last_of_epoch:
                yield QUIET
                renewed = True
                yield KEYS_LATE
            elif soaked.week == RENEWED_IN_WEEK:
                yield CERTIFICATES
            elif soaked.week % 2 == 0:
                yield QUIET
            else:
                yield next(told, Chapter("a program is killed", self._kill_any, may=AWAY))

    def _told(self) -> list[Chapter]:
        week = Chapter
        few = ("PharoahFewNodes",)  # it takes their time for wrong
        away = ("PharoahTrusteeAway", "PharoahRoundWaiting", "PharoahRoundLacking", "PharoahReleaseOverdue")
        more = ("PharoahRoundLacking", "PharoahTrusteeAway", *AWAY)
        return [
            week("the provider is killed during the round", self._kill_provider, may=AWAY),
            week("a quarter of the tenants is killed during the round", self._kill_tenants, may=WAITING),
            week("a trustee is away for four days", trustee_away, away),
            week("the provider is down for two days", provider_down, ("PharoahProviderDown",), WAITING),
            week("the store moves to PostgreSQL", self._postgres, may=AWAY),
            week("a tenant's disk is full", full("tenant-3"), may=WAITING, needs_disk="tenant-3"),
            week("the provider's disk is full", full("provider"), may=more, needs_disk="provider"),
            week("a trustee's disk is full", full("trustee-2"), may=more, needs_disk="trustee-2"),
            week("a tenant's clock is two days ahead", odd_clock("tenant-5", 48 * HOURS), may=WAITING),
            week("the provider's clock is an hour ahead, and steps back", odd_clock("provider", HOURS), few, AWAY),
            week("a trustee's clock is a day behind", odd_clock("trustee-2", -24 * HOURS), may=WAITING),
            week("a trustee is lost, and replaced", successor, may=("PharoahTrusteeAway", *WAITING)),
            week("a trustee is upgraded", upgraded(self.later, "trustee-2"), may=WAITING),
            week("the provider is upgraded", upgraded(self.later, "provider"), may=AWAY),
            week("half of the tenants are upgraded", self._upgrade_half, may=WAITING),
            week("the others are upgraded", self._upgrade_all, may=WAITING),
        ]

    def _kill_provider(self, soaked: Soaked) -> Story:
        yield
        soaked.live(self.chance.uniform(0.0, 8.0))
        soaked.kill("provider")
        soaked.start("provider")

    def _kill_tenants(self, soaked: Soaked) -> Story:
        tenants = [home.name for home in soaked.places.tenant_homes]
        yield
        soaked.live(self.chance.uniform(0.0, 8.0))
        killed = self.chance.sample(tenants, max(1, len(tenants) // 4))
        soaked.kill(*killed)
        soaked.start(*killed)

    def _kill_any(self, soaked: Soaked) -> Story:
        yield
        soaked.live(self.chance.uniform(0.0, 8.0))
        name = self.chance.choice([*soaked.trustees, "provider", *(home.name for home in soaked.places.tenant_homes)])
        soaked.kill(name)
        soaked.start(name)

    def _postgres(self, soaked: Soaked) -> Story:
        server = self.stack.enter_context(postgres.running(needs.program("postgres").parent))
        soaked.stop("provider")
        soaked.use_database(server.new_place())
        soaked.call("provider", "rounds move-store")
        soaked.start("provider")
        yield

    def _upgrade_half(self, soaked: Soaked) -> Story:
        tenants = [home.name for home in soaked.places.tenant_homes]
        soaked.upgrade(self.later, *tenants[: len(tenants) // 2])
        yield

    def _upgrade_all(self, soaked: Soaked) -> Story:
        tenants = [home.name for home in soaked.places.tenant_homes]
        soaked.upgrade(self.later, *tenants[len(tenants) // 2 :], *soaked.trustees)
        yield


def quiet(soaked: Soaked) -> Story:
    """Nothing is broken."""
    yield


def trustee_away(soaked: Soaked) -> Story:
    """A trustee that masks: the round waits for it."""
    soaked.kill("trustee-3")
    yield
    soaked.live(WAITED_S)
    soaked.days(4)
    soaked.start("trustee-3")


def provider_down(soaked: Soaked) -> Story:
    """It is killed when the round is due, and stays down."""
    yield
    soaked.kill("provider")
    soaked.days(2)
    soaked.start("provider")


def full(name: str) -> Callable[[Soaked], Story]:
    """A disk has no room for the whole round, and for a day after it."""

    def tell(soaked: Soaked) -> Story:
        with soaked.full(name):
            yield
            soaked.live(WAITED_S)
            soaked.days(1)

    return tell


def odd_clock(name: str, wrong_s: int) -> Callable[[Soaked], Story]:
    """A clock is wrong while the round is due, and right again a while later."""

    def tell(soaked: Soaked) -> Story:
        soaked.clocks.step(name, wrong_s)
        yield
        soaked.live(15.0)
        soaked.clocks.step(name, 0)

    return tell


def upgraded(version: Installed, *names: str) -> Callable[[Soaked], Story]:
    """Programs are of another version from now on."""

    def tell(soaked: Soaked) -> Story:
        soaked.upgrade(version, *names)
        yield

    return tell


def successor(soaked: Soaked) -> Story:
    """A trustee's machine burns; a successor takes its seat (docs/operate.md)."""
    root, lost, new = soaked.places.root, "trustee-1", "trustee-4"
    soaked.kill(lost)
    shutil.rmtree(root / lost)
    staying = [name for name in soaked.trustees if name != lost]
    soaked.call(new, "init", "--address", f"{soaked.places.host}:{soaked.free_port()}")
    soaked.trustees = [*staying, new]
    committee = root / "committee-before"
    shutil.copyfile(root / staying[0] / "committee", committee)
    _hand_over(soaked, staying, {new: ("--committee", str(committee))})
    soaked.call("provider", "tenants enrol", "--out", root / "invitation-after")
    soaked.call(new, "join", root / "invitation-after")
    del soaked.programs[lost]
    soaked.start(new)
    yield


def renewal(soaked: Soaked) -> Story:
    """The week's round is released, and then all trustees hand over to new mask keys."""
    yield
    assert soaked.released(), "the last round of an epoch was not released"
    _renew_mask_keys(soaked)


def renewal_late(soaked: Soaked) -> Story:
    """The first round of the new epoch has been due for a day when the trustees do it."""
    yield
    soaked.live(LOOKED_S)
    soaked.days(1)
    _renew_mask_keys(soaked)


def _renew_mask_keys(soaked: Soaked) -> None:
    for name in soaked.trustees:
        soaked.call(name, "keys renew-mask-key")
    _hand_over(soaked, soaked.trustees, {})


def certificates(soaked: Soaked) -> Story:
    """Provider and trustees renew their certificates, two weeks before these end."""
    for name in (*soaked.trustees, "provider"):
        soaked.call(name, "renew-certificate" if name == "provider" else "keys renew-certificate")
        soaked.restart(name)
    yield


def _hand_over(soaked: Soaked, giving: list[str], taking: dict[str, tuple[str, ...]]) -> None:
    """Those who give deal their shares anew for all seats; all take, and the provider reseats."""
    root = soaked.places.root
    cards = [str(root / name / "trustee.card") for name in soaked.trustees]
    handovers = [str(root / f"{soaked.week}-{name}.handover") for name in giving]
    for name, handover in zip(giving, handovers, strict=True):
        soaked.call(name, "handover give", "--out", handover, *cards)
    for name in soaked.trustees:
        soaked.call(name, "handover take", *taking.get(name, ()), *cards, *handovers)
    soaked.restart(*giving)
    soaked.call("provider", "trustees reseat", "--committee", root / giving[0] / "next.committee", *handovers)


QUIET = Chapter("nothing is broken", quiet)
KEYS = Chapter("an epoch ends, and mask keys are renewed", renewal)
KEYS_LATE = Chapter(
    "mask keys are renewed a day after the new epoch's first round was due",
    renewal_late,
    ("PharoahRoundWaiting", "PharoahRoundLacking"),
)
CERTIFICATES = Chapter("certificates are renewed", certificates, may=AWAY)
