"""Noise for those who answered: enough at every attendance, little more than enough, and hidden where it is not opened.

Rounds here are the product's functions, put together as tenants, three mask trustees and the provider do: contributions
under masks, of which each side opens the same parts. The adversary knows all but one trustee's streams and all that its
tenants sent.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import nbinom, norm

from crypto.ids import Digest, Nonce, RoundId, TenantId
from crypto.masking import (
    MaskKey,
    MaskStream,
    Words,
    add_words,
    mask_cells,
    sum_of_masks,
    words_from_bytes,
    words_to_bytes,
)
from federation.protocol.attendance import MOST_LAYERS, STEPS, Shares, honest_of, layers_for
from federation.protocol.life_table import Floats
from federation.protocol.noise import (
    Integers,
    NoiseSampler,
    SystemSampler,
    contribution,
    from_ring,
    noise_variances,
    open_groups,
    opened_shares,
)
from federation.protocol.plan import Mechanism, NoiseLayers, Plan
from federation.protocol.privacy_cost import (
    distributed_gaussian_rho,
    noise_scales,
    plan_loss,
    unequal_gaussian_rho,
)
from tests.support.chances import RARE, has_variance, missed_variance, proven_epsilon, sure_epsilon
from tests.support.changing import replace
from tests.support.hiding import looks_hidden, words_needed
from tests.support.plans import cells_plan

GAUSSIAN, LAPLACE = Mechanism.DISCRETE_GAUSSIAN, Mechanism.DISCRETE_LAPLACE
LEAST, COHORT, FULL, MEMBERS = 4, 5, 16, 20  # a fifth may collude, and 16 of 20 are honest
LAYERS = NoiseLayers(FULL, layers_for(LEAST, FULL))


def layered(cells: int, scale: float, **changes: Any) -> Plan:
    """A plan for twenty members of which five are enough."""
    return cells_plan(cells, scale, noise_shares=LEAST, cohort_minimum=COHORT, **({"noise_layers": LAYERS} | changes))


# ---- arithmetic ------------------------------------------------------------------------------------------------------


@st.composite
def divisions(draw: st.DrawFn) -> Shares:
    least = draw(st.integers(1, 2000))
    full = least + draw(st.integers(0, 20_000))
    return Shares(least, full, draw(st.integers(1, MOST_LAYERS)) if full > least else 0)


@given(divisions(), st.integers(0, 50_000))
def test_at_every_attendance_honest_tenants_hold_enough_and_little_more(shares: Shares, more: int) -> None:
    honest = shares.least + more
    held = honest * shares.of(honest)
    assert held >= 1
    assert honest > shares.full or held <= 1 + honest * shares.unit
    assert 0 <= shares.kept(honest) < 2**shares.layers
    assert shares.kept(honest) <= shares.kept(max(shares.least, honest - 1))
    assert shares.excess(honest) == float(held)


@given(divisions())
def test_at_the_fewest_everything_is_opened_and_is_exactly_enough(shares: Shares) -> None:
    assert shares.kept(shares.least) == 2**shares.layers - 1
    assert shares.least * shares.of(shares.least) == 1
    assert shares.kept(shares.full) == 0
    assert shares.full * shares.of(shares.full) == 1
    assert sum(shares.parts) == Fraction(1, shares.least)


@given(divisions(), st.integers(0, 20_000))
def test_a_layer_less_than_what_is_kept_would_not_be_enough(shares: Shares, more: int) -> None:
    honest = min(shares.least + more, shares.full)
    if kept := shares.kept(honest):
        assert honest * (shares.base + (kept - 1) * shares.unit) < 1


@given(st.integers(1, 2000), st.integers(0, 10_000))
def test_layers_are_as_many_as_keep_the_excess_small(least: int, more: int) -> None:
    layers = layers_for(least, least + more)
    assert (layers == 0) == (more == 0)
    if 0 < layers < MOST_LAYERS:
        shares = Shares(least, least + more, layers)
        assert shares.full * shares.unit <= Fraction(1, STEPS)
        assert layers == 1 or 2 ** (layers - 1) - 1 < Fraction(STEPS * more, least)


@pytest.mark.parametrize(
    ("least", "full", "layers", "why"),
    [
        (4, 16, 0, "only there"),
        (4, 4, 1, "only there"),
        (4, 16, 17, "at most 16 layers"),
        (4, 16, -1, "at most 16 layers"),
        (5, 4, 1, "at least as many"),
        (0, 4, 1, "at least as many"),
    ],
)
def test_a_division_that_is_none_is_refused(least: int, full: int, layers: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Shares(least, full, layers)


@given(st.integers(1, 100), st.integers(0, 5000))
def test_invented_members_thin_no_share_below_what_those_need_who_are_counted_on(known: int, invented: int) -> None:
    """`honest_minimum` bounds `full`, and so what each keeps however large a set becomes: so many in it are enough."""
    least = min(9, known)
    shares = Shares(least, known, layers_for(least, known))
    counted_on = max(least, honest_of(known + invented, 9, 10))
    assert known * shares.of(counted_on) >= 1


def test_fewer_than_the_fewest_are_not_opened() -> None:
    shares = Shares(LEAST, FULL, LAYERS.layers)
    with pytest.raises(ValueError, match="complete with 4 honest tenants, not with 3"):
        shares.kept(LEAST - 1)
    plan = layered(3, 5.0)
    with pytest.raises(ValueError, match="complete with 4"):
        open_groups(plan, [np.zeros(plan.words, np.uint64)], COHORT - 1)


def vectors() -> dict[str, Any]:
    file = Path(__file__).parents[1] / "vectors" / "attendance.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_both_sides_open_what_the_vectors_say() -> None:
    held = vectors()
    for one in held["divisions"]:
        shares = Shares(one["least"], one["full"], one["layers"])
        assert [str(part) for part in shares.parts] == one["parts"]
        assert [shares.kept(many) for many in one["honest"]] == one["kept"]
    for bad in held["bad_divisions"]:
        with pytest.raises(ValueError, match=r"noise has|the base alone"):
            Shares(**bad)
    plan, words = layered(3, 5.0), words_from_bytes(bytes.fromhex(held["words"]))
    for one in held["opened"]:
        (found,) = open_groups(plan, [words], one["smallest_group"])
        assert words_to_bytes(found).hex() == one["words"]
        assert plan.honest(one["smallest_group"]) == one["honest"]


WANTED = {1.0: 1.15, 0.9: 1.35, 0.75: 1.7, 0.5: 2.2, 0.25: 2.7}
BEFORE = {1.0: 20.0, 0.9: 18.0, 0.75: 15.0, 0.5: 10.0, 0.25: 5.0}


@pytest.mark.parametrize("attendance", WANTED)
def test_two_hundred_tenants_under_the_shipped_settings_have_the_noise_that_is_wanted(attendance: float) -> None:
    answer, before = int(200 * attendance), Shares(9, 9, 0)
    shares = Shares(9, 180, layers_for(9, 180))
    honest = honest_of(answer, 9, 10)
    assert honest == int(0.9 * answer)
    assert 1 <= shares.excess(honest) <= 1.08 <= WANTED[attendance]
    assert before.excess(honest) == BEFORE[attendance]


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_without_layers_opens_all_of_its_noise() -> None:
    plan = layered(3, 5.0, noise_layers=None)
    assert plan.shares == Shares(LEAST, LEAST, 0)
    assert (plan.vectors, plan.words) == (1, 3)
    assert opened_shares(plan, MEMBERS) == MEMBERS / LEAST


def test_each_layer_is_a_vector_of_its_own() -> None:
    assert layered(3, 5.0).words == 3 * (1 + LAYERS.layers)


@pytest.mark.parametrize("layers", [NoiseLayers(LEAST, 1), NoiseLayers(FULL, 0), NoiseLayers(3, 2), NoiseLayers(4, 0)])
def test_a_plan_with_layers_that_are_none_is_no_plan(layers: NoiseLayers) -> None:
    with pytest.raises(ValueError, match=r"layers|at least as many"):
        layered(3, 5.0, noise_layers=layers)


# ---- the price -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"mechanism": LAPLACE}])
def test_a_plan_costs_the_same_with_and_without_layers(changes: dict[str, Any]) -> None:
    with_layers, without = layered(100, 9.0, **changes), layered(100, 9.0, noise_layers=None, **changes)
    assert plan_loss(with_layers).epsilon == plan_loss(without).epsilon
    assert plan_loss(with_layers).rho == pytest.approx(plan_loss(without).rho, rel=1e-9)


def test_layers_too_small_for_the_theorem_have_no_price() -> None:
    fine = NoiseLayers(FULL, MOST_LAYERS)
    assert math.isfinite(plan_loss(layered(10, 9.0, noise_layers=fine)).rho)
    assert plan_loss(layered(10, 0.9, noise_layers=fine)).rho == math.inf
    assert math.isfinite(plan_loss(layered(10, 0.9)).rho)


def exact_rho(scales: Sequence[float]) -> float:
    """The smallest rho of a sum of discrete Gaussians of these parameters at sensitivity 1."""
    support, total = np.arange(-60, 61), np.ones(1)
    for scale in scales:
        mass = np.exp(-(support**2) / (2 * scale**2))
        total = np.convolve(total, mass / mass.sum())
    middle, reach = len(total) // 2, int(12 * math.sqrt(sum(scale**2 for scale in scales)))
    log_law = np.log(total[middle - reach - 1 : middle + reach + 2])
    one, other = log_law[1:], log_law[:-1]
    orders = np.exp(np.linspace(math.log(1.01), math.log(6), 60))
    return max(float(np.log(np.exp(a * one + (1 - a) * other).sum()) / (a - 1) / a) for a in orders)


@pytest.mark.parametrize("scales", [(0.75, 1.5), (0.75, 1.0, 3.0), (0.75, 0.75, 2.0), (1.0, 1.4, 2.0), (2.0, 5.0)])
def test_the_bound_holds_for_the_exact_sum_of_unequal_gaussians(scales: tuple[float, ...]) -> None:
    together = math.sqrt(sum(scale**2 for scale in scales))
    bound = unequal_gaussian_rho(1.0, together, min(scales), len(scales), cells=1)
    assert (1 - 1e-9) / (2 * together**2) <= exact_rho(scales) <= (1 + 1e-9) * bound


@given(st.floats(0.71, 50), st.integers(1, 50), st.integers(1, 1000))
def test_equal_parameters_are_a_case_of_unequal_ones(scale: float, shares: int, cells: int) -> None:
    equal = distributed_gaussian_rho(3.0, scale, shares, cells)
    assert equal == unequal_gaussian_rho(3.0, math.sqrt(shares) * scale, scale, shares, cells)


@pytest.mark.nightly
@given(st.integers(1, 300), st.integers(2, 40))
@settings(deadline=None)
def test_the_price_covers_each_attendance_taken_by_itself(least: int, times: int) -> None:
    """What the honest hold at one attendance, part by part, costs no more than the plan states."""
    full = least * times
    plan = cells_plan(
        5, 9.0, noise_shares=least, cohort_minimum=least, noise_layers=NoiseLayers(full, layers_for(least, full))
    )
    shares, ring = plan.shares, 256 * 9.0
    for honest in {least, least + 1, (least + full) // 2, full - 1, full, 2 * full}:
        opened = [part for at, part in enumerate(shares.parts) if at == 0 or shares.kept(honest) >> (at - 1) & 1]
        scale = ring * math.sqrt(honest * sum(opened))
        price = unequal_gaussian_rho(256.0, scale, ring * math.sqrt(min(opened)), honest * len(opened), 5)
        assert price <= plan_loss(plan).rho * (1 + 1e-9)


# ---- rounds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """The keys of one round: three mask trustees, the first of which is honest, and as many tenants as answer."""

    plan: Plan
    answered: int

    def _key(self, name: str) -> MaskKey:
        return MaskKey(sha256(name.encode()).digest())

    @property
    def trustees(self) -> list[MaskKey]:
        return [self._key(f"trustee {number}") for number in range(3)]

    def streams(self, tenant: int) -> list[MaskStream]:
        bound = RoundId(bytes(16)), Digest(bytes(32)), TenantId(tenant.to_bytes(TenantId.length, "big"))
        own = self._key(f"tenant {tenant}").public
        return [MaskStream(*bound, own, Nonce(bytes(16)), index, key.public) for index, key in enumerate(self.trustees)]

    def masked(self, tenant: int, own: Words) -> Words:
        return mask_cells(own, self._key(f"tenant {tenant}"), self.streams(tenant))

    def mask_sum(self, trustee: int, opened_for: int) -> Words:
        """What a trustee answers for all who answered, if it opens what so many contributions need."""
        streams = (self.streams(tenant)[trustee] for tenant in range(self.answered))
        total = sum_of_masks(self.trustees[trustee], streams, self.plan.words)
        return open_groups(self.plan, [total], opened_for)[0]

    def opened(self, sent: Sequence[Words], opened_for: Sequence[int] | None = None) -> Words:
        """What comes off the masks, if each trustee opens what as many as `opened_for` says need."""
        masked = add_words(self.masked(tenant, own) for tenant, own in enumerate(sent))
        total = open_groups(self.plan, [masked], self.answered)[0]
        for trustee, many in enumerate(opened_for or [self.answered] * 3):
            total = total - self.mask_sum(trustee, many)
        return total


def noises(plan: Plan, tenants: int, sampler: NoiseSampler | None = None) -> list[Words]:
    """What tenants without a failure send, before masks."""
    nothing = [np.zeros(table.shape, np.int64) for table in plan.tables]
    return [contribution(plan, nothing, sampler or SystemSampler()) for _ in range(tenants)]


def of_some(plan: Plan, sent: Sequence[Words], opened_for: int) -> Floats:
    """What these tenants' noise adds to an opening, in counts, flat."""
    (total,) = open_groups(plan, [add_words(sent)], opened_for)
    return from_ring(plan, total)[0].reshape(-1)


