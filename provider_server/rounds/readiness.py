"""What the next round lacks, by name: all that can be known before it is tried. Pure.

A lack says what, how many of how many, who, and what to do. `urgent` ones stay until somebody acts; time may mend
others, until the window is over. What tenants run is known once they were asked: before the first round of an epoch no
lack of workloads is claimed. Trustees are always enough: no directory is founded with fewer than sign and mask.

Not promised: that a round without lacks is released. A tenant may refuse for a reason of its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from crypto.ids import TenantId
from federation.base.clock import date
from federation.protocol.directory import Directory
from federation.protocol.plan import PILOT_COHORT, PILOT_OWNERS, Plan
from federation.protocol.refusals import Refused, Rule
from federation.protocol.round_messages import LADDER_LABELS
from federation.protocol.seats import MASK_SEATS
from provider_server.fleet.leases import Lease
from provider_server.rounds.planning import PlanSettings, rows
from provider_server.rounds.provider import as_owned
from provider_server.rounds.schedule import Window


class What(StrEnum):
    """What may be lacking."""

    COHORT = "tenants enrolled for cohort_minimum"
    OWNERS = "tenants enrolled for owners_minimum"
    CONNECTED = "tenants connected"
    ACCEPTING = "tenants that accept the plan"
    VERSION = "tenants of a version that this provider reads"
    LEASES = "tenants with leases"
    CONTEXTS = "tenants on one hardware group"
    WORKLOADS = "tenants that run one workload"
    ANSWERING = "trustees that answer"
    MASK_KEYS = "new mask keys for this epoch"
    WINDOW = "a window that is over"
    CLOCK = "a right clock"
    CERTIFICATE = "a valid TLS certificate"


@dataclass(frozen=True)
class Lack:
    """One thing that is lacking: `have` of `need`, because of `who`, and what to `do`."""

    what: What
    have: int
    need: int
    who: tuple[str, ...]
    do: str
    urgent: bool = True

    def __str__(self) -> str:
        who = f" ({', '.join(self.who)})" if self.who else ""
        many = f": {self.have} of {self.need}" if self.need > 1 else ""
        return f"{self.what}{many}{who}: {self.do}"


@dataclass(frozen=True)
class Refusal:
    """A tenant's refusal in the round over `window`."""

    tenant: TenantId
    refused: Refused
    window: Window


@dataclass(frozen=True)
class Known:
    """What is known before a round over `window`, which is due at `due_hour`.

    `leases` are those of the epoch so far, `owned` the tokens that tenants said they own in it. `up` says of trustees
    that were looked at whether they answered, `connected` which tenants' nodes are; None: nobody looked.
    `recorded_hour` is the latest hour that is known to have passed.
    """

    settings: PlanSettings
    directory: Directory
    names: Mapping[TenantId, str]
    window: Window
    due_hour: float
    now_hour: float
    recorded_hour: float = 0.0
    leases: Sequence[Lease] = ()
    owned: Mapping[TenantId, set[str]] | None = None
    plans: Sequence[Plan] = ()
    up: Mapping[int, bool] | None = None
    connected: frozenset[TenantId] | None = None
    refusals: Sequence[Refusal] = ()
    certificate_days_left: float | None = None

    def called(self, tenants: Iterable[TenantId]) -> tuple[str, ...]:
        """Their names, sorted."""
        return tuple(sorted(self.names.get(one, str(one)[:12]) for one in tenants))

    @property
    def is_over(self) -> bool:
        """Whether the round is due: what it lacks now is not brought by time."""
        return self.now_hour >= self.due_hour


def lacking(known: Known) -> tuple[Lack, ...]:
    """Everything that the next round lacks, what somebody must act on first."""
    found = [*_members(known), *_trustees(known), *_refusals(known), *_host(known), *_work(known), *_window(known)]
    return tuple(sorted(found, key=lambda lack: not lack.urgent))


def _members(known: Known) -> Iterator[Lack]:
    plan, members = known.settings, set(known.directory.by_id)
    have = len(members)
    for what, name, need, least in (
        (What.COHORT, "cohort_minimum", plan.cohort_minimum, PILOT_COHORT),
        (What.OWNERS, "owners_minimum", plan.owners_minimum, PILOT_OWNERS),
    ):
        if have < need:
            lower = f", or run a pilot: `pharoah-provider rounds pilot` lowers {name}" if need > least else ""
            yield Lack(what, have, need, (), f"enrol {need - have} more{lower}")
    if known.connected is not None and len(members & known.connected) < plan.cohort_minimum:
        away = members - known.connected
        do = "each runs `pharoah-tenant serve`; its log names the cause if it is refused"
        have -= len(away)
        yield Lack(What.CONNECTED, have, plan.cohort_minimum, known.called(away), do, urgent=known.is_over)


