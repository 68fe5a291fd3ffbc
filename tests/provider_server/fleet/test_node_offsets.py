"""Own failures shift the hazard of a node within its context: a lemon is in danger, an average one as before."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from crypto.errors import DecodeError
from crypto.ids import LeaseId, Token
from federation.protocol.bundle import Bundle, HazardEntry
from federation.protocol.service_messages import Suspicion
from provider_server.fleet.analysis.probation import Probation, histories
from provider_server.fleet.analysis.recurrent import spells
from provider_server.fleet.hints.episodes import LeaseHazard
from provider_server.fleet.hints.node_hazard import NodeState, Rates, View
from provider_server.fleet.learning.hardware import Repair
from provider_server.fleet.learning.node_offsets import (
    NOTHING_KNOWN,
    STATE,
    History,
    NodeOffsets,
    keep,
    load,
    of_histories,
)
from provider_server.fleet.outage_files import SCHEMA

NODES = [f"n{number}" for number in range(20)]
KNOWN = NodeOffsets(100.0, 0.5, 1000.0, {node: History(2.0, 2.0) for node in NODES} | {"lemon": History(9.0, 2.0)})


def everywhere(_: str) -> int:
    return 1


def judged(
    offsets: NodeOffsets, nodes: Sequence[str], at_h: float = 100.0, repairs: Sequence[Repair] = ()
) -> LeaseHazard:
    """Of a lease on nodes that are all at level 0, where a bundle says one failure in 1,000 node-hours."""
    token = str(Token(bytes(Token.length)))
    entries = (HazardEntry(Token.fromhex(token), "0", 1.0, 0.5, 2.0),)
    rates = Rates(Bundle(1, 0, 168, (), (), entries, None, (0.0, 1e6)), lambda _context, _level: token, [1])
    states = {node: NodeState(0, Suspicion.UNCLEAR, is_heard=True) for node in nodes}
    view = View(states, everywhere, rates, 24.0, offsets.by_node(everywhere, repairs, at_h))
    _, hazard = view.judge(LeaseId(bytes(LeaseId.length)), nodes, 1.0)
    assert hazard is not None
    return hazard


def test_a_lemon_s_lease_has_a_higher_hazard_and_an_average_node_s_the_same_as_before() -> None:
    before, average, lemon = (judged(*one) for one in ((NOTHING_KNOWN, ["n1"]), (KNOWN, ["n1"]), (KNOWN, ["lemon"])))
    assert average.probability == pytest.approx(before.probability, rel=0.1)
    assert lemon.probability > 2.0 * before.probability
    assert judged(KNOWN, ["n1", "lemon"]).probability > 1.5 * judged(KNOWN, ["n1", "n2"]).probability
    assert judged(KNOWN, ["stranger"]) == judged(NOTHING_KNOWN, ["stranger"])
    assert (lemon.ratio, lemon.excess) == (before.ratio, before.excess)  # no hint: it began so


def test_a_context_that_fails_often_makes_no_lemons_of_its_nodes() -> None:
    """Bundles have its rate already."""
    often = {node: History(8.0, 2.0) for node in NODES}
    offsets = NodeOffsets(0.0, 0.5, 1000.0, often | {"elsewhere": History(8.0, 2.0)})
    by_node = offsets.by_node(lambda node: int(node == "elsewhere"), (), 0.0)
    assert by_node["n3"] == pytest.approx(1.0, abs=0.05)
    assert by_node["elsewhere"] > 1.2  # alone in its context: half the context's, half its own


def test_what_a_node_did_fades_and_is_over_with_a_repair() -> None:
    assert judged(KNOWN, ["lemon"], 2000.0).probability < judged(KNOWN, ["lemon"]).probability
    assert judged(KNOWN, ["lemon"], 20_000.0).probability == pytest.approx(judged(KNOWN, ["n1"]).probability, rel=0.1)
    repaired = judged(KNOWN, ["lemon"], 200.0, [Repair("lemon", 150)])
    assert repaired == judged(NOTHING_KNOWN, ["lemon"])
    assert judged(KNOWN, ["lemon"], 200.0, [Repair("lemon", 50)]).probability > 2.0 * repaired.probability


def test_failures_as_often_as_the_model_expects_make_an_average_node() -> None:
    """Of 20 nodes with two outages each in 1,000 hours and one with ten, by the outages alone."""
    down = [(node, at, at + 1.0, "x") for node in NODES for at in (300.0, 700.0)]
    down += [("lemon", 90.0 * number, 90.0 * number + 1.0, "x") for number in range(1, 11)]
    found = spells(pl.DataFrame(down, schema=SCHEMA, orient="row"), [*NODES, "lemon"], 0.0, 1000.0)
    model = Probation((24.0,), 0.002, (1.0, 1.0), (0.1, 0.1), 0.5, 1e6, 50)
    offsets = of_histories(histories(model, found, 1000.0), model.frailty_variance, model.memory_h, 1000.0)
    by_node = offsets.by_node(everywhere, (), 1000.0)
    assert [by_node[node] for node in NODES] == pytest.approx([1.0] * 20, abs=0.2)
    assert by_node["lemon"] == pytest.approx((2 + 10) / (2 + 2), rel=0.2)


def test_what_is_kept_comes_back_and_damage_is_refused(tmp_path: Path) -> None:
    assert load(tmp_path) == NOTHING_KNOWN
    keep(tmp_path, KNOWN)
    assert load(tmp_path) == KNOWN
    (tmp_path / STATE).write_text('{"until_h": 0, "frailty_variance": -1, "memory_h": 1, "nodes": {}}')
    with pytest.raises(DecodeError, match=STATE):
        load(tmp_path)
