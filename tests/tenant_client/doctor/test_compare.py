"""What a provider concludes from tokens alone, and what an owner sees beside it."""

from dataclasses import asdict

import pytest
from hypothesis import given, strategies as st

from federation.protocol.round_messages import Ladder
from tenant_client.doctor.workload.compare import compared, conclude, differences, jaccard, operator_text
from tests.support.changing import replace
from tests.support.factories import a_descriptor, token

LADDER = Ladder(token("family"), token("archetype"), token("subarchetype"), token("exact"))
STRANGER = Ladder(token("f"), token("a"), token("s"), token("e"))
LLAMA = a_descriptor()

# ---- conclusions ---------------------------------------------------------------------------------------------------


def same(one: Ladder, other: Ladder) -> set[str]:
    return {name for name, value in asdict(conclude(one, other)).items() if value}


def test_equal_ladders_are_the_same_in_everything_and_strangers_in_nothing() -> None:
    assert same(LADDER, LADDER) == {"same_family", "same_archetype", "same_subarchetype"}
    assert same(LADDER, STRANGER) == set()


def test_every_rung_is_told_by_its_own_token() -> None:
    assert same(LADDER, replace(STRANGER, family=LADDER.family)) == {"same_family"}
    assert same(LADDER, replace(STRANGER, archetype=LADDER.archetype)) == {"same_archetype"}
    assert same(LADDER, replace(STRANGER, subarchetype=LADDER.subarchetype)) == {"same_subarchetype"}
    assert same(LADDER, replace(STRANGER, exact=LADDER.exact)) == set()


@pytest.mark.parametrize("lacking", ["first", "second", "both"])
def test_archetypes_of_traces_that_lack_something_are_unknown_unless_they_are_equal(lacking: str) -> None:
    shapeless = replace(LLAMA, lacks=("shapes",))
    one, other = (shapeless if lacking in (side, "both") else LLAMA for side in ("first", "second"))
    unknown = compared(one, other, conclude(LADDER, STRANGER))
    assert (unknown.same_archetype, unknown.same_subarchetype, unknown.same_family) == (None, None, False)
    assert (unknown.first_lacks, unknown.second_lacks) == (one.lacks, other.lacks)
    assert compared(one, other, conclude(LADDER, LADDER)).same_archetype is True
    assert compared(LLAMA, LLAMA, conclude(LADDER, STRANGER)).same_archetype is False


# ---- similarity ----------------------------------------------------------------------------------------------------

sets = st.frozensets(st.tuples(st.sampled_from("abcd"), st.tuples(st.integers(0, 2))), max_size=8)


@given(one=sets, other=sets)
def test_similarity_is_what_is_shared_over_all(
    one: frozenset[tuple[str, tuple[int]]], other: frozenset[tuple[str, tuple[int]]]
) -> None:
    mine, theirs = replace(LLAMA, operators=one), replace(LLAMA, operators=other)
    found = jaccard(mine, theirs)
    assert found == jaccard(theirs, mine)
    assert found * len(one | other) == pytest.approx(len(one & other))
    assert (found == 1) == (one == other)


# ---- differences ---------------------------------------------------------------------------------------------------


def test_equal_workloads_have_no_differences() -> None:
    assert differences(LLAMA, a_descriptor()) == ()


@pytest.mark.parametrize(
    ("changes", "name", "only_first", "only_second"),
    [
        ({"precision": "fp8"}, "precision", ("bf16",), ("fp8",)),
        ({"parallelism": "dp"}, "parallelism", ("tp8",), ("dp",)),
        ({"versions": (("nccl", "2.26"), ("torch", "2.4"))}, "versions", ("nccl 2.21",), ("nccl 2.26",)),
        ({"kernel_families": frozenset({"flash_fwd"})}, "kernel_families", ("sm90_gemm",), ()),
        ({"structure": LLAMA.structure | {("gelu", ())}}, "structure", (), ("gelu",)),
        ({"collectives": (("all_reduce", 3, 20),) * 2}, "collectives", ("all_gather over 2^3 of 2^18 bytes",), ()),
        ({"operators": LLAMA.operators | {("aten::mm", (9, -1, 0))}}, "operators", (), ("aten::mm [9 | 0]",)),
    ],
)
def test_a_difference_says_what_only_one_of_them_has(
    changes: dict[str, object], name: str, only_first: tuple[str, ...], only_second: tuple[str, ...]
) -> None:
    (found,) = differences(LLAMA, replace(LLAMA, **changes))
    assert (found.property, found.only_first, found.only_second) == (name, only_first, only_second)
    (turned,) = differences(replace(LLAMA, **changes), LLAMA)
    assert (turned.only_first, turned.only_second) == (only_second, only_first)


def test_differences_go_from_coarse_to_fine() -> None:
    other = a_descriptor(
        "bert", precision="fp8", parallelism="dp", versions=(), kernel_families=frozenset(), collectives=()
    )
    assert [found.property for found in differences(LLAMA, other)] == [
        *("precision", "parallelism", "structure", "versions", "kernel_families", "collectives", "operators")
    ]


def test_an_operator_without_shape_is_its_name() -> None:
    assert operator_text(("linear", ())) == "linear"
    assert operator_text(("aten::linear", (0, 9, -1, 9))) == "aten::linear [0 9 | 9]"