def _trustees(known: Known) -> Iterator[Lack]:
    trustees, quorum = known.directory.trustees, known.directory.quorum
    masking = trustees[-MASK_SEATS:]
    if known.up is not None:
        down = [one for one in trustees if known.up.get(one.index) is False]
        if len(trustees) - len(down) < quorum or any(one in down for one in masking):
            who = tuple(f"trustee {one.index} at {one.address}" for one in down)
            do = "their owners run `pharoah-trustee serve`; compare the address with the card"
            yield Lack(What.ANSWERING, len(trustees) - len(down), len(trustees), who, do)
    epoch = known.directory.epoch(known.window[0])
    served = {one.mask_key for plan in known.plans if plan.epoch != epoch for one in plan.trustees}
    if old := [one for one in masking if one.mask_key in served]:
        who = tuple(f"trustee {one.index}" for one in old)
        do = "each runs `pharoah-trustee keys renew-mask-key`, all hand over, then `pharoah-provider trustees reseat`"
        yield Lack(What.MASK_KEYS, len(masking) - len(old), len(masking), who, do)


def _refusals(known: Known) -> Iterator[Lack]:
    """Those of the last round that the next one would meet again: by rule, with the tenants.

    Of a version that is too old or too new they are named even where the others are enough.
    """
    by_text: dict[tuple[What, str], set[TenantId]] = {}
    for one in known.refusals:
        if one.tenant in known.directory.by_id and (text := _again(one, known)):
            what = What.VERSION if one.refused.rule is Rule.PROTOCOL else What.ACCEPTING
            by_text.setdefault((what, text), set()).add(one.tenant)
    members, need = len(known.directory.by_id), known.settings.cohort_minimum
    is_enough = members - len({tenant for who in by_text.values() for tenant in who}) >= need
    for (what, text), who in by_text.items():
        if what is What.VERSION:
            yield Lack(what, members - len(who), members, known.called(who), text, urgent=not is_enough)
        elif not is_enough:
            yield Lack(what, members - len(who), need, known.called(who), f"refused: {text}; {_REMEDY}")


_REMEDY = "change [plan] in provider.toml, or the owners of these tenants allow it in policy.toml"
_OF_THE_WINDOW = (Rule.CLOCK, None)  # of budgets and clocks nothing is known for another window


def _again(one: Refusal, known: Known) -> str:
    is_past = one.refused.rule in _OF_THE_WINDOW and one.window != known.window
    return "" if is_past else one.refused.about(known.settings)


def _host(known: Known) -> Iterator[Lack]:
    if known.certificate_days_left is not None and known.certificate_days_left <= 0:
        do = "run `pharoah-provider renew-certificate`, then restart `serve`"
        yield Lack(What.CERTIFICATE, 0, 1, (), do)
    if known.now_hour < known.recorded_hour:
        do = f"this clock shows {date(known.now_hour)}, and the store knows of {date(known.recorded_hour)}: set it"
        yield Lack(What.CLOCK, 0, 1, (), do)


def _work(known: Known) -> Iterator[Lack]:
    """Leases, and what runs on them: the first of these that is missing, since the others follow from it."""
    need, members = known.settings.owners_minimum, set(known.directory.by_id)
    holding = {lease.tenant for lease in known.leases} & members
    if len(holding) < need:
        do = "record leases of this epoch: `pharoah-provider leases record`, or `leases slurm`"
        yield Lack(What.LEASES, len(holding), need, known.called(members - holding), do, urgent=known.is_over)
        return
    leases = [lease for lease in known.leases if lease.tenant in members]
    if not rows(leases, ("context",), need):
        do = "name hardware groups so that several tenants share one, or wait for more leases"
        yield Lack(What.CONTEXTS, _most(leases, ("context",)), need, (), do, urgent=known.is_over)
        return
    if known.owned is None:
        return
    owned = [as_owned(lease, dict(known.owned)) for lease in leases]
    if not rows(owned, LADDER_LABELS, need):
        silent = {lease.tenant for lease in owned if not any(lease.labels.get(rung) for rung in LADDER_LABELS)}
        do = "they run jobs behind `pharoah-tenant run` and `pharoah-tenant serve`; the next try asks them again"
        have = _most(owned, LADDER_LABELS)
        yield Lack(What.WORKLOADS, have, need, known.called(silent), do, urgent=known.is_over)


def _most(leases: Sequence[Lease], rungs: Sequence[str]) -> int:
    """How many tenants share the token that most of them have."""
    owners: dict[str, set[TenantId]] = {}
    for lease in leases:
        for token in (token for rung in rungs for token in lease.tokens(rung)):
            owners.setdefault(token, set()).add(lease.tenant)
    return max(map(len, owners.values()), default=0)


def _window(known: Known) -> Iterator[Lack]:
    if known.now_hour < known.due_hour:
        do = f"the next is due on {date(known.due_hour)} UTC; `pharoah-provider rounds hold` counts the last one now"
        yield Lack(What.WINDOW, 0, 1, (), do, urgent=False)
