"""What a tenant refuses: each limit holds at its value, gives way nowhere beyond it, and says so."""

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import fields
from scipy.stats import nbinom

from crypto.errors import PlanRefused
from crypto.masking import MaskKey
from federation.base.clock import date
from federation.protocol.directory import Directory
from federation.protocol.plan import (
    HOURS_PER_WEEK,
    MaskTrustee,
    Mechanism,
    NoiseLayers,
    Plan,
    PlanDimension,
)
from federation.protocol.privacy_cost import plan_loss
from provider_server.rounds.planning import MarginalSpec
from tenant_client.rounds.policy import CLOCKS_DIFFER_H, Policy, PolicyError, check_plan, load_policy
from tests.support.changing import replace
from tests.support.factories import (
    COHORT,
    POLICY,
    TENANTS,
    WEEKS_PER_EPOCH,
    a_plan,
    keys,
    mask_trustees,
)

LENIENT = "the provider must change the plan; relax policy.toml only if the owner of the data agrees"
PILOT = "; if its owner agreed to a pilot: `pharoah-tenant join --pilot INVITATION`"
PLAN = a_plan()
NOW = 1000.0 * HOURS_PER_WEEK  # by then all windows are over but the one that is not
STRANGE_KEY = MaskKey(bytes(32)).public


def noise_scaled(plan: Plan, factor: float) -> Plan:
    return replace(plan, marginals=tuple(replace(m, noise_scale=factor * m.noise_scale) for m in plan.marginals))


def owned(plan: Plan, owners: int) -> Plan:
    """The last row of the first dimension has that many owners."""
    first, *rest = plan.dimensions
    return replace(plan, dimensions=(replace(first, owners=(*first.owners[:-1], owners)), *rest))


def counted_by(plan: Plan, name: str) -> Plan:
    return replace(plan, dimensions=(*plan.dimensions, PlanDimension(name, ("east", "west"), ())))


def masked_by(*trustees: MaskTrustee) -> Plan:
    return replace(PLAN, trustees=trustees)


def foreign_key(trustee: MaskTrustee) -> MaskTrustee:
    return replace(trustee, mask_key=STRANGE_KEY)


def in_week(week: int) -> Plan:
    """The plan for a later week, under the epoch and the windows that it has to name."""
    start = week * HOURS_PER_WEEK
    return a_plan(window=(start, start + HOURS_PER_WEEK))


def cut(*edges: int) -> Plan:
    """The plan for the first window of an epoch that has these."""
    return replace(PLAN, end_hour=edges[1], windows=edges)


def checked(
    plan: Plan,
    policy: Policy = POLICY,
    directory: Directory | None = None,
    now_hour: float = NOW,
    members_seen: int = TENANTS,
) -> None:
    check_plan(plan, policy, directory or keys().directory, now_hour, members_seen)


