"""The benchmark of the online service asks a real server, says every figure, and fails if an answer is wrong."""

import asyncio
from pathlib import Path

import pytest

from federation.protocol.check import Checker
from federation.protocol.service_messages import CheckVerdict
from simulation.run.online_service import CONTEXTS, WORKLOADS, Grounds, a_bundle, labels, serving
from simulation.studies import check as bench_check
from simulation.studies.check import Generator


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