CELLS, HIDDEN = 6000, words_needed(0.05)


@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param({"mechanism": LAPLACE}, marks=pytest.mark.nightly)],
    ids=["gaussian", "laplace"],
)
@pytest.mark.parametrize("answered", [MEMBERS, 18, 15, 10, COHORT])
def test_what_is_opened_has_the_variance_that_is_stated(answered: int, changes: dict[str, Any]) -> None:
    plan = layered(CELLS, 3.0, **changes)
    if plan.mechanism is LAPLACE:
        plan = replace(plan, marginals=(replace(plan.marginals[0], noise_scale=30.0),))
    sent = noises(plan, answered)
    seen = from_ring(plan, Round(plan, answered).opened(sent))[0].reshape(-1)
    (stated,) = noise_variances(plan, answered)
    assert np.array_equal(seen, of_some(plan, sent, answered))
    (ideal,) = noise_variances(replace(plan, noise_layers=None), LEAST)
    assert 1 <= stated / ideal * plan.honest(answered) / answered <= 1 + 1 / STEPS
    if plan.mechanism is GAUSSIAN:
        assert missed_variance(CELLS, 1.5) < RARE
        assert has_variance(seen, stated)
        assert not has_variance(seen, 1.5 * stated)
        assert not has_variance(seen, stated / 1.5)
    else:  # longer tails: the sample variance of 6,000 such cells is within 20% by more than six deviations
        assert 0.8 < np.var(seen) / stated < 1.2


