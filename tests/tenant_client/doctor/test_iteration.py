"""One iteration out of several: the same collectives however many steps were traced, and wherever the trace was cut."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from tenant_client.doctor.sources.trace import Collective, Trace
from tenant_client.doctor.workload.iteration import period, skeleton

ITERATION = ("all_gather", "all_gather", "reduce_scatter", "all_reduce")
EXPECTED = (("all_gather", 3, 20), ("reduce_scatter", 3, 20), ("all_reduce", 3, 20))


def traced(kinds: Sequence[str], steps: Sequence[float] = (), *, group: int = 8, size: int = 1 << 20) -> Trace:
    trace = Trace("rank0", steps=list(steps))
    trace.collectives = [Collective(kind, group, size, float(at)) for at, kind in enumerate(kinds)]
    return trace


# ---- marks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_number_of_iterations_does_not_matter(count: int) -> None:
    marks = [4.0 * number for number in range(count + 1)]
    assert skeleton(traced(ITERATION * count, marks)) == EXPECTED
    assert skeleton(traced(ITERATION * count)) == EXPECTED


def test_the_commonest_iteration_counts_and_not_the_warm_up() -> None:
    kinds = ("broadcast", "broadcast", *ITERATION * 3, "all_reduce")
    assert skeleton(traced(kinds, [0, 2, 6, 10, 14, 15])) == EXPECTED


def test_parts_before_the_first_and_after_the_last_mark_do_not_count() -> None:
    assert skeleton(traced(("reduce", *ITERATION, "all_gather", "send"), [1, 5])) == EXPECTED


def test_iterations_without_collectives_do_not_count() -> None:
    kinds = traced(ITERATION, [0, 4, 50, 60, 70])
    assert skeleton(kinds) == EXPECTED
    assert skeleton(traced((), [0, 1, 2])) == ()


def test_without_collectives_between_marks_the_period_decides() -> None:
    assert skeleton(traced(ITERATION * 2, [100, 200])) == EXPECTED


# ---- entries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "size", "entry"),
    [(8, 1 << 20, (3, 20)), (1, 1, (0, 0)), (6, 1500, (3, 11)), (0, 0, (0, 0)), (-1, -5, (0, 0))],
)
def test_ranks_and_bytes_are_powers_of_two(group: int, size: int, entry: tuple[int, int]) -> None:
    assert skeleton(traced(["all_reduce"], group=group, size=size)) == (("all_reduce", *entry),)


def test_where_no_group_is_said_it_is_the_world() -> None:
    trace = traced(["all_reduce"], group=0)
    trace.world_size = 64
    assert skeleton(trace) == (("all_reduce", 6, 20),)


def test_equal_neighbours_are_one_and_others_are_not() -> None:
    assert [kind for kind, _, _ in skeleton(traced("aabab" + "c"))] == ["a", "b", "a", "b", "c"]


# ---- periods -------------------------------------------------------------------------------------------------------


def slow_period(sequence: Sequence[object]) -> int:
    lengths = range(1, len(sequence) // 2 + 1)
    return next((length for length in lengths if sequence[length:] == sequence[:-length]), len(sequence))


@given(block=st.text("ab", min_size=1, max_size=6), times=st.integers(1, 5), rest=st.text("abc", max_size=4))
@settings(max_examples=300)
def test_the_period_is_what_its_definition_says(block: str, times: int, rest: str) -> None:
    for sequence in (block * times, block * times + rest, rest, block * times + block[: len(rest)]):
        assert period(sequence) == slow_period(sequence)


def test_a_period_may_be_cut_at_its_end_but_not_before_its_second_time() -> None:
    assert [period("abcabcab"), period("abcabc"), period("abcab"), period("aaaa")] == [3, 3, 5, 1]


def test_a_long_trace_without_marks_takes_no_time_to_speak_of() -> None:
    kinds = ("all_gather",) * 99_999 + ("all_reduce",)  # a search length by length would compare five billion entries
    assert period(kinds * 2) == 100_000
    assert period(kinds) == 100_000
