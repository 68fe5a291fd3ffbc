"""What a workload is: the same bytes for the same workload, and rungs that tell apart what they should."""

import json
import random
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, strategies as st

from federation.protocol.bundle import SKETCH_BYTES, CatalogueEntry
from tenant_client.doctor.workload.descriptor import (
    POSITIONS,
    Descriptor,
    Sketch,
    nearest,
    own_sketch,
    rungs,
    similarity,
    sketch,
)
from tests.support.changing import replace
from tests.support.factories import a_descriptor

LLAMA = a_descriptor()
OPERATORS = sorted(LLAMA.operators)
T = TypeVar("T")
RUNG_NAMES = ("family", "archetype", "subarchetype", "exact")

# ---- sketches ------------------------------------------------------------------------------------------------------


def two_sets(shared: int, own: int, seed: int) -> tuple[set[bytes], set[bytes]]:
    """Sets of shared + own elements each."""
    one, other = ([b"%d %d %d" % (seed, kind, number) for number in range(own)] for kind in range(2))
    common = [b"%d %d" % (seed, number) for number in range(shared)]
    return {*common, *one}, {*common, *other}


@pytest.mark.parametrize(("shared", "own"), [(0, 50), (10, 45), (20, 20), (60, 20), (90, 5), (100, 0)])
def test_equal_positions_estimate_the_jaccard_similarity(shared: int, own: int) -> None:
    """Mean over 300 pairs within five standard errors, and the spread of one estimate is the stated one."""
    jaccard = shared / (shared + 2 * own)
    pairs = [two_sets(shared, own, seed) for seed in range(300)]
    estimates = np.array([similarity(sketch(one), sketch(other)) for one, other in pairs])
    deviation = np.sqrt(jaccard * (1 - jaccard) / POSITIONS)
    assert deviation <= 0.0625
    assert abs(estimates.mean() - jaccard) <= 5 * deviation / np.sqrt(300)
    assert np.std(estimates) == pytest.approx(deviation, rel=0.25)


@given(elements=st.lists(st.binary(max_size=8), max_size=30), seed=st.integers(0, 10))
def test_a_sketch_is_of_a_set_and_not_of_a_list(elements: list[bytes], seed: int) -> None:
    shuffled = [*elements, *elements]
    random.Random(seed).shuffle(shuffled)
    assert sketch(elements) == sketch(shuffled)


@given(one=st.sets(st.binary(max_size=4), max_size=20), other=st.sets(st.binary(max_size=4), max_size=20))
def test_the_sketch_of_a_union_is_the_lower_of_both(one: set[bytes], other: set[bytes]) -> None:
    if one and other:
        lower = map(min, sketch(one).minima, sketch(other).minima)
        assert sketch(one | other).minima == tuple(lower)


def test_sketches_travel_as_bytes() -> None:
    own = sketch([b"a", b"b"])
    assert Sketch.from_bytes(own.to_bytes()) == own
    assert len(own.to_bytes()) == SKETCH_BYTES == 8 * POSITIONS


# ---- canonical bytes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_rungs_do_not_depend_on_the_order_of_sets(seed: int) -> None:
    def shuffled(items: Iterable[T]) -> list[T]:
        return random.Random(seed).sample(ordered := list(items), len(ordered))

    other = replace(
        LLAMA,
        operators=frozenset(shuffled(LLAMA.operators)),
        versions=tuple(shuffled(LLAMA.versions)),
        kernel_families=frozenset(shuffled(LLAMA.kernel_families)),
    )
    assert rungs(other, ()).inputs == rungs(LLAMA, ()).inputs


def test_the_collectives_of_an_iteration_have_an_order() -> None:
    other = replace(LLAMA, collectives=LLAMA.collectives[::-1])
    assert changed(LLAMA, other) == {"exact"}


def test_no_two_inputs_of_a_ladder_are_equal() -> None:
    empty = replace(LLAMA, operators=frozenset(), collectives=(), versions=(), kernel_families=frozenset())
    for workload in (LLAMA, empty):
        inputs = rungs(workload, ()).inputs
        assert len(set(inputs)) == len(inputs) == len(RUNG_NAMES)


