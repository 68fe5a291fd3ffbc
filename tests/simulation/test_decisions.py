"""Probabilities that are right lie on the diagonal and are worth acting upon; those that are not are found out."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from federation.protocol.life_table import Floats
from simulation.bench import field_pictures
from simulation.bench.decisions import COSTS, decisions, reliability
from simulation.bench.field import FieldRow, FieldRows
from simulation.bench.field_cells import EVERY, SIZED
from simulation.bench.versions_found import VersionsFound
from tests.support.changing import replace


def pairs(seed: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Probabilities and truths that agree."""
    rng = np.random.default_rng(seed)
    said = np.concatenate([rng.beta(0.3, 10.0, 20_000), rng.beta(8.0, 1.0, 600)])
    return said, rng.random(len(said)) < said


def test_right_probabilities_are_reliable_and_squeezed_ones_are_not() -> None:
    said, worse = pairs(1)
    assert sum(one.pairs for one in reliability(said, worse)) == len(said)

    def surprise(said: Floats) -> float:
        bins = reliability(said, worse)
        off = (abs(one.worse - one.said) / (one.said * (1.0 - one.said) / one.pairs + 1e-9) ** 0.5 for one in bins)
        return float(max(off))

    assert surprise(said) < 4.0
    assert surprise(said**2) > 8.0


def test_who_knows_saves_all_and_right_probabilities_never_cost_more_than_the_best_of_moving_all_and_nothing() -> None:
    said, worse = pairs(2)
    assert [one.net_benefit for one in decisions(worse.astype(float), worse)] == pytest.approx([1.0] * len(COSTS))
    for one in decisions(said, worse):
        assert one.net_benefit >= max(0.0, one.move_all) - 0.01
    assert min(one.net_benefit for one in decisions(1.0 - said, worse)) < -1.0
    assert not list(decisions(said, np.zeros(len(said), np.bool_)))


def test_pictures_show_every_size_and_what_was_not_run(tmp_path: Path) -> None:
    said, worse = pairs(3)
    reliable, decided = tuple(reliability(said, worse)), tuple(decisions(said, worse))
    names = [name for name in SIZED if not name.startswith("hyperscale_x3")]
    rows = [row(name, found=9 * place % 37) for place, name in enumerate(names)]
    standard = replace(row("standard", found=30), reliability=reliable, decisions=decided)
    drawn = field_pictures.draw(FieldRows((*rows, standard)), tmp_path)
    assert [path.name for path in drawn] == ["found_by_size.svg", "decisions_standard.svg"]
    by_size = drawn[0].read_text(encoding="utf-8")
    assert "12,500 nodes, 8×" in by_size
    assert "12,500 nodes, 3×" not in by_size
    assert "move nothing" in drawn[1].read_text(encoding="utf-8")


def row(name: str, found: int) -> FieldRow:
    intervals, versions = (0.95, 0.95, 2.0, 3.0, 0.95), VersionsFound(*[0] * 8)
    epsilon = EVERY[name]().epsilon
    return FieldRow(name, epsilon, 0.5, "operators", 0.9, 0.8, 36, found, 0, 0, *intervals, 1, (), (), versions)
