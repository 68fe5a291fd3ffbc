"""A node that hangs is replaced by a spare, with the state of the last checkpoint; how soon, the study measures."""

from dataclasses import replace

import pytest

from simulation.studies.replacement import PHASES, SPARE, Replaced, figures, judged, replaced
from tests import needs


@pytest.mark.nightly
def test_a_spare_takes_the_place_of_a_node_that_hangs() -> None:
    """On node-a, which has rank 0 and the checkpoints."""
    needs.installed("torch")
    seen = replaced("node-a", 27)
    assert seen.exit_code == 0
    assert (seen.node_out, seen.node_in, seen.resumed_at) == ("node-a", SPARE, 20)
    assert seen.is_state_kept
    assert seen.from_verdict_s is not None
    assert seen.from_hang_s is not None
    assert 0.0 < seen.from_verdict_s < seen.from_hang_s


def seen_of(*, again: float, resumed: int = 10) -> Replaced:
    """A run of one rank that hung after step 12, and trained step 11 again with a loss of `again`."""
    steps = [(11, 0.5, 1.0), (12, 0.4, 2.0), (resumed + 1, again, 11.0), (12, 0.4, 12.0), (13, 0.3, 13.0)]
    events = [{"event": "step", "step": step, "rank": 0, "loss": loss, "at_s": at_s} for step, loss, at_s in steps]
    events += [{"event": "hang", "at_s": 3.0}]
    events += [{"event": "gone", "at_s": 7.25}]
    begun = {"launched_s": 8.0, "imported_s": 9.0, "joined_s": 9.5}
    events += [{"event": "start", "node": SPARE, "rank": 0, "step": resumed, "at_s": 10.0, **begun}]
    acts = [{"acted": True, "verdict_s": 6.0, "acted_s": 7.0, "plan": {"node_out": "node-a", "node_in": SPARE}}]
    return judged("node-a", 13, 0, 1.0, events, acts)


def test_phases_add_up_to_the_seconds_from_the_verdict() -> None:
    seen = seen_of(again=0.5)
    assert list(seen.phases_s) == list(PHASES)
    assert list(seen.phases_s.values()) == [1.0, 0.25, 0.75, 1.0, 0.5, 0.5, 3.0]
    assert sum(seen.phases_s.values()) == seen.from_verdict_s


def test_only_the_very_losses_of_the_first_time_are_kept_state() -> None:
    seen = seen_of(again=0.5)
    assert (seen.is_state_kept, seen.from_verdict_s, seen.from_hang_s) == (True, 7.0, 10.0)
    assert not seen_of(again=0.500001).is_state_kept
    assert not seen_of(again=0.5, resumed=0).is_state_kept


def test_a_run_that_did_not_go_on_has_failed() -> None:
    stuck = replace(seen_of(again=0.5), from_verdict_s=None, from_hang_s=None)
    told = figures([seen_of(again=0.5), stuck])
    assert (told["failed"], told["within"]) == (1, 1)
    assert judged("node-a", 13, 1, 1.0, [], []).is_state_kept is False