def test_laplace_parts_add_up_to_the_law_of_their_sum() -> None:
    """By generating functions NB(r, p) + NB(s, p) = NB(r + s, p): checked of the tables that are inverted."""
    shares, scale = Shares(LEAST, FULL, LAYERS.layers), 4.0
    success = -math.expm1(-1 / scale)
    for honest in range(LEAST, FULL + 1):
        opened = [part for at, part in enumerate(shares.parts) if at == 0 or shares.kept(honest) >> (at - 1) & 1]
        total = np.ones(1)
        for part in opened:
            total = np.convolve(total, nbinom(float(honest * part), success).pmf(np.arange(201)))
        expected = nbinom(float(honest * shares.of(honest)), success).pmf(np.arange(201))
        np.testing.assert_allclose(total[:201], expected, atol=1e-12)


# ---- attacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [(COHORT, COHORT), (MEMBERS, MEMBERS), (8, 13)], ids=["less", "more", "unlike"])
def test_a_trustee_that_takes_off_other_layers_than_the_rest_opens_nothing(others: tuple[int, int]) -> None:
    """Too much or too little: whoever disagrees with the honest trustee is left with uniform words, not less noise."""
    plan, answered = layered(HIDDEN, 3.0), 10
    seen = Round(plan, answered).opened(noises(plan, answered), [answered, *others])
    assert looks_hidden(seen)


