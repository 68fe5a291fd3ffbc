"""The provider's state for `status`: its federation, whether it serves, the window due, the last round and its cost.

Only reads the home and the store.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from crypto.signing import reopened
from federation.base.clock import SECONDS_PER_HOUR, date, dates
from federation.base.key_files import HomeError, read
from federation.base.visible import counted_as
from federation.protocol.directory import Chain, DirectoryEntry
from federation.protocol.plan import Plan
from federation.protocol.privacy_cost import plan_loss
from federation.protocol.warnings import Verdict
from federation.transport.certificates import EXPIRES_SOON_D, days_left
from provider_server.rounds.home import CONTROL, founded
from provider_server.rounds.looking import look
from provider_server.rounds.readiness import Lack, lacking
from provider_server.rounds.schedule import Window
from provider_server.rounds.settings import ProviderSettings
from provider_server.rounds.store.round_store import ENDED
from provider_server.rounds.store.store import Store
from provider_server.rounds.warned import verdict


@dataclass(frozen=True)
class LastRound:
    """The newest round: its window, its state, and its privacy cost per unit."""

    round_id: str
    start_hour: int
    end_hour: int
    state: str
    contributions: int
    epsilon: float
    delta: float


@dataclass(frozen=True)
class TrusteeState:
    """A trustee, and whether its address answers now; None for one without an address, as in a simulation."""

    index: int
    address: str
    up: bool | None


@dataclass(frozen=True)
class ProviderStatus:
    """The provider's state. A window is due if `serve` would hold it now; `bundle` is the newest one's number.

    `next_due` is when the next round is, `lacking` what it lacks, first what somebody must act on. In a `pilot` the
    minimums are below the defaults. `warnings` is what tenants' sums say of them.
    """

    version: int
    home: str
    serving: bool
    tenants: int
    pilot: bool
    trustees: int
    threshold: int
    trustee_states: tuple[TrusteeState, ...]
    rounds: int
    last_round: LastRound | None
    due_window: Window | None
    next_due: str
    lacking: tuple[Lack, ...]
    releases: int
    bundle: int | None
    certificate_days_left: float | None
    attention: tuple[str, ...]
    warnings: Verdict | None = None

    @property
    def exit_code(self) -> int:
        """0: nothing to do. 1: something needs attention."""
        return 1 if self.attention else 0


def status(home: Path, store: Store, settings: ProviderSettings, now: datetime) -> ProviderStatus:
    """The state of a provider; HomeError where there is none."""
    founded(home)
    entries = store.entries()
    if not entries:
        raise HomeError("the database contains no directory", hint="found a federation: `pharoah-provider init`")
    directory = Chain.begin(entries[0], reopened(DirectoryEntry, entries[0]).provider).extended(entries[1:]).directory
    kept, now_hour = store.rounds.rounds(), now.timestamp() / SECONDS_PER_HOUR
    plans = [reopened(Plan, one.signed_plan) for one in kept]
    last: LastRound | None = None
    if kept:
        plan, newest = plans[-1], kept[-1]
        released = store.newest_release()
        if released is not None and released.plan.round_id == plan.round_id:
            contributors = released.contributors
        else:
            contributors = len(store.rounds.contributors(newest.round_id))
        epsilon = plan_loss(plan).at(plan.delta)
        last = LastRound(
            str(plan.round_id), plan.start_hour, plan.end_hour, newest.state, contributors, epsilon, plan.delta
        )
    certificate = home / "tls.pem"
    days = days_left(read(certificate), now) if certificate.exists() else None
    serving, bundle, releases = is_serving(home), store.newest_bundle(), store.releases()
    known = look(home, store, directory, settings, now_hour)
    lacks, up, waits = lacking(known), known.up or {}, known.window if known.is_over else None
    return ProviderStatus(
        version=1,
        home=str(home),
        serving=serving,
        tenants=len(directory.members),
        pilot=settings.plan.is_pilot,
        trustees=len(directory.trustees),
        threshold=directory.threshold,
        trustee_states=tuple(TrusteeState(one.index, one.address, up.get(one.index)) for one in directory.trustees),
        rounds=len(kept),
        last_round=last,
        due_window=waits,
        next_due=date(known.due_hour),
        lacking=lacks,
        releases=len(releases),
        bundle=None if bundle is None else bundle[0],
        certificate_days_left=days,
        attention=tuple(_attention(last, waits, days, lacks, serving=serving, tenants=len(directory.members))),
        warnings=verdict(releases),
    )


def _attention(
    last: LastRound | None,
    waits: Window | None,
    days: float | None,
    lacks: Sequence[Lack],
    *,
    serving: bool,
    tenants: int,
) -> list[str]:
    texts = []
    if not tenants:
        texts.append("no tenant is enrolled: run `pharoah-provider tenants enrol`")
    if tenants and any(lack.urgent for lack in lacks):
        texts.append("no round can succeed before what is lacking is there")
    if waits and tenants and not serving:
        texts.append(f"the round of {dates(*waits)} is due: run `pharoah-provider serve`")
    if last and last.state not in ENDED:
        texts.append(f"round {last.round_id[:12]} is {last.state}: run `pharoah-provider rounds hold` to continue it")
    if days is not None and 0 < days < EXPIRES_SOON_D:
        end = f"expires in {counted_as(round(days), 'day')}"
        texts.append(f"the TLS certificate {end}: run `pharoah-provider renew-certificate`")
    return texts


def is_serving(home: Path) -> bool:
    """Whether a provider runs on this home, for this account."""
    with socket.socket(socket.AF_UNIX) as control:
        try:
            control.connect(str(home / CONTROL))
        except OSError:
            return False
    return True
