"""A repair holds a node's level up: what is learnt decides how far, and leases, hints and the fleet map know it."""

from pathlib import Path

import msgspec
import pytest

from crypto.errors import DecodeError
from federation.protocol.service_messages import Suspicion
from provider_server.fleet.analysis.buildup import BuildUp
from provider_server.fleet.analysis.contexts import Context, ContextMap
from provider_server.fleet.analysis.probation import Probation, shipped
from provider_server.fleet.hints.node_hazard import NodeState, held_up
from provider_server.fleet.learning import hardware, on_probation
from provider_server.fleet.learning.hardware import Kept, Repair
from provider_server.fleet.learning.on_probation import STATE, OnProbation, keep_model, load, load_model
from provider_server.rounds.intake.recorder import context_of

MODEL = Probation((10.0, 20.0, 30.0), 1e-4, (9.0, 5.0, 3.0, 2.5), (0.1,) * 4, 1.0, 100.0, 50)


def test_levels_fall_with_the_ratios_and_end_at_the_last_edge() -> None:
    known = OnProbation.since([Repair("a", 100)], MODEL)
    assert [known.level("a", 100 + hours) for hours in (-1, 0, 9.9, 10, 20, 29.9, 30, 999)] == [0, 3, 3, 2, 1, 1, 0, 0]
    assert known.level("b", 100) == 0
    assert known.lasts_h() == 30
    assert known.levels(125) == {"a": 1}
    assert known.levels(130) == {}


def test_probation_ends_where_the_ratio_is_usual_again() -> None:
    calm = msgspec.structs.replace(MODEL, ratios=(9.0, 1.9, 1.0, 1.0))
    assert OnProbation.since([Repair("a", 100)], calm).lasts_h() == 10
    harmless = msgspec.structs.replace(MODEL, ratios=(0.5, 1.0, 1.0, 1.0))
    assert OnProbation.since([Repair("a", 100)], harmless).lasts_h() == 0


def test_the_last_repair_before_the_time_counts_in_whatever_order_they_were_told() -> None:
    known = OnProbation.since([Repair("a", 125), Repair("a", 100), Repair("a", 100)], MODEL)
    assert [known.level("a", hour) for hour in (124, 125, 136)] == [1, 3, 2]


def test_what_is_shipped_holds_a_node_up_for_two_weeks() -> None:
    known = OnProbation.since([Repair("a", 0)], shipped())
    assert [known.level("a", hour) for hour in (0, 23, 24, 71, 72, 335, 336)] == [3, 3, 2, 2, 1, 1, 0]


# ---- who knows it ----------------------------------------------------------------------------------------------------


def kept() -> Kept:
    known = ContextMap((), (Context(4, "all alike", ("a", "b", "c"), 0.1, 0.05, 0.2),), 5, ((),), (), ())
    return Kept(100, known, {"a": 0, "b": 2, "c": 0}, BuildUp().state())


def test_a_new_lease_on_a_repaired_node_is_placed_at_its_level() -> None:
    known = OnProbation.since([Repair("a", 100)], MODEL)
    for start_h, nodes, level in (
        (101.0, "ab", 3),
        (115.0, "ac", 2),
        (125.0, "ab", 2),
        (140.0, "ac", 0),
        (99.0, "a", 0),
    ):
        least = {node: known.level(node, start_h) for node in nodes}
        assert context_of(kept(), tuple(nodes), least) == ("context 4", level)


def test_the_map_of_the_fleet_shows_it_and_build_up_stays_as_it_was() -> None:
    before = kept()
    held = OnProbation.since([Repair("a", 100), Repair("b", 85)], MODEL).hold(before, 105.0)
    assert held.levels == {"a": 3, "b": 2, "c": 0}
    assert (held.build_up, before.levels["a"]) == (before.build_up, 0)


def test_hints_count_a_heard_node_at_its_level_and_suspect_only_what_a_signal_shows() -> None:
    states = {
        "quiet": NodeState(0, Suspicion.MEMORY, is_heard=True),
        "worn": NodeState(1, Suspicion.MEMORY, is_heard=True),
        "worse": NodeState(3, Suspicion.MEMORY, is_heard=True),
        "silent": NodeState(0, Suspicion.UNCLEAR, is_heard=False),
    }
    held = held_up(states, dict.fromkeys([*states, "unknown"], 2))
    assert held["quiet"] == NodeState(2, Suspicion.UNCLEAR, is_heard=True)
    assert held["worn"] == NodeState(2, Suspicion.MEMORY, is_heard=True)
    assert held["worse"] == states["worse"]
    assert held["silent"] == states["silent"]
    assert set(held) == set(states)


# ---- in the home -----------------------------------------------------------------------------------------------------


def test_the_fleet_s_own_model_is_kept_and_the_shipped_one_is_for_who_has_none(tmp_path: Path) -> None:
    assert load_model(tmp_path) == shipped()
    keep_model(tmp_path, MODEL)
    hardware.record_repairs(tmp_path, ["a"], 100, kept())
    assert load(tmp_path) == OnProbation(MODEL, {"a": (100,)})
    (tmp_path / STATE).write_text('{"edges_h": []}')
    with pytest.raises(DecodeError, match=STATE):
        on_probation.load(tmp_path)