def test_what_a_trustee_opens_follows_from_the_set_and_nothing_else() -> None:
    """Other than ten of the masks of the honest trustee come off for a set of ten, whatever the adversary asks for."""
    plan, answered = layered(HIDDEN, 3.0), 10
    sent = noises(plan, answered)
    round_ = Round(plan, answered)
    masked = add_words(round_.masked(tenant, own) for tenant, own in enumerate(sent))
    known = add_words(
        sum_of_masks(round_.trustees[at], (round_.streams(tenant)[at] for tenant in range(answered)), plan.words)
        for at in (1, 2)
    )
    answer = round_.mask_sum(0, answered)
    vectors = (masked - known).reshape(plan.vectors, plan.cells)
    kept = [True, *(bool(plan.shares.kept(plan.honest(answered)) >> layer & 1) for layer in range(LAYERS.layers))]
    assert 1 < sum(kept) < len(kept)
    right = from_ring(plan, add_words(vectors[kept]) - answer)[0]
    assert has_variance(right, noise_variances(plan, answered)[0])
    for at in range(plan.vectors):  # one part less, one part more, one part alone
        other = [is_kept != (number == at) for number, is_kept in enumerate(kept)]
        assert looks_hidden(add_words(vectors[other]) - answer)
        assert looks_hidden(vectors[at])
        assert looks_hidden(vectors[at] - answer)


