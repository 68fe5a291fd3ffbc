"""The benchmark of the online service asks a real server, says every figure, and fails if an answer is wrong."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from federation.protocol.check import Checker
from federation.protocol.service_messages import CheckVerdict
from simulation.bench import check as bench_check
from simulation.bench.check import Generator
from simulation.cli import app
from simulation.run.online_service import CONTEXTS, WORKLOADS, Grounds, a_bundle, labels, serving
from tests.support import schemas

KEYS = {
    *("p50_ms", "p99_ms", "requests_per_second", "server_cpu", "generator_cpu", "local_ms", "local_p99_ms", "requests"),
    *("memory_growth_mib", "watchers", "idle_mib", "watchers_mib", "watchers_shared_mib"),
}


@pytest.mark.nightly
def test_every_figure_is_there_and_of_its_unit() -> None:
    options = ["--seconds", "0.5", "--requests", "300", "--watchers", "40", "--json"]
    result = CliRunner().invoke(app, ["bench", "check", *options], catch_exceptions=False)
    assert result.exit_code == 0
    found = schemas.held("pharoah-sim bench check", result.stdout)
    assert set(found) == KEYS
    assert 0.05 < found["p50_ms"] <= found["p99_ms"] < 10_000
    assert 0.0001 < found["local_ms"] <= found["local_p99_ms"] < found["p99_ms"]
    assert 1 < found["requests_per_second"] < 100_000
    assert (found["requests"], found["watchers"]) == (300, 40)
    assert 20 < found["idle_mib"] < found["watchers_mib"] < 2000
    assert 0 < found["generator_cpu"] < 2
    assert 0 < found["server_cpu"] < 2


def test_the_bundle_says_something_of_every_pair_and_not_always_the_same() -> None:
    checker = Checker(a_bundle())
    found = [checker.check(labels(workload, context)) for workload in range(WORKLOADS) for context in range(CONTEXTS)]
    assert {one.verdict for one in found} == {CheckVerdict.OK, CheckVerdict.MISMATCH}
    assert all(len(one.hazards) == 5 for one in found)


@pytest.mark.nightly
def test_a_wrong_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grounds = Grounds.founded(tmp_path, 2)
    monkeypatch.setattr(bench_check, "EVERY", 1)

    async def ask(port: int) -> None:
        generator = Generator(grounds, port, 1)
        questions = generator.questions(await generator.sign_in())
        await generator.ask(questions)
        swapped = [(question, questions[0][1]) for question, check in questions if check != questions[0][1]]
        with pytest.raises(AssertionError, match="the service's check differs from the bundle's"):
            await generator.ask(swapped)

    with serving(grounds) as server:
        asyncio.run(ask(server.port))
