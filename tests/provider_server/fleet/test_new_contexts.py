"""Contexts without rates of their own get first ones: from what they look like, from benchmark jobs, or not at all."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from federation.protocol.known_rates import experience
from provider_server.fleet.analysis.contexts import Context, ContextMap, Look
from provider_server.fleet.learning.benchmark_jobs import BenchmarkJob, parse
from provider_server.fleet.learning.findings import RateFinding
from provider_server.fleet.learning.new_contexts import NewContext, new_contexts
from tests.support.changing import replace

EDGES = (0.0, 24.0, 168.0)
YOUNG = 3.0  # times the rate of old jobs


def level_0(name: str) -> str:
    return f"token of {name}"


def a_map(*models: str) -> ContextMap:
    """A context for each model, and one temperature each, a degree apart."""
    contexts = tuple(Context(number, model, (f"n{number}",), 1.0, 0.5, 2.0) for number, model in enumerate(models, 1))
    looks = tuple(
        (Look("model", True, (model,), None, None), Look("temperature", True, (), 60.0 + at, 61.0 + at))  # noqa: FBT003
        for at, model in enumerate(models)
    )
    return ContextMap(("model", "temperature"), contexts, len(models) + 1, looks, (0.8, 0.2), (0.0, 10.0))


def rates(**old: float) -> list[RateFinding]:
    """Of `context N`, by `cN`: the rate of old jobs, known to a factor of 1.2; that of young ones."""
    found = []
    for name, rate in old.items():
        for band, own in enumerate((YOUNG * rate, rate)):
            found.append(RateFinding(level_0(f"context {name[1:]}"), str(band), own, own / 1.2, own * 1.2))
    return found


def jobs(context: int | str, count: int, failures: int, *, hours: float = 10.0) -> tuple[BenchmarkJob, ...]:
    rows: list[dict[str, Any]] = [
        {
            "job": f"{context} {number}",
            "context": context,
            "nodes": 10,
            "start_h": 0.0,
            "hours": hours,
            "outcome": "nvlink_error" if number < failures else "ok",
            "archetype": "bert",
        }
        for number in range(count)
    ]
    return parse("\n".join(map(json.dumps, rows)).encode(), "made up")


def made(
    found: ContextMap | None, known: Sequence[RateFinding], ran: Sequence[BenchmarkJob] = ()
) -> dict[str, NewContext]:
    return {one.name: one for one in new_contexts(known, ran, found, level_0, EDGES)}


ALIKE = ("A", "A", "A", "B", "B", "B")
KNOWN = rates(c1=1e-4, c2=1.1e-4, c4=1e-3, c5=1.1e-3)


def test_a_new_context_is_taken_for_what_it_looks_like() -> None:
    found = made(a_map(*ALIKE), KNOWN)
    assert set(found) == {"context 3", "context 6"}
    old = {name: one.rates[1].rate for name, one in found.items()}
    assert 0.5e-4 < old["context 3"] < 3e-4
    assert 0.3e-3 < old["context 6"] < 2e-3
    assert "context 2, at distance 0.02" in found["context 3"].newcomer.basis
    assert found["context 3"].newcomer.basis.endswith("no benchmark jobs; no released count")


def test_its_age_bands_go_as_those_of_the_known_and_its_interval_is_wider() -> None:
    one = made(a_map(*ALIKE), KNOWN)["context 3"]
    young, old = one.rates
    assert young.context_level == old.context_level == level_0("context 3")
    assert young.rate / old.rate == pytest.approx(YOUNG)
    assert old.high / old.low > 1.5 * 1.2**2
    assert one.newcomer.rate == pytest.approx(np.sqrt(young.rate * old.rate))


def test_benchmark_jobs_count_by_the_ages_that_they_reach() -> None:
    """As many failures in jobs of ten hours as of a week: so the weeks tell of a worse context."""
    short = made(a_map(*ALIKE), KNOWN, jobs(3, 400, 12))["context 3"].newcomer
    weeks = made(a_map(*ALIKE), KNOWN, jobs(3, 24, 12, hours=168.0))["context 3"].newcomer
    assert "12 failures" in short.basis
    assert f"{400 * 10 * 10 * np.sqrt(YOUNG):,.0f} node-hours" in short.basis
    assert f"{24 * 10 * (24 * np.sqrt(YOUNG) + 144 / np.sqrt(YOUNG)):,.0f} node-hours" in weeks.basis
    assert weeks.rate > 1.2 * short.rate
    without = made(a_map(*ALIKE), KNOWN)["context 3"].newcomer
    assert 1.5 * short.high / short.low < without.high / without.low


def test_what_is_in_no_map_is_far_from_everything() -> None:
    found = made(a_map(*ALIKE), KNOWN, jobs("gb300 west", 200, 2))
    assert "at distance 1;" in found["gb300 west"].newcomer.basis
    lone = made(None, KNOWN, (*jobs(1, 1, 0), *jobs(2, 1, 0), *jobs("gb300 west", 200, 2)))
    assert set(lone) == {"gb300 west"}  # contexts 1 and 2 are known by name, though there is no map
    assert lone["gb300 west"].newcomer.basis.startswith("nearest of 2 known")


def test_while_no_context_is_known_other_fleets_are_and_benchmark_jobs_soon_outweigh_them() -> None:
    first = made(a_map(*ALIKE), [])
    assert {one.newcomer.basis.partition(",")[0] for one in first.values()} == {"nearest of 1 known: other fleets"}
    one = first["context 3"].newcomer
    low, high = experience().interval()
    assert one.low < low < one.rate < high < one.high
    own = made(a_map(*ALIKE), [], jobs(3, 400, 40))["context 3"].newcomer
    assert own.rate == pytest.approx(40 / 40_000, rel=0.2)
    assert own.low > one.rate
    assert made(None, KNOWN) == made(None, []) == {}


def test_a_context_with_rates_is_not_new() -> None:
    assert made(a_map("A", "B"), rates(c1=1e-4, c2=1e-3), jobs(1, 100, 50)) == {}
    other = [replace(one, context_level="token of context 1 at level 2") for one in rates(c2=1e-4)]
    assert "context 2" in made(a_map("A", "B"), [*rates(c1=1e-4), *other])
