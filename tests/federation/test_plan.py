"""A plan that breaks a rule is refused, and the text says which part of it and what would be right."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crypto.codec import decode, encode
from crypto.errors import DecodeError
from crypto.ids import MaskPublicKey
from crypto.masking import MaskKey
from federation.protocol.causes import Domain
from federation.protocol.plan import (
    LARGEST_NOISE_SCALE,
    MAX_NAME_CHARACTERS,
    MAX_WORDS,
    Marginal,
    MaskTrustee,
    Mechanism,
    NoiseLayers,
    Plan,
    PlanDimension,
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
        ({"windows": (0, 168)}, {"end_hour": 0}, "the window of a plan must end after it starts"),
        ({"windows": (0, 168, 336)}, {"start_hour": 168}, "the window of a plan must end after it starts"),
        ({"windows": (0, 168, 169)}, {"windows": (0, 168, 168)}, "the edges of windows must increase"),
        ({}, {"windows": (168, 0)}, "the edges of windows must increase"),
        ({"start_hour": 1, "windows": (0, 1, 168)}, {"start_hour": 1}, "must be one of those that it lists"),
        ({"end_hour": 336, "windows": (0, 336)}, {"end_hour": 336, "windows": (0, 168, 336)}, "must be one of those"),
        ({}, {"windows": ()}, "the window of a plan must be one of those that it lists for its epoch"),
        ({}, {"windows": (168, 336)}, "the window of a plan must be one of those that it lists for its epoch"),
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


@pytest.mark.parametrize("layers", [0, 1])
def test_a_plan_of_the_largest_size_can_be_answered(layers: int) -> None:
    most = MAX_WORDS // (1 + layers)
    plan = cells_plan(most // 4, 3.0, noise_layers=NoiseLayers(11, layers) if layers else None)
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


# ---- windows -------------------------------------------------------------------------------------------------------


def test_every_hour_of_an_epoch_is_in_one_window() -> None:
    plan = small_plan(start_hour=168, end_hour=200, windows=(100, 168, 200, 500))
    assert (plan.window, plan.first_hour) == ((168, 200), 100)
    hours = (0, 99.99, 100, 167.99, 168, 199.99, 200, 499.99, 500, 10**6)
    assert [plan.position_at(hour) for hour in hours] == [-1, -1, 0, 0, 1, 1, 2, 2, 3, 3]
    assert decode(Plan, encode(plan)) == plan


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
