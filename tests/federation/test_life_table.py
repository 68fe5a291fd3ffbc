"""The life table against plain numpy, and against dictionaries from level names to numbers."""

import string
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from federation.protocol.life_table import Dimension, Floats, LifeTable

COLUMNS = ("events", "exposure_node_hours", "at_risk", "noise_variance")
NAMES = ("workload", "context", "band")
LEVELS = st.lists(st.sampled_from("pqrstuv"), min_size=1, max_size=4, unique=True).map(tuple)
WHOLE = st.integers(-(2**40), 2**40).map(float)  # sums of these are exact, so that equality may be tested

some = settings(deadline=None, max_examples=40)

Cells = dict[tuple[str, ...], float]


@st.composite
def tables(draw: st.DrawFn, names: tuple[str, ...] | None = None) -> LifeTable:
    used = draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True)) if names is None else names
    dimensions = tuple(Dimension(name, draw(LEVELS)) for name in used)
    shape = tuple(len(dimension) for dimension in dimensions)
    return LifeTable(dimensions, *(draw(arrays(np.float64, shape, elements=WHOLE)) for _ in COLUMNS))


def alike(kind: int) -> st.SearchStrategy[tuple[LifeTable, ...]]:
    """Several tables over the same names, each with levels of its own."""
    used = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple)
    return used.flatmap(lambda names: st.tuples(*[tables(names)] * kind))


def cells(table: LifeTable, column: str) -> Cells:
    levels = product(*(dimension.levels for dimension in table.dimensions))
    values: list[float] = getattr(table, column).reshape(-1).tolist()
    return dict(zip(levels, values, strict=True))


def same(one: LifeTable, two: LifeTable) -> bool:
    return one.dimensions == two.dimensions and all(
        np.array_equal(getattr(one, column), getattr(two, column)) for column in COLUMNS
    )


# ---- shape ---------------------------------------------------------------------------------------------------------


@some
@given(tables())
def test_shape_names_and_axes(table: LifeTable) -> None:
    assert table.shape == table.events.shape
    for position, dimension in enumerate(table.dimensions):
        assert table.axis(dimension.name) == position
        assert table.levels(dimension.name) == dimension.levels
        assert len(dimension) == table.shape[position]
    assert table.names == tuple(dimension.name for dimension in table.dimensions)


@some
@given(tables())
def test_an_empty_table_has_the_shape_and_nothing_in_it(table: LifeTable) -> None:
    empty = LifeTable.zeros(table.dimensions)
    assert empty.dimensions == table.dimensions
    for column in COLUMNS:
        assert getattr(empty, column).shape == table.shape
        assert getattr(empty, column).dtype == np.float64
        assert not getattr(empty, column).any()
    empty.events[...] = 1
    assert not empty.at_risk.any()  # the columns share no memory


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 3, 1), ()])
def test_a_column_of_another_shape_is_refused_by_name(column: str, shape: tuple[int, ...]) -> None:
    table = LifeTable.zeros([Dimension("context", ("a", "b")), Dimension("band", ("0", "1", "2"))])
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the text is compared below, parentheses and all
        LifeTable(table.dimensions, **{name: np.zeros(shape if name == column else (2, 3)) for name in COLUMNS})
    assert str(caught.value) == f"{column} has shape {shape}, its dimensions ask for (2, 3)"


def test_levels_and_dimensions_occur_once() -> None:
    with pytest.raises(ValueError, match="dimension 'band' must have each level once"):
        Dimension("band", ("0", "1", "0"))
    with pytest.raises(ValueError, match=r"each dimension once, not \('band', 'band'\)"):
        LifeTable.zeros([Dimension("band", ("0",)), Dimension("band", ("1",))])


def test_a_table_does_not_change() -> None:
    table = LifeTable.zeros([])
    with pytest.raises(FrozenInstanceError):
        table.events = np.ones(())  # type: ignore[misc]  # what the test is about


# ---- sums and slices -------------------------------------------------------------------------------------------------


@some
@given(tables(), st.data())
def test_a_marginal_is_a_sum_over_the_other_axes(table: LifeTable, data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.sampled_from(table.names), unique=True)) if table.names else []
    letters = dict(zip(table.names, string.ascii_letters, strict=False))
    formula = "".join(letters.values()) + "->" + "".join(letters[name] for name in kept)
    found = table.marginal(*kept)
    assert found.names == tuple(kept)
    for column in COLUMNS:
        assert np.array_equal(getattr(found, column), np.einsum(formula, getattr(table, column)))


@pytest.mark.parametrize("kept", [names for size in range(4) for names in permutations(NAMES, size)])
def test_a_marginal_comes_in_the_order_that_was_asked(kept: tuple[str, ...]) -> None:
    dimensions = tuple(Dimension(name, tuple("pqrs"[:size])) for name, size in zip(NAMES, (2, 3, 4), strict=True))
    numbers = np.arange(24.0).reshape(2, 3, 4)
    found = LifeTable(dimensions, *(numbers + place for place in range(4))).marginal(*kept)
    assert found.names == kept
    letters = dict(zip(NAMES, "abc", strict=True))
    expected = np.einsum("abc->" + "".join(letters[name] for name in kept), numbers)
    assert np.array_equal(found.events, expected)


@some
@given(tables(NAMES))
def test_a_marginal_of_a_marginal_is_the_smaller_one(table: LifeTable) -> None:
    for one, two, _ in permutations(NAMES):
        assert same(table.marginal(one, two).marginal(two), table.marginal(two))
        assert same(table.marginal(two, one).marginal(one, two), table.marginal(one, two))
    assert same(table.marginal(*NAMES), table)