def test_a_layer_that_is_replayed_in_the_place_of_another_opens_nothing() -> None:
    """Of the same contribution, or of another tenant's: a layer comes off at its own place under its own masks."""
    plan, answered = layered(HIDDEN, 3.0), 10
    round_ = Round(plan, answered)
    sent = [round_.masked(tenant, own).copy() for tenant, own in enumerate(noises(plan, answered))]
    kept = plan.shares.kept(plan.honest(answered))
    (at, *_), gone = [n for n in range(LAYERS.layers) if kept >> n & 1], LAYERS.layers - 1
    assert not kept >> gone & 1
    for victim, source, layer in ((0, 0, gone), (0, 1, at)):
        words = [one.reshape(plan.vectors, plan.cells).copy() for one in sent]
        words[victim][1 + at] = words[source][1 + layer]
        total = open_groups(plan, [add_words(one.reshape(-1) for one in words)], answered)[0]
        for trustee in range(3):
            total = total - round_.mask_sum(trustee, answered)
        assert looks_hidden(total)


def test_tenants_without_any_noise_take_no_more_than_their_own_share() -> None:
    """Bounded: they are colluders, of which as many are counted on. The others' noise is complete without them."""
    plan = layered(CELLS, 3.0)
    for answered in (MEMBERS, 10, COHORT):
        honest = plan.honest(answered)
        silent = [np.zeros(plan.words, np.uint64)] * (answered - honest)
        seen = from_ring(plan, Round(plan, answered).opened([*noises(plan, honest), *silent]))[0]
        held = 9.0 * plan.shares.excess(honest)
        assert has_variance(seen, held)
        assert not has_variance(seen, 0.75 * held)
        assert held >= 9.0


# ---- audits ----------------------------------------------------------------------------------------------------------

# One unit in every cell or in none, at ε = 2 and δ = 0.01. The adversary knows all but one trustee and as many
# tenants as may collude. It says "with" beyond the threshold that the law of what it does not know makes the best; what
# the runs are sure to prove then is computed.
RUNS, EPSILON, DELTA = 300_000, 2.0, 0.01
(SCALE,) = noise_scales(GAUSSIAN, EPSILON, DELTA, 1, (1.0,))
BASE = 256 * SCALE / math.sqrt(FULL)  # of one tenant's share, in ring units