# (what is refused, the change of policy that would allow it or None, what the refusal says, what it advises)
REFUSED: Mapping[str, tuple[Plan, Mapping[str, Any] | None, str, str]] = {
    "too little noise": (
        noise_scaled(PLAN, 1 - 1e-5),
        None,
        "it says epsilon 1 and its noise gives 1.00000",
        "the provider must raise the noise scales",
    ),
    "epsilon": (
        a_plan(epsilon=1.001),
        {"epsilon_per_window": 1.001},
        "epsilon 1.001 is above the policy's 1",
        LENIENT,
    ),
    "delta": (a_plan(delta=1.1e-8), {"delta": 1.1e-8}, "delta 1.1e-08 is above the policy's 1e-08", LENIENT),
    "rare row": (
        owned(PLAN, 2),
        {"owners_minimum": 2},
        f"row workload: {PLAN.dimensions[0].levels[-1]} has 2 owners, the policy wants 3",
        "the provider must merge rows of too few tenants into coarser ones" + PILOT,
    ),
    "owners promised": (
        a_plan(owners_minimum=2),
        {"owners_minimum": 2},
        "it promises 2 owners per row, the policy wants 3",
        "trustees hold the provider to the number in the plan; it must be raised there" + PILOT,
    ),
    "epoch": (
        replace(PLAN, epoch=1),
        None,
        "it names epoch 1, and its windows lie in epoch 0 of the directory",
        "the provider must name the epoch of the window; owners are counted by epoch",
    ),
    "window": (
        cut(0, 168, 335, 503),
        {"window_hours_minimum": 167},
        "a window of its epoch has 167 hours, the policy wants 168",
        "a lease pays in every window that it is in; the provider must make the windows longer",
    ),
    "not over": (
        in_week(1000),
        None,
        "its window ends on 1989-03-09, and by the clock here it is 1989-03-02 UTC",
        "a window is counted after its end; if that has passed, compare the clocks of provider and tenant",
    ),
    "cohort": (
        a_plan(cohort_minimum=COHORT - 1, noise_shares=1),
        {"cohort_minimum": COHORT - 1},
        "its cohort minimum 2 is below the policy's 3",
        LENIENT + PILOT,
    ),
    "colluders": (
        a_plan(noise_shares=3),
        {"colluding_share": 0.0},
        "its noise is complete only with 3 honest tenants of 3",
        "the provider must lower noise_shares, which raises each tenant's noise",
    ),
    "few trustees": (
        masked_by(*mask_trustees()[:2]),
        {"mask_trustees_minimum": 2},
        "it has 2 mask trustees, the policy asks for 3",
        LENIENT,
    ),
    "trustee with another key": (
        masked_by(foreign_key(mask_trustees()[0]), *mask_trustees()[1:]),
        None,
        "trustees [3] are not in the directory with these keys",
        "compare the directories",
    ),
    "failures": (
        a_plan(failures_per_unit=2),
        {"failures_per_unit_maximum": 2},
        "it counts 2 failures of a lease in a window, above the policy's 1",
        LENIENT,
    ),
    "dimension": (
        counted_by(PLAN, "region"),
        {"dimensions": (*POLICY.dimensions, "region")},
        "it counts by ['region'], which the policy does not list",
        LENIENT,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_is_wrong_with_which_plan_and_what_to_do(name: str) -> None:
    plan, _, reason, hint = REFUSED[name]
    with pytest.raises(PlanRefused) as refusal:
        checked(plan)
    fact, advice = refusal.value.diagnostics().split("\n")
    assert fact.startswith(f"plan {plan.round_id} refused: {reason}")
    assert advice == f"hint: {hint}"


@pytest.mark.parametrize("name", [name for name, (_, change, _, _) in REFUSED.items() if change])
def test_nothing_but_its_own_limit_stands_against_a_refused_plan(name: str) -> None:
    """So every objection is reached by one plan, and at its bound it gives way."""
    plan, change, _, _ = REFUSED[name]
    assert change is not None
    checked(plan, replace(POLICY, **change))


def test_nothing_but_the_noise_stands_against_a_plan_with_too_little_of_it() -> None:
    checked(noise_scaled(PLAN, 1))
    checked(noise_scaled(PLAN, 1.5))


def test_nothing_but_the_directory_stands_against_a_trustee_with_another_key() -> None:
    plan = REFUSED["trustee with another key"][0]
    checked(plan, POLICY, with_trustees(foreign_key(mask_trustees()[0]), *mask_trustees()[1:]))


@pytest.mark.parametrize("trustee", [MaskTrustee(6, mask_trustees()[0].mask_key), replace(mask_trustees()[0], index=1)])
def test_a_trustee_is_known_by_number_and_key_together(trustee: MaskTrustee) -> None:
    with pytest.raises(PlanRefused, match=rf"trustees \[{trustee.index}\] are not in the directory"):
        checked(masked_by(trustee, *mask_trustees()[1:]))


def test_a_trustee_of_the_plan_that_nobody_else_names_is_enough_to_refuse_it() -> None:
    stranger = MaskTrustee(9, STRANGE_KEY)
    with pytest.raises(PlanRefused, match=r"trustees \[9\]"):
        checked(masked_by(*mask_trustees(), stranger))


@pytest.mark.parametrize("week", [0, 1, 500])
def test_a_window_is_over_by_the_clock_here_or_by_one_that_is_an_hour_ahead(week: int) -> None:
    plan = in_week(week)
    for early in (0.0, 0.5, CLOCKS_DIFFER_H):
        checked(plan, now_hour=plan.end_hour - early)
    for early in (1.001, 2.0, float(HOURS_PER_WEEK)):
        with pytest.raises(PlanRefused, match=f"its window ends on {date(plan.end_hour)}, and by the clock here"):
            checked(plan, now_hour=plan.end_hour - early)
    assert CLOCKS_DIFFER_H == 1.0


def test_nothing_but_the_clock_stands_against_a_plan_for_the_year_2966() -> None:
    plan = in_week((2966 - 1970) * 365 // 7)
    with pytest.raises(PlanRefused, match="by the clock here it is 2025-11-24 16:00 UTC"):
        checked(plan, now_hour=490_000.0)
    checked(plan, now_hour=float(plan.end_hour))


@pytest.mark.parametrize("week", [0, 12, 13, 66])
def test_nothing_but_the_windows_stands_against_an_epoch(week: int) -> None:
    """An epoch has 13 weeks in the directory; a plan names the one that all of its windows lie in."""
    right = week // WEEKS_PER_EPOCH
    checked(in_week(week))
    for wrong in {right + 1, right - 1} - {-1}:
        with pytest.raises(PlanRefused, match=f"it names epoch {wrong}, and its windows lie in epoch {right} of"):
            checked(replace(in_week(week), epoch=wrong))


def test_no_windows_lie_in_two_epochs() -> None:
    last = WEEKS_PER_EPOCH * HOURS_PER_WEEK
    checked(cut(0, 168, last))
    with pytest.raises(PlanRefused, match="it names epoch 0, and its windows lie in epoch 0 and 1 of the directory"):
        checked(cut(0, 168, last + 1))


def test_the_epoch_is_that_of_the_directory_and_of_nobody_else() -> None:
    weekly = replace(keys().directory, weeks_per_epoch=1)
    later = a_plan(window=(168, 336))
    checked(later)
    with pytest.raises(PlanRefused, match="lie in epoch 0 and 12 of"):
        checked(later, POLICY, weekly)
    checked(replace(later, windows=(168, 336), epoch=1), POLICY, weekly)


def test_owners_are_promised_in_the_plan_and_not_only_counted_in_its_rows() -> None:
    """Trustees hold the provider to `Plan.owners_minimum`: with 0 there, no word of an owner is asked for."""
    plan = replace(PLAN, owners_minimum=0)
    assert plan.rarest_row is not None
    assert plan.rarest_row[1] >= POLICY.owners_minimum
    with pytest.raises(PlanRefused, match="it promises 0 owners per row, the policy wants 3"):
        checked(plan)


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_a_plan_made_for_a_budget_is_accepted_at_that_budget_and_not_below(mechanism: Mechanism) -> None:
    plan = a_plan(mechanism=mechanism)
    assert plan_loss(plan).at(plan.delta) == pytest.approx(1.0, rel=1e-4)
    checked(plan)
    with pytest.raises(PlanRefused, match=r"is above the policy's 0\.999"):
        checked(plan, replace(POLICY, epsilon_per_window=0.999))


@pytest.mark.parametrize(("field", "limit"), [("epsilon", POLICY.epsilon_per_window), ("delta", POLICY.delta)])
def test_what_rounding_may_add_is_allowed_and_nothing_beyond(field: str, limit: float) -> None:
    checked(replace(PLAN, **{field: limit * (1 + 1e-9)}))
    with pytest.raises(PlanRefused, match=f"{field} .* is above the policy's"):
        checked(replace(PLAN, **{field: limit * (1 + 3e-9)}))


def test_laplace_noise_gives_a_pure_guarantee_and_gaussian_noise_gives_none() -> None:
    checked(a_plan(delta=0.0), replace(POLICY, delta=0.0))
    with pytest.raises(PlanRefused, match="its noise gives inf"):
        checked(replace(a_plan(mechanism=Mechanism.DISCRETE_GAUSSIAN), delta=0.0))


def test_every_share_counts_towards_the_noise_of_a_plan() -> None:
    """Many tiny shares of discrete Gaussian noise hide nothing, whatever their sum's variance says."""
    shares: dict[str, Any] = {"cohort_minimum": 10**6, "noise_shares": 7 * 10**5}
    plan = noise_scaled(a_plan(mechanism=Mechanism.DISCRETE_GAUSSIAN, **shares), 0.1)
    with pytest.raises(PlanRefused, match="its noise gives inf"):
        checked(replace(plan, epsilon=1e6))


def test_rows_of_public_levels_need_no_owners() -> None:
    plan = a_plan(marginals=(MarginalSpec("causes", ("domain", "band"), (), 1.0),))
    assert plan.rarest_row is None
    checked(replace(plan, owners_minimum=10**6), replace(POLICY, owners_minimum=10**6))


def with_trustees(*trustees: MaskTrustee) -> Directory:
    """The directory with other mask keys for some trustees."""
    others = {trustee.index: trustee.mask_key for trustee in trustees}
    records = keys().directory.trustees
    return replace(
        keys().directory,
        trustees=tuple(replace(record, mask_key=others.get(record.index, record.mask_key)) for record in records),
    )


# ---- who is honest -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [2, 8, 9, 400])
def test_noise_never_relies_on_more_tenants_than_are_known_to_be_honest(known: int) -> None:
    """A directory of many invented members lets a provider plan for many; the few that are known are counted on."""
    crowd = replace(PLAN, noise_layers=NoiseLayers(9, 5))
    for plan, thinnest in ((PLAN, PLAN.noise_shares), (crowd, 9)):
        policy = replace(POLICY, honest_minimum=known)
        if thinnest <= known:
            checked(plan, policy)
            continue
        with pytest.raises(PlanRefused) as caught:
            checked(plan, policy)
        assert f"its noise relies on up to {thinnest} honest tenants, the policy on {known}" in caught.value.what
        assert "honest_minimum" in caught.value.hint
    checked(crowd, replace(POLICY, honest_minimum=0))  # the directory is trusted


DEFAULT = Policy()
TEN: Mapping[str, Any] = {"cohort_minimum": 10, "noise_shares": 5, "owners_minimum": 5}


def of_members(members: int) -> Plan:
    """What a provider plans for so many members, half of them honest."""
    return a_plan(members=members, **TEN)


def epsilon_of(scale: float, part: float) -> float:
    """Of a part of the discrete Laplace noise of a scale, at a count that moves by one."""
    one = nbinom(part, -math.expm1(-1 / scale)).pmf(np.arange(4000))
    law = [float(one[: len(one) - at] @ one[at:]) for at in range(60)]
    return max(math.log(nearer / further) for nearer, further in pairwise(law))


def test_ten_honest_tenants_among_forty_members_refuse_noise_that_relies_on_twenty() -> None:
    """Thirty are invented, and their noise is known: the ten leave so little that epsilon is 2.5 and not 1."""
    attack = of_members(40)
    assert attack.shares.full == 20
    left = 10 * float(attack.shares.of(attack.honest(40)))
    assert sum(epsilon_of(marginal.noise_scale, left) for marginal in attack.marginals) == pytest.approx(2.5, abs=0.2)
    assert sum(epsilon_of(marginal.noise_scale, 1.0) for marginal in attack.marginals) == pytest.approx(1.0)
    with pytest.raises(PlanRefused) as refusal:
        checked(attack, DEFAULT, members_seen=10)
    assert "its noise relies on up to 20 honest tenants, 5 of the 10 members last seen" in refusal.value.what
    assert "set honest_minimum to that number in policy.toml" in refusal.value.hint
    for trusted in (20, 0):
        checked(attack, replace(DEFAULT, honest_minimum=trusted), members_seen=10)


@pytest.mark.parametrize("seen", [0, 1, 10, 39, 40, 41, 400])
def test_a_plan_for_as_many_as_were_seen_is_answered_and_one_for_more_is_not(seen: int) -> None:
    for members in (10, 20, 39, 40, 42, 400):
        plan = of_members(members)
        if plan.shares.full <= max(5, seen // 2):
            checked(plan, DEFAULT, members_seen=seen)
            continue
        with pytest.raises(PlanRefused, match="members last seen"):
            checked(plan, DEFAULT, members_seen=seen)


def test_a_minimal_cohort_is_enough_for_who_enrolled_first_and_saw_nobody_else() -> None:
    checked(of_members(10), DEFAULT, members_seen=1)


# ---- policy.toml ---------------------------------------------------------------------------------------------------


def load(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return load_policy(path)


def test_an_empty_policy_is_the_default_one(tmp_path: Path) -> None:
    assert load(tmp_path, "") == Policy()


def test_every_limit_can_be_set(tmp_path: Path) -> None:
    text = """
        epsilon_per_window = 2
        delta = 1e-9
        owners_minimum = 7
        cohort_minimum = 12
        window_hours_minimum = 24
        lease_hours_maximum = 2000
        mask_trustees_minimum = 2
        failures_per_unit_maximum = 3
        colluding_share = 0.25
        honest_minimum = 40
        link_epochs = true
        dimensions = ["context", "band"]
    """
    policy = load(tmp_path, text)
    assert policy == Policy(
        epsilon_per_window=2,
        delta=1e-9,
        owners_minimum=7,
        cohort_minimum=12,
        window_hours_minimum=24,
        lease_hours_maximum=2000,
        mask_trustees_minimum=2,
        failures_per_unit_maximum=3,
        colluding_share=0.25,
        honest_minimum=40,
        link_epochs=True,
        dimensions=("context", "band"),
    )
    assert all(getattr(policy, field.name) != field.default for field in fields(Policy))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("epsilon = 1.0", "unknown key 'epsilon'"),
        ("epsilon_per_window = '1'", "epsilon_per_window must be a number"),
        ("epsilon_per_window = true", "epsilon_per_window must be a number"),
        ("epsilon_per_window = nan", "epsilon_per_window must be a number"),
        ("epsilon_per_window = inf", "epsilon_per_window must be a number"),
        ("delta = -1e-8", "delta must be a number"),
        ("colluding_share = nan", "colluding_share must be a number"),
        ("owners_minimum = 2.5", "owners_minimum must be a whole number"),
        ("cohort_minimum = true", "cohort_minimum must be a whole number"),
        ("cohort_minimum = -1", "cohort_minimum must be a whole number"),
        ("dimensions = 'band'", "dimensions must be a list"),
        ("dimensions = [1]", "dimensions[0] must be text"),
        ("owners_minimum = ", "not TOML: Invalid value"),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(PolicyError) as error:
        load(tmp_path, text)
    fact, advice = error.value.diagnostics().split("\n")
    assert fact.startswith(f"{tmp_path / 'policy.toml'}: {complaint}")
    known = "known keys: epsilon_per_window, delta, "
    assert advice.startswith(f"hint: {'write it as TOML' if complaint.startswith('not TOML') else known}")


def test_a_policy_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"absent\.toml"):
        load_policy(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes("# Ägypten".encode("latin-1"))
    with pytest.raises(PolicyError, match=r"latin\.toml"):
        load_policy(tmp_path / "latin.toml")