def test_what_can_be_guessed_by_itself_is_no_input() -> None:
    """An input that covers a part of the operators is tested against a guess of that part alone, all else unknown."""
    own = rungs(LLAMA, ())
    for number in range(len(OPERATORS)):
        one_less = rungs(replace(LLAMA, operators=frozenset(OPERATORS[:number] + OPERATORS[number + 1 :])), ())
        assert own.inputs[:-1] == one_less.inputs[:-1]
        assert own.exact != one_less.exact


def test_a_descriptor_comes_back_from_the_journal_as_it_was() -> None:
    for one in (LLAMA, a_descriptor("bert"), replace(LLAMA, versions=(), software=(("linux", "6.8"),))):
        back = Descriptor.from_json(one.to_json())
        assert back == one
        assert rungs(back, ()).inputs == rungs(one, ()).inputs
        assert back.to_json() == one.to_json()


# ---- the ladder ----------------------------------------------------------------------------------------------------


def changed(one: Descriptor, other: Descriptor, catalogue: tuple[CatalogueEntry, ...] = ()) -> set[str]:
    """Names of the rungs that tell two workloads apart."""
    mine, theirs = rungs(one, catalogue), rungs(other, catalogue)
    return {name for name in RUNG_NAMES if getattr(mine, name) != getattr(theirs, name)}


@pytest.mark.parametrize(
    ("changes", "told_apart"),
    [
        ({}, set()),
        ({"versions": (("nccl", "2.22"), ("torch", "2.4"))}, {"subarchetype", "exact"}),
        ({"software": (("deepspeed", "0.14.2"),)}, set()),
        ({"kernel_families": frozenset({"sm100_gemm"})}, {"subarchetype", "exact"}),
        ({"precision": "fp8"}, {"family", "exact"}),
        ({"parallelism": "tp4 pp2"}, {"family", "exact"}),
        ({"collectives": (("all_reduce", 3, 21), ("all_gather", 3, 18))}, {"exact"}),
        ({"collectives": (("all_to_all", 3, 20),)}, {"family", "exact"}),
        ({"operators": frozenset((name, (14, *dims[1:])) for name, dims in OPERATORS)}, {"exact"}),
        ({"operators": frozenset(OPERATORS[1:])}, {"exact"}),
        ({"structure": frozenset({("linear", ())})}, {"archetype", "subarchetype", "exact"}),
    ],
    ids=[
        *("nothing", "versions", "software", "kernels", "precision", "parallelism"),
        *("sizes", "collectives", "shapes", "operators", "structure"),
    ],
)
def test_each_property_is_told_apart_from_its_rung_on(changes: dict[str, object], told_apart: set[str]) -> None:
    assert changed(LLAMA, replace(LLAMA, **changes)) == told_apart


def test_a_finer_rung_never_joins_what_a_coarser_one_of_its_kind_separates() -> None:
    others = [a_descriptor("mixtral"), a_descriptor(versions=()), replace(LLAMA, structure=frozenset())]
    for other in others:
        found = changed(LLAMA, other)
        assert "archetype" not in found or "subarchetype" in found
        assert "subarchetype" not in found or "exact" in found


# ---- the catalogue -------------------------------------------------------------------------------------------------


def entry(name: str, descriptor: Descriptor) -> CatalogueEntry:
    return CatalogueEntry(name, own_sketch(descriptor).to_bytes())


def with_structure(*parts: int) -> Descriptor:
    """LLAMA with another structure, and with operators of its own."""
    own = frozenset((f"part::{number}", ()) for number in parts)
    return replace(LLAMA, structure=own, operators=own)


CATALOGUE = (entry("llama", LLAMA), entry("mixtral", a_descriptor("mixtral")))
numbers = st.frozensets(st.integers(0, 30), min_size=1, max_size=30)


def test_workloads_of_a_benchmarks_structure_are_of_its_archetype_whatever_operators_were_recorded() -> None:
    near = [LLAMA, replace(LLAMA, operators=frozenset(OPERATORS[1:])), replace(LLAMA, operators=frozenset())]
    assert len({rungs(workload, CATALOGUE).archetype for workload in near}) == 1
    assert len({rungs(workload, CATALOGUE).exact for workload in near}) == 3
    assert b"llama" in rungs(near[0], CATALOGUE).archetype


