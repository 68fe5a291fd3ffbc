"""What the next round lacks: each lack by itself, from a federation that lacks nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from federation.protocol.refusals import Refused, Rule
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.readiness import Known, Lack, Refusal, What, lacking
from tests.support.changing import replace
from tests.support.factories import SETTINGS, TENANTS, WEEK, a_lease, a_plan, all_leases, keys

HELD = {lease.tenant: set(lease.labels.values()) for lease in all_leases()}
NAMES = {keys().tenant_id(number): f"lab-{number}" for number in range(TENANTS)}
DIRECTORY = keys().directory
UP = {trustee.index: True for trustee in DIRECTORY.trustees}
WHOLE = Known(
    PlanSettings(**SETTINGS),
    DIRECTORY,
    NAMES,
    WEEK,
    due_hour=WEEK[1] + 24,
    now_hour=WEEK[1] + 24,
    leases=all_leases(),
    owned={tenant: {lease.labels[name] for lease in all_leases() for name in lease.labels} for tenant in HELD},
    up=UP,
    connected=frozenset(NAMES),
    certificate_days_left=100.0,
)


def plan(**changes: Any) -> PlanSettings:
    return replace(WHOLE.settings, **changes)


def refused(rule: Rule | None, limit: float | None, many: int, name: str = "PlanRefused") -> list[Refusal]:
    return [Refusal(keys().tenant_id(number), Refused(name, rule, limit), WEEK) for number in range(many)]


def one_lack(known: Known) -> Lack:
    (lack,) = lacking(known)
    return lack


def test_nothing_is_lacking() -> None:
    assert lacking(WHOLE) == ()


def test_too_few_tenants_for_a_cohort_and_for_owners() -> None:
    lack = one_lack(replace(WHOLE, settings=plan(cohort_minimum=10, noise_shares=5), connected=None))
    assert (lack.what, lack.have, lack.need, lack.urgent) == (What.COHORT, 5, 10, True)
    assert "enrol 5 more" in lack.do
    few = lacking(replace(WHOLE, settings=plan(owners_minimum=6)))
    assert (few[0].what, few[0].have, few[0].need) == (What.OWNERS, 5, 6)
    assert str(few[0]).startswith("tenants enrolled for owners_minimum: 5 of 6: enrol 1 more, or run a pilot")


def test_a_pilot_that_lacks_tenants_is_not_told_to_run_a_pilot() -> None:
    two = replace(DIRECTORY, by_id={one: DIRECTORY.by_id[one] for one in list(DIRECTORY.by_id)[:2]})
    pilot = plan(owners_minimum=3, cohort_minimum=3, noise_shares=1)
    lacks = lacking(replace(WHOLE, settings=pilot, directory=two, connected=None))
    assert [lack.do for lack in lacks if lack.what in (What.COHORT, What.OWNERS)] == ["enrol 1 more"] * 2


def test_those_who_are_not_connected_are_named_and_urgent_once_the_round_is_due() -> None:
    two = frozenset(keys().tenant_id(number) for number in (0, 1))
    lack = one_lack(replace(WHOLE, connected=two))
    assert (lack.what, lack.have, lack.need, lack.who) == (What.CONNECTED, 2, 3, ("lab-2", "lab-3", "lab-4"))
    assert lack.urgent
    before = lacking(replace(WHOLE, connected=two, now_hour=100.0))
    assert {(one.what, one.urgent) for one in before} == {(What.CONNECTED, False), (What.WINDOW, False)}
    three = frozenset(keys().tenant_id(number) for number in (0, 1, 2))
    assert lacking(replace(WHOLE, connected=three)) == ()  # a cohort is enough


def test_a_trustee_that_does_not_answer_is_named_with_its_address() -> None:
    last = DIRECTORY.trustees[-1]
    lack = one_lack(replace(WHOLE, up={**UP, last.index: False}))
    assert (lack.what, lack.have, lack.need) == (What.ANSWERING, len(UP) - 1, len(UP))
    assert lack.who == (f"trustee {last.index} at {last.address}",)


def test_trustees_that_no_round_needs_may_be_away() -> None:
    idle = DIRECTORY.trustees[:-3][: len(UP) - DIRECTORY.quorum]
    assert lacking(replace(WHOLE, up={**UP, **{one.index: False for one in idle}})) == ()


def test_mask_keys_of_another_epoch() -> None:
    earlier = a_plan()
    assert lacking(replace(WHOLE, plans=[earlier])) == ()  # of this epoch
    lack = one_lack(replace(WHOLE, plans=[replace(earlier, epoch=7)]))
    assert (lack.what, lack.have, lack.need) == (What.MASK_KEYS, 0, 3)
    assert "renew-mask-key" in lack.do


def test_tenants_that_refuse_are_named_with_the_rule_while_it_holds() -> None:
    lack = one_lack(replace(WHOLE, refusals=refused(Rule.OWNERS, 5, 4)))
    assert (lack.what, lack.have, lack.need) == (What.ACCEPTING, 1, 3)
    assert lack.who == ("lab-0", "lab-1", "lab-2", "lab-3")
    assert "owners_minimum 3 is below their policy's 5" in lack.do
    assert lacking(replace(WHOLE, refusals=refused(Rule.OWNERS, 5, 2))) == ()  # three accept
    assert lacking(replace(WHOLE, refusals=refused(Rule.OWNERS, 3, 4))) == ()  # the plan was changed meanwhile
    above = one_lack(replace(WHOLE, refusals=refused(Rule.EPSILON, 0.5, 3)))
    assert "epsilon_per_window 1 is above their policy's 0.5" in above.do


def test_tenants_of_a_version_that_is_too_far_are_named_and_urgent_where_the_others_are_too_few() -> None:
    lack = one_lack(replace(WHOLE, refusals=refused(Rule.PROTOCOL, 99, 2, "VersionsApart")))
    assert (lack.what, lack.have, lack.need, lack.who) == (What.VERSION, 3, 5, ("lab-0", "lab-1"))
    assert "they speak protocol 99" in lack.do
    assert not lack.urgent
    assert one_lack(replace(WHOLE, refusals=refused(Rule.PROTOCOL, 99, 3, "VersionsApart"))).urgent


@pytest.mark.parametrize(
    ("refusals", "text"),
    [
        (refused(None, None, 3, "BudgetExceeded"), "their privacy budget for these weeks is used up"),
        (refused(Rule.CLOCK, None, 3), "the window is not over by their clocks"),
    ],
)
def test_budgets_and_clocks_of_tenants_are_of_one_window(refusals: list[Refusal], text: str) -> None:
    assert text in one_lack(replace(WHOLE, refusals=refusals)).do
    assert lacking(replace(WHOLE, refusals=[replace(one, window=(168, 336)) for one in refusals])) == ()


def test_no_leases_no_common_context_and_no_common_workload() -> None:
    lack = one_lack(replace(WHOLE, leases=[a_lease(0, 0), a_lease(1, 0)]))
    assert (lack.what, lack.have, lack.need, lack.who) == (What.LEASES, 2, 3, ("lab-2", "lab-3", "lab-4"))
    apart = one_lack(replace(WHOLE, leases=[a_lease(number, 0, 0, context=number) for number in range(TENANTS)]))
    assert (apart.what, apart.have, apart.need) == (What.CONTEXTS, 1, 3)
    silent = [
        replace(lease, labels={k: v for k, v in lease.labels.items() if "context" in k}) for lease in all_leases()
    ]
    work = one_lack(replace(WHOLE, leases=silent))
    assert (work.what, work.have, work.need, work.who) == (What.WORKLOADS, 0, 3, tuple(sorted(NAMES.values())))
    assert lacking(replace(WHOLE, leases=silent, owned=None)) == ()  # nobody was asked yet


def test_a_tenant_that_left_counts_for_nothing() -> None:
    stranger = replace(a_lease(0, 9), tenant=type(keys().tenant_id(0))(bytes(16)))
    lack = one_lack(replace(WHOLE, leases=[a_lease(0, 0), a_lease(1, 0), stranger]))
    assert (lack.what, lack.have) == (What.LEASES, 2)


@pytest.mark.parametrize(
    ("changed", "what", "text"),
    [
        (lambda: replace(WHOLE, now_hour=100.0), What.WINDOW, "the next is due on 1970-01-09 UTC"),
        (lambda: replace(WHOLE, certificate_days_left=-0.5), What.CERTIFICATE, "renew-certificate"),
        (lambda: replace(WHOLE, recorded_hour=1000.0), What.CLOCK, "the store knows of 1970-02-11 16:00"),
    ],
)
def test_the_window_the_certificate_and_the_clock(changed: Callable[[], Known], what: What, text: str) -> None:
    lack = one_lack(changed())
    assert (lack.what, lack.urgent) == (what, what is not What.WINDOW)
    assert text in lack.do


def test_what_somebody_must_act_on_comes_first() -> None:
    found = lacking(replace(WHOLE, now_hour=100.0, certificate_days_left=0.0, leases=[]))
    assert [one.urgent for one in found] == sorted((one.urgent for one in found), reverse=True)
    assert {one.what for one in found} == {What.CERTIFICATE, What.LEASES, What.WINDOW}