@some
@given(tables(NAMES), st.data())
def test_a_slice_is_indexing_and_slices_add_up_to_the_marginal(table: LifeTable, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    axis, rest = NAMES.index(name), [other for other in NAMES if other != name]
    slices = [table.at(name, level) for level in table.levels(name)]
    for position, part in enumerate(slices):
        assert part.names == tuple(rest)
        for column in COLUMNS:
            whole: Floats = getattr(table, column)
            assert np.array_equal(getattr(part, column), whole[(slice(None),) * axis + (position,)])
    assert same(sum(slices[1:], slices[0]), table.marginal(*rest))


def test_what_is_not_there_is_a_key_error_that_names_it() -> None:
    table = LifeTable.zeros([Dimension("context", ("a", "b"))])
    asked: list[Callable[[], Any]] = [
        lambda: table.axis("band"),
        lambda: table.levels("band"),
        lambda: table.marginal("context", "band"),
        lambda: table.at("band", "a"),
    ]
    for ask in asked:
        with pytest.raises(KeyError, match=r"no dimension 'band' in \['context'\]"):
            ask()
    with pytest.raises(KeyError, match="dimension 'context' has no level 'c'"):
        table.at("context", "c")


# ---- addition --------------------------------------------------------------------------------------------------------


@some
@given(alike(2))
def test_tables_add_up_level_by_level(pair: tuple[LifeTable, LifeTable]) -> None:
    one, two = pair
    total = one + two
    for column in COLUMNS:
        left, right = cells(one, column), cells(two, column)
        assert cells(total, column) == {key: left.get(key, 0.0) + right.get(key, 0.0) for key in cells(total, column)}
        assert cells(total, column).keys() >= left.keys() | right.keys()
    for wide, mine, theirs in zip(total.dimensions, one.dimensions, two.dimensions, strict=True):
        assert wide.levels[: len(mine)] == mine.levels
        assert set(wide.levels) == set(mine.levels) | set(theirs.levels)


@some
@given(alike(3))
def test_the_order_of_adding_changes_no_cell(triple: tuple[LifeTable, LifeTable, LifeTable]) -> None:
    one, two, three = triple
    assert same((one + two) + three, one + (two + three))
    for column in COLUMNS:
        assert cells(one + two, column) == cells(two + one, column)
        total = sum(float(getattr(table, column).sum()) for table in triple)
        assert float(getattr(one + two + three, column).sum()) == total


@some
@given(alike(2))
def test_adding_changes_neither_table(pair: tuple[LifeTable, LifeTable]) -> None:
    before = [[getattr(table, column).copy() for column in COLUMNS] for table in pair]
    (pair[0] + pair[1]).events[...] = 7
    for table, columns in zip(pair, before, strict=True):
        assert all(np.array_equal(getattr(table, name), old) for name, old in zip(COLUMNS, columns, strict=True))


@some
@given(tables())
def test_an_empty_table_adds_nothing(table: LifeTable) -> None:
    assert same(table + LifeTable.zeros(table.dimensions), table)


@pytest.mark.parametrize(
    "other", [("band",), ("band", "context"), ("context", "band", "reason"), ("context", "age"), ()]
)
def test_only_tables_over_the_same_dimensions_add_up(other: tuple[str, ...]) -> None:
    mine = LifeTable.zeros([Dimension("context", ("a",)), Dimension("band", ("0",))])
    theirs = LifeTable.zeros([Dimension(name, ("a",)) for name in other])
    for one, two in ((mine, theirs), (theirs, mine)):
        with pytest.raises(ValueError, match=r"only tables over the same dimensions add up, not .*'context', 'band'"):
            one + two


# ---- alignment -------------------------------------------------------------------------------------------------------


@some
@given(tables(NAMES[:2]), st.data())
def test_aligned_cells_keep_their_names_and_new_cells_are_empty(table: LifeTable, data: st.DataObject) -> None:
    wide = tuple(
        Dimension(each.name, tuple(data.draw(st.permutations([*each.levels, *data.draw(st.sampled_from(["", "xy"]))]))))
        for each in table.dimensions
    )
    found = table.aligned(wide)
    assert found.dimensions == wide
    for column in COLUMNS:
        values = cells(table, column)
        assert cells(found, column) == {key: values.get(key, 0.0) for key in product(*(each.levels for each in wide))}
    assert same(found.aligned(wide), found)


def test_aligning_never_drops_or_renames_a_level() -> None:
    table = LifeTable.zeros([Dimension("context", ("a", "b"))])
    with pytest.raises(ValueError, match="dimension 'context' must keep every level"):
        table.aligned((Dimension("context", ("a", "c", "d")),))
    for foreign in ((Dimension("workload", ("a", "b")),), (), (*table.dimensions, Dimension("band", ("0",)))):
        with pytest.raises(ValueError, match="fits only the same dimensions in the same order"):
            table.aligned(foreign)


# ---- exact counts ----------------------------------------------------------------------------------------------------


@some
@given(tables())
def test_exact_counts_replace_the_noisy_ones_and_nothing_else(table: LifeTable) -> None:
    exact = table.without_privacy(table.events + 1)
    assert np.array_equal(exact.events, table.events + 1)
    assert not exact.noise_variance.any()
    assert exact.dimensions == table.dimensions
    assert np.array_equal(exact.exposure_node_hours, table.exposure_node_hours)
    assert np.array_equal(exact.at_risk, table.at_risk)
    with pytest.raises(ValueError, match="events has shape"):
        table.without_privacy(np.zeros((9, 9)))