class WrongLayers:
    """The product's sampler, with layers that are too small by `factor`, and a base as it should be."""

    def __init__(self, factor: float) -> None:
        self._factor, self._exact = factor, SystemSampler()

    def gaussian(self, scale: float, size: int) -> Integers:
        return self._exact.gaussian(scale * (1.0 if math.isclose(scale, BASE) else self._factor), size)

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        return self._exact.laplace_share(scale, shares, size)


def audit(answered: int, factor: float = 1.0, opened_for: int = 0) -> tuple[float, float]:
    """What is proven of a round of so many, and is sure to be, of layers wrong by `factor`, or as for `opened_for`."""
    plan = layered(RUNS, SCALE)
    assert plan_loss(plan).at(DELTA) <= EPSILON
    honest, shares = plan.honest(answered), plan.shares
    layers = float(shares.of(plan.honest(opened_for or answered)) - shares.base)
    unknown = SCALE * math.sqrt(honest * (float(shares.base) + factor**2 * layers))
    at = np.arange(0.5, 4.0, 0.1)
    sure = [sure_epsilon(RUNS, norm.sf(beyond - 1 / unknown), norm.sf(beyond), DELTA) for beyond in at]
    threshold = float(at[np.argmax(sure)]) * unknown
    noise = of_some(plan, noises(plan, honest, WrongLayers(factor)), opened_for or answered)
    return proven_epsilon(noise + 1 > threshold, noise > threshold, DELTA), max(sure)


@pytest.mark.nightly
@pytest.mark.parametrize("answered", [MEMBERS, 15, 10, COHORT])
def test_an_audit_at_each_attendance_proves_no_more_than_the_claim(answered: int) -> None:
    """The masks of the honest trustee's removed layers are uniform (above), so this noise is all that is in the way."""
    proven, sure = audit(answered)
    assert sure > 0.6 * EPSILON
    assert 0.6 * EPSILON < proven <= EPSILON


@pytest.mark.nightly
@pytest.mark.parametrize(("answered", "factor"), [(10, 0.2), (COHORT, 0.6)])
def test_an_audit_convicts_layers_that_are_too_small(answered: int, factor: float) -> None:
    proven, sure = audit(answered, factor)
    assert sure > EPSILON
    assert proven > EPSILON


@pytest.mark.nightly
@pytest.mark.parametrize(("answered", "opened_for"), [(COHORT, 10), (10, MEMBERS)])
def test_an_audit_convicts_layers_taken_off_for_an_attendance_that_was_not(answered: int, opened_for: int) -> None:
    proven, sure = audit(answered, opened_for=opened_for)
    assert sure > EPSILON
    assert proven > EPSILON


LAPLACE_RUNS = 40_000


def laplace_audit(answered: int, opened_for: int) -> tuple[float, float]:
    """The same of discrete Laplace noise at ε = 1, δ = 0, with the threshold at which all of ε shows."""
    (scale,) = noise_scales(LAPLACE, 1.0, 0.0, 1, (1.0,))
    plan = layered(LAPLACE_RUNS, scale, mechanism=LAPLACE)
    assert plan_loss(plan).at(0.0) <= 1.0
    honest = plan.honest(answered)
    part = float(honest * plan.shares.of(plan.honest(opened_for)))
    one = nbinom(part, -math.expm1(-1 / scale)).pmf(np.arange(401))
    law = np.convolve(one, one[::-1])  # of -400 … 400
    sure = sure_epsilon(LAPLACE_RUNS, law[:401].sum(), law[:400].sum(), 0.0)
    noise = of_some(plan, noises(plan, honest), opened_for)
    return proven_epsilon(noise <= 0, noise + 1 <= 0, 0.0), sure


@pytest.mark.nightly
@pytest.mark.parametrize("answered", [15, COHORT])
def test_an_audit_of_laplace_layers_proves_no_more_than_the_claim(answered: int) -> None:
    proven, sure = laplace_audit(answered, answered)
    assert sure > 0.75
    assert 0.75 < proven <= 1.0


@pytest.mark.nightly
def test_an_audit_convicts_laplace_layers_taken_off_for_an_attendance_that_was_not() -> None:
    proven, sure = laplace_audit(COHORT, 10)
    assert sure > 1.0
    assert proven > 1.0
