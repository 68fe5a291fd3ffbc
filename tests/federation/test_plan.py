"""A plan that breaks a rule is refused, and the text says which part of it and what would be right."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crypto.codec import decode, encode
from crypto.errors import DecodeError, PlanRefused
from crypto.ids import Digest, MaskPublicKey, RoundId
from crypto.masking import MaskKey
from federation.protocol.causes import Domain
from federation.protocol.plan import (
    LARGEST_NOISE_SCALE,
    LONGEST_HORIZON,
    MAX_NAME_CHARACTERS,
    MAX_WORDS,
    Marginal,
    MaskTrustee,
    Mechanism,
    Plan,
    PlanDimension,
    PublishedBundle,
    Series,
    check_continues,
)
from federation.protocol.round_messages import Contribution
from federation.protocol.subjects import TOKEN_DIMENSIONS
from tests.support.changing import replace
from tests.support.curve25519 import TOP_BIT, P, montgomery, torsion, x25519
from tests.support.plans import cells_plan, small_plan

BAND = PlanDimension("band", ("0", "1", "2"), ())
WORKLOAD = PlanDimension("workload", ("a", "b"), (7, 8))
PAIRS = Marginal("pairs", ("workload", "band"), (), 3.0)
TRUSTEE = MaskTrustee(1, MaskKey(bytes(32)).public)
OTHER_FORM = TRUSTEE.mask_key[:-1] + bytes([TRUSTEE.mask_key[-1] ^ 0x80])  # X25519 ignores the top bit
SERIES = Series(RoundId(b"s" * 16), 0, (1, 2, 3, 4), 0)


def test_the_plan_of_these_tests_is_valid() -> None:
    plan = small_plan()
    assert decode(Plan, encode(plan)) == plan
    assert small_plan() == plan
    assert hash(small_plan()) == hash(plan)
    assert small_plan(epoch=2) != plan


# ---- rules of the whole plan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        ({"end_hour": 1}, {"end_hour": 0}, "the window of a plan must end after it starts"),
        ({"start_hour": 167}, {"start_hour": 168}, "the window of a plan must end after it starts"),
        ({"band_edges_hours": (0.0, 1.0)}, {"band_edges_hours": (0.0,)}, "band edges must increase.* at least two"),
        ({"band_edges_hours": (-1.0, 0.0)}, {"band_edges_hours": (0.0, 0.0)}, "band edges must increase"),
        ({"band_edges_hours": (0.0, 1e300)}, {"band_edges_hours": (0.0, 2.0, 1.0)}, "band edges must increase"),
        ({}, {"band_edges_hours": (0.0, math.nan, 1.0)}, "band edges must increase"),
        ({"failures_per_unit": 1}, {"failures_per_unit": 0}, "failures_per_unit must be at least 1"),
        ({"epsilon": 1e-300}, {"epsilon": 0.0}, "epsilon must be positive and finite"),
        ({"epsilon": 1e300}, {"epsilon": math.inf}, "epsilon must be positive and finite"),
        ({}, {"epsilon": -1.0}, "epsilon must be positive and finite"),
        ({}, {"epsilon": math.nan}, "epsilon must be positive and finite"),
        ({"delta": 0.0}, {"delta": -1e-300}, r"delta in \[0, 1\)"),
        ({"delta": math.nextafter(1.0, 0.0)}, {"delta": 1.0}, r"delta in \[0, 1\)"),
        ({}, {"delta": math.nan}, r"delta in \[0, 1\)"),
        ({"noise_shares": 12}, {"noise_shares": 13}, "noise_shares must lie between 1 and cohort_minimum"),
        ({"noise_shares": 1}, {"noise_shares": 0}, "noise_shares must lie between 1 and cohort_minimum"),
        ({"cohort_minimum": 10}, {"cohort_minimum": 9}, "or a full cohort would lack noise"),
        ({"trustees": (TRUSTEE,)}, {"trustees": ()}, "a plan needs mask trustees, each once"),
        (
            {"trustees": (TRUSTEE, replace(TRUSTEE, index=2))},
            {"trustees": (TRUSTEE, TRUSTEE)},
            "a plan needs mask trustees, each once",
        ),
        ({"marginals": (PAIRS,)}, {"marginals": ()}, "a plan needs marginals, each with a name of its own"),
        (
            {"marginals": (PAIRS, replace(PAIRS, name="again"))},
            {"marginals": (PAIRS, replace(PAIRS, noise_scale=9.0))},
            "a plan needs marginals, each with a name of its own",
        ),
        (
            {"dimensions": (BAND, WORKLOAD)},
            {"dimensions": (BAND, WORKLOAD, replace(BAND, levels=("9",)))},
            "each dimension is listed once",
        ),
        ({}, {"dimensions": (BAND,)}, "marginal 'pairs' uses dimension 'workload', which the plan must define"),
        ({}, {"dimensions": ()}, "marginal 'pairs' uses dimension 'workload', which the plan must define"),
    ],
)
def test_rules_of_a_plan(good: dict[str, Any], bad: dict[str, Any], rule: str) -> None:
    small_plan(**good)
    with pytest.raises(ValueError, match=rule):
        small_plan(**bad)


@pytest.mark.parametrize("mechanism", Mechanism)
def test_the_largest_noise_scale(mechanism: Mechanism) -> None:
    largest = LARGEST_NOISE_SCALE[mechanism]
    cells_plan(2, largest, mechanism=mechanism)
    for scale in (math.nextafter(largest, math.inf), 1e70, math.inf):
        with pytest.raises(ValueError, match=f"the noise scale of marginal 'all' must be at most {largest:.0f}"):
            cells_plan(2, scale, mechanism=mechanism)


# ---- mask keys -----------------------------------------------------------------------------------------------------


def keys_that_hide_nothing() -> list[bytes]:
    """Every encoding of a key that agrees on zero with all others: of small order on the curve or on its twist."""
    values = {*map(montgomery, torsion()), P - 1}
    every = {
        value + over | top for value in values for over in (0, P) for top in (0, TOP_BIT) if value + over < TOP_BIT
    }
    return [value.to_bytes(32, "little") for value in sorted(every)]


@pytest.mark.parametrize("key", keys_that_hide_nothing(), ids=bytes.hex)
def test_those_are_keys_that_hide_nothing(key: bytes) -> None:
    for private in (bytes(32), b"a" * 32):
        assert x25519(private, key) == bytes(32)


@pytest.mark.parametrize("key", [*keys_that_hide_nothing(), OTHER_FORM], ids=bytes.hex)
def test_a_plan_cannot_name_a_mask_key_that_hides_nothing_or_another_form_of_one(key: bytes) -> None:
    """Neither be built nor be read: it would be found out only when the budget is spent and the masks must come off."""
    plan = encode(small_plan())
    assert plan.count(TRUSTEE.mask_key) == 1
    with pytest.raises(ValueError, match="a MaskPublicKey is not canonical or of small order"):
        MaskTrustee(1, MaskPublicKey(key))
    with pytest.raises(DecodeError, match=r"Plan\.trustees\[0\]\.mask_key"):
        decode(Plan, plan.replace(TRUSTEE.mask_key, key))


# ---- size ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("series", [None, SERIES])
def test_a_plan_of_the_largest_size_can_be_answered(series: Series | None) -> None:
    most = MAX_WORDS // (2 if series else 1)
    plan = replace(cells_plan(most // 4, 3.0), series=series)
    marginals = tuple(replace(plan.marginals[0], name=f"m{number}") for number in range(4))
    largest = replace(plan, marginals=marginals)
    assert (largest.cells, largest.words) == (most, MAX_WORDS)
    answer = encode(Contribution(b"a header", memoryview(bytes(8 * largest.words))))
    assert len(decode(Contribution, answer).cells) == 8 * MAX_WORDS
    one_more = Marginal("one", ("band",), (), 3.0)
    with pytest.raises(ValueError, match=f"this plan has at most {most} cells: use fewer dimensions"):
        replace(largest, marginals=(*marginals, one_more), dimensions=(*plan.dimensions, replace(BAND, levels=("0",))))


def test_a_plan_that_would_need_all_memory_is_refused_before_it_takes_any() -> None:
    levels = tuple(str(number) for number in range(1000))
    dimensions = tuple(PlanDimension(f"d{number}", levels, ()) for number in range(20))
    huge = Marginal("huge", tuple(dimension.name for dimension in dimensions), (), 3.0)
    with pytest.raises(ValueError, match="use fewer dimensions per marginal or fewer levels"):
        small_plan(dimensions=dimensions, marginals=(huge,))


# ---- series --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        ({"openings": (1,)}, {"openings": ()}, "openings of a series are weeks from 1 on, in order, and at least one"),
        ({"openings": (1, 5)}, {"openings": (0, 5)}, "weeks from 1 on, in order"),
        ({"openings": (4, 5)}, {"openings": (5, 4)}, "weeks from 1 on, in order"),
        ({"openings": (4, 5, 5)}, {"openings": (4, 4, 5)}, "only the last may be named twice"),
        ({"openings": (5, 5)}, {"openings": (5, 5, 5)}, "only the last may be named twice"),
        ({"openings": (LONGEST_HORIZON,)}, {"openings": (LONGEST_HORIZON + 1,)}, "the horizon of a series has at most"),
        ({"position": 3}, {"position": 4}, "the position of a round must be that of one of the openings"),
    ],
)
def test_rules_of_a_series(good: dict[str, Any], bad: dict[str, Any], rule: str) -> None:
    replace(SERIES, **good)
    with pytest.raises(ValueError, match=rule):
        replace(SERIES, **bad)


def test_rules_of_a_plan_in_a_series() -> None:
    small_plan(series=SERIES)
    with pytest.raises(ValueError, match="only Gaussian noise is correlated"):
        small_plan(series=SERIES, mechanism=Mechanism.DISCRETE_LAPLACE)
    with pytest.raises(ValueError, match="a series starts no later than the windows of its rounds"):
        small_plan(series=replace(SERIES, start_hour=1))


def test_a_round_of_a_series_comes_no_earlier_than_its_week() -> None:
    third = replace(SERIES, openings=(1, 4, 13), position=2)
    assert small_plan(series=third, start_hour=12 * 168, end_hour=13 * 168).horizon == 3
    with pytest.raises(ValueError, match=f"this round of its series is due at hour {13 * 168}, not earlier"):
        small_plan(series=third, start_hour=12 * 168, end_hour=13 * 168 - 1)


def test_what_follows_from_a_series() -> None:
    alone = small_plan(start_hour=100)
    third = small_plan(start_hour=100, end_hour=3 * 168, series=replace(SERIES, position=2))
    assert (alone.horizon, alone.position, alone.first_hour, alone.vectors, alone.words) == (1, 0, 100, 1, alone.cells)
    assert (third.horizon, third.position, third.first_hour, third.vectors) == (4, 2, 0, 2)
    assert third.words == 2 * third.cells
    assert decode(Plan, encode(third)) == third


FIRST = small_plan(series=SERIES)
SECOND = small_plan(
    round_id=RoundId(b"2" * 16), start_hour=168, end_hour=336, series=replace(SERIES, position=1), epoch=FIRST.epoch
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"start_hour": 400, "end_hour": 500},
        {"series": replace(SERIES, position=3), "start_hour": 504, "end_hour": 672},
        {"series": SERIES},  # a round that came to nothing while it collected leaves its position to the next
        {"dimensions": (replace(WORKLOAD, levels=("a", "b", "c"), owners=(9, 7, 5)), BAND)},
        {"dimensions": (replace(WORKLOAD, owners=(5, 5)), BAND)},
        {"bundle": PublishedBundle(1, Digest(b"b" * 32))},
    ],
)
def test_what_a_later_round_of_a_series_may_change(changes: dict[str, Any]) -> None:
    check_continues(FIRST, replace(SECOND, **changes))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"epoch": 2}, "changes epoch"),
        ({"band_edges_hours": (0.0, 1.0, 8.0, 999.0)}, "changes band_edges_hours"),
        ({"marginals": FIRST.marginals[:1]}, "changes marginals"),
        ({"marginals": (replace(FIRST.marginals[0], noise_scale=2.9), FIRST.marginals[1])}, "changes marginals"),
        ({"failures_per_unit": 2}, "changes failures_per_unit"),
        ({"epsilon": 1.1}, "changes epsilon"),
        ({"delta": 1e-7}, "changes delta"),
        ({"owners_minimum": 4}, "changes owners_minimum"),
        ({"cohort_minimum": 13}, "changes cohort_minimum"),
        ({"noise_shares": 9}, "changes noise_shares"),
        ({"trustees": (replace(TRUSTEE, index=2),)}, "changes trustees"),
        ({"series": None}, "continues no series"),
        ({"series": replace(SERIES, name=RoundId(b"t" * 16), position=1)}, "changes name"),
        ({"series": replace(SERIES, start_hour=1, position=1), "end_hour": 337}, "changes start_hour"),
        ({"series": replace(SERIES, openings=(1, 2, 3, 5), position=1)}, "changes openings"),
        ({"epsilon": 2.0, "delta": 0.5}, "changes epsilon, delta"),
        ({"start_hour": 167}, "does not come after"),
        ({"dimensions": (replace(WORKLOAD, levels=("b", "a")), BAND)}, "removes or moves rows"),
        ({"dimensions": (replace(WORKLOAD, levels=("c", "a", "b"), owners=(5, 5, 5)), BAND)}, "removes or moves rows"),
        ({"dimensions": (replace(WORKLOAD, levels=("a",), owners=(5,)), BAND)}, "removes or moves rows"),
        ({"dimensions": (BAND, WORKLOAD)}, "removes or moves rows"),
    ],
)
def test_what_a_later_round_of_a_series_may_not_change(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PlanRefused, match=complaint):
        check_continues(FIRST, replace(SECOND, **changes))


def test_a_series_does_not_go_back() -> None:
    later = replace(SECOND, series=replace(SERIES, position=2), start_hour=336, end_hour=504)
    with pytest.raises(PlanRefused, match="does not come after"):
        check_continues(later, replace(SECOND, start_hour=504, end_hour=672))
    with pytest.raises(PlanRefused, match="continues no series"):
        check_continues(small_plan(), SECOND)


# ---- dimensions and marginals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: PlanDimension("band", (), ()), "dimension 'band' needs levels, each once"),
        (lambda: PlanDimension("band", ("0", "1", "0"), ()), "dimension 'band' needs levels, each once"),
        (
            lambda: PlanDimension("workload", ("a", "b"), (7,)),
            "dimension 'workload' has 2 levels and 1 owner counts, it needs as many",
        ),
        (lambda: PlanDimension("band", ("0",), (1, 2)), "dimension 'band' has 1 levels and 2 owner counts"),
        (lambda: Marginal("pairs", (), (), 3.0), "marginal 'pairs' needs dimensions, each once"),
        (lambda: Marginal("pairs", ("band", "band"), (), 3.0), "marginal 'pairs' needs dimensions, each once"),
        (lambda: Marginal("pairs", ("band",), (), 0.0), "marginal 'pairs' needs a positive noise scale"),
        (lambda: Marginal("pairs", ("band",), (), -1.0), "marginal 'pairs' needs a positive noise scale"),
        (lambda: Marginal("pairs", ("band",), (), math.nan), "marginal 'pairs' needs a positive noise scale"),
    ],
)
def test_rules_of_dimensions_and_marginals(make: Callable[[], object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        make()


@pytest.mark.parametrize("name", sorted(TOKEN_DIMENSIONS))
def test_rows_of_tokens_say_how_many_tenants_own_them(name: str) -> None:
    PlanDimension(name, ("a",), (5,))
    PlanDimension("anything_else", ("a",), ())
    with pytest.raises(ValueError, match=f"dimension '{name}' consists of tokens: it must say how many tenants own"):
        PlanDimension(name, ("a",), ())


@pytest.mark.parametrize("name", ["", "a b", "a-b", "9a", "größe", "a\n", "a\x1b[31m", "x" * (MAX_NAME_CHARACTERS + 1)])
def test_names_are_short_and_plain_since_errors_quote_them(name: str) -> None:
    makers: list[tuple[str, Callable[[], object]]] = [
        ("a dimension", lambda: PlanDimension(name, ("a",), ())),
        ("a marginal", lambda: Marginal(name, ("band",), (), 3.0)),
        ("a dimension", lambda: Marginal("pairs", ("band", name), (), 3.0)),
    ]
    for owner, make in makers:
        with pytest.raises(
            ValueError, match=f"the name of {owner} must be an ASCII identifier of at most 64"
        ) as caught:
            make()
        assert not name or name not in str(caught.value)
    PlanDimension("x" * MAX_NAME_CHARACTERS, ("a",), ())


# ---- what follows from a plan --------------------------------------------------------------------------------------


def test_tables_lie_in_the_order_of_the_marginals_and_their_dimensions() -> None:
    plan = small_plan(
        marginals=(Marginal("bands", ("band",), (), 1.0), replace(PAIRS, dimensions=("band", "workload")))
    )
    bands, pairs = plan.tables
    assert (bands.shape, pairs.shape) == ((3,), (3, 2))
    assert pairs.levels("workload") == ("a", "b")
    assert not any(np.any(table.events) for table in plan.tables)
    assert plan.cells == 3 + 6


def test_a_marginal_may_count_some_domains_only() -> None:
    plan = small_plan(marginals=(replace(PAIRS, domains=(Domain.INFRASTRUCTURE,)),))
    assert decode(Plan, encode(plan)).marginals[0].domains == (Domain.INFRASTRUCTURE,)


def test_the_rarest_row_is_the_token_with_the_fewest_owners() -> None:
    context = PlanDimension("context", ("c", "d", "e"), (9, 5, 6))
    assert small_plan().rarest_row == ("workload: a", 7)
    assert small_plan(dimensions=(WORKLOAD, context, BAND)).rarest_row == ("context: d", 5)
    public = small_plan(dimensions=(BAND,), marginals=(Marginal("bands", ("band",), (), 1.0),))
    assert public.rarest_row is None