def test_workloads_of_another_structure_keep_their_own_archetype() -> None:
    one_less = replace(LLAMA, structure=frozenset(sorted(LLAMA.structure)[1:]))
    for far in (one_less, replace(LLAMA, structure=LLAMA.structure | {("gelu", ())}), a_descriptor("bert")):
        assert rungs(far, CATALOGUE).archetype == rungs(far, ()).archetype


@given(one=numbers, other=numbers, known=st.lists(numbers, max_size=4))
def test_a_catalogue_neither_parts_nor_joins(
    one: frozenset[int], other: frozenset[int], known: list[frozenset[int]]
) -> None:
    """Also not where an entry differs in one of thirty parts from one of them, or from both."""
    mine, theirs = with_structure(*one), with_structure(*other)
    near = [*known, one, other, one | {31}, other - {min(other)}]
    for number in range(len(near) + 1):
        catalogue = [entry(str(at), with_structure(*parts)) for at, parts in enumerate(near[:number])]
        same = rungs(mine, catalogue).archetype == rungs(theirs, catalogue).archetype
        assert same == (one == other)


def test_the_entry_of_the_same_structure_gives_the_name_wherever_it_stands() -> None:
    less, more = with_structure(*range(29)), with_structure(*range(31))
    crowded = (entry("less", less), entry("own", with_structure(*range(30))), entry("more", more))
    for catalogue in (crowded, crowded[::-1]):
        assert b"own" in rungs(with_structure(*range(30)), catalogue).archetype
        assert b"less" in rungs(less, catalogue).archetype


def test_the_nearest_entry_is_shown_with_how_near_it_is() -> None:
    found = nearest(own_sketch(with_structure(*range(28))), (entry("own", with_structure(*range(30))), *CATALOGUE))
    assert found is not None
    assert found.name == "own"
    assert 0.6 < found.similarity < 1.0
    same = nearest(own_sketch(LLAMA), CATALOGUE)
    assert same is not None
    assert (same.name, same.similarity) == ("llama", 1.0)


# ---- traces that lack something ------------------------------------------------------------------------------------

SHAPELESS = replace(LLAMA, lacks=("shapes",), counts=(("aten::layer_norm", 3), ("aten::linear", 8)))


def test_what_lacks_something_is_matched_on_what_it_has_and_with_nothing_else() -> None:
    assert changed(SHAPELESS, replace(SHAPELESS, operators=frozenset())) == {"exact"}
    assert changed(SHAPELESS, LLAMA) == {"archetype", "subarchetype", "exact"}
    deeper = replace(SHAPELESS, counts=(("aten::layer_norm", 5), ("aten::linear", 16)))
    assert changed(SHAPELESS, deeper) == {"archetype", "subarchetype", "exact"}
    assert "archetype" in changed(SHAPELESS, replace(SHAPELESS, lacks=("operators",)))


def test_what_lacks_something_takes_no_name_of_a_benchmark_that_lacks_nothing() -> None:
    assert rungs(SHAPELESS, CATALOGUE).archetype == rungs(SHAPELESS, ()).archetype
    known = (entry("llama", SHAPELESS),)
    assert b"llama" in rungs(SHAPELESS, known).archetype
    assert rungs(LLAMA, known).archetype == rungs(LLAMA, ()).archetype


def test_a_descriptor_of_before_lacks_was_kept_is_read() -> None:
    told = json.loads(LLAMA.to_json())
    del told["lacks"], told["counts"], told["software"]
    assert Descriptor.from_json(json.dumps(told)) == LLAMA
    assert Descriptor.from_json(SHAPELESS.to_json()) == SHAPELESS


def test_a_new_version_of_a_benchmark_is_the_same_archetype_and_another_subarchetype() -> None:
    newer = replace(LLAMA, versions=(("nccl", "2.26"), ("torch", "2.7")))
    assert changed(LLAMA, newer, CATALOGUE) == {"subarchetype", "exact"}


def test_a_catalogue_does_not_change_the_family() -> None:
    with_it, without = rungs(LLAMA, CATALOGUE), rungs(LLAMA, ())
    assert with_it.family == without.family
    assert with_it.archetype != without.archetype


# ---- secrecy -------------------------------------------------------------------------------------------------------


def test_rungs_do_not_show_themselves() -> None:
    own = rungs(LLAMA, ())
    assert f"{own} {own!r} {[own]}" == "Rungs(…) Rungs(…) [Rungs(…)]"
