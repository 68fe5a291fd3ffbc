"""The provider's own benchmark jobs: files that are read as a whole or not at all, exact evidence, readable rules."""

import json
import os
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.protocol.bundle import PairJudgement
from federation.protocol.causes import Domain
from provider_server.fleet.analysis.cold_start import Known, bootstrap
from provider_server.fleet.learning.benchmark_jobs import (
    FILE,
    BadBenchmarks,
    BenchmarkJob,
    evidence,
    parse,
    read,
    records,
    rules_from,
)
from provider_server.fleet.learning.findings import learn
from provider_server.fleet.learning.links import renamed
from provider_server.fleet.learning.verdicts import PairFinding
from provider_server.fleet.leases import Lease, context_tokens
from provider_server.fleet.release import Release
from provider_server.rounds import home as homes
from provider_server.rounds.store.store import Store
from simulation.cloud.scenario import load as scenario
from simulation.studies.learning import live, releases, small
from tests.support.plans import InsecureSeeded

RATE = 1e-4  # per node-hour

LINE: dict[str, Any] = {
    "job": "gemm-0412",
    "context": 3,
    "nodes": 4,
    "start_h": 812.5,
    "hours": 6.0,
    "outcome": "nvlink_error",
    "versions": {"torch": "2.9.1", "nccl": "2.28.3"},
    "settings": {"fabric": "ndr", "ranks": 32, "graphs": True},
    "archetype": "bert",
}


def lines(*changes: dict[str, Any]) -> bytes:
    return "\n".join(json.dumps(LINE | change) for change in changes).encode()


def fleet(seed: int, lift: float) -> tuple[BenchmarkJob, ...]:
    """Jobs on 12 contexts and 3 archetypes; NCCL 2.18 and 2.19 fail `lift` times as often."""
    rng = np.random.default_rng(seed)
    jobs = []
    for number in range(2500):
        nccl, context = rng.choice(["2.17.1", "2.18.3", "2.19.1", "2.20.5"]), int(rng.integers(12))
        chance = 0.02 * (1.0 + context % 3) * (lift if nccl.startswith(("2.18", "2.19")) else 1.0)
        jobs.append(
            LINE
            | {
                "job": str(number),
                "context": context,
                "archetype": str(rng.choice(["bert", "gpt", "resnet"])),
                "outcome": "nvlink_error" if rng.random() < chance else "ok",
                "versions": {"nccl": nccl, "torch": str(rng.choice(["2.8.0", "2.9.1"]))},
                "settings": {"ranks": int(rng.choice([8, 16])), "fabric": str(rng.choice(["hdr", "ndr"]))},
            }
        )
    return parse(lines(*jobs), "made up")


def test_a_file_becomes_jobs(tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(lines({}, {"job": "b", "context": "h100 east", "outcome": "ok"}) + b"\n\n")
    first, second = read(file)
    assert (first.place, first.node_hours, first.failed(Domain.INFRASTRUCTURE)) == ("3", 24.0, True)
    assert (second.place, second.failed(Domain.INFRASTRUCTURE)) == ("h100 east", False)
    assert not first.failed(Domain.SCRIPT)
    assert parse(b"", "nothing") == ()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"outcome": "gremlins"}, "'gremlins' is neither ok nor a known cause"),
        ({"nodes": 0}, "Expected `int` >= 1"),
        ({"hours": 0.0}, "hours"),
        ({"node": 3}, "unknown field `node`"),
        ({"context": -1}, "context"),
        ({"versions": {"nccl": 2}}, "versions"),
        ({"settings": {"nccl": "2.28"}}, "nccl: a version and a setting"),
        ({"job": "gemm-0412"}, "on an earlier line"),
    ],
)
def test_an_error_names_file_line_and_fault(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadBenchmarks) as caught:
        parse(lines({}, {"job": "b"} | change), "jobs.jsonl")
    assert str(caught.value).startswith("jobs.jsonl, line 2: ")
    assert fault in str(caught.value)
    assert "nothing was read" in caught.value.diagnostics()


def test_a_file_that_is_not_there_or_not_json_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadBenchmarks, match="No such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(BadBenchmarks, match="line 1"):
        parse(b"{", "jobs.jsonl")


def test_jobs_are_evidence_for_a_newcomer() -> None:
    jobs = parse(
        lines(
            {},
            {"job": "b", "outcome": "ok"},
            {"job": "c", "outcome": "type_error", "archetype": "gpt"},
            {"job": "d", "context": "new", "nodes": 1},
        ),
        "jobs.jsonl",
    )
    table = evidence(jobs)
    assert table.levels("workload") == ("bert", "gpt")
    assert not table.noise_variance.any()
    old = table.marginal("context").at("context", "3")
    assert (float(old.events), float(old.exposure_node_hours), float(old.at_risk)) == (1.0, 72.0, 3.0)
    assert evidence(jobs, Domain.SCRIPT).events.sum() == 1.0
    new = table.marginal("context").at("context", "new")
    found = bootstrap(
        [Known("3", np.log(RATE), 0.1)], np.ones(1), float(new.events), float(new.exposure_node_hours), None
    )
    assert found.rate > RATE


@pytest.mark.nightly
def test_jobs_make_readable_rules() -> None:
    (rule,) = rules_from(fleet(4, lift=5.0), np.random.default_rng(0))
    assert str(rule) == "nccl in [2.18, 2.20)"
    assert 3.0 < rule.lift < 8.0
    assert rules_from(fleet(5, lift=1.0), np.random.default_rng(0)) == ()
    assert rules_from(fleet(4, lift=5.0), np.random.default_rng(0), domain=Domain.SCRIPT) == ()
    assert rules_from((), np.random.default_rng(0)) == ()


def test_settings_that_some_jobs_lack_are_text_and_numbers_that_all_have_are_numbers() -> None:
    jobs = parse(lines({}, {"job": "b", "settings": {"ranks": 8, "depth": 2}, "versions": {}}), "jobs.jsonl")
    seen = records(jobs, Domain.INFRASTRUCTURE)
    assert seen.numbers == {"ranks": [32.0, 8.0]}
    assert seen.settings == {
        "depth": ["not set", "2"],
        "fabric": ["ndr", "not set"],
        "graphs": ["true", "not set"],
    }
    assert seen.versions == {"nccl": ["2.28.3", None], "torch": ["2.9.1", None]}


# ---- stand-ins: jobs that the provider ran itself --------------------------------------------------------------------


RUNS, FAILURES, TIMES = 60, 5, 10  # of each pair; of those of planted pairs, so many times as many fail


@cache
def a_year() -> tuple[list[Release], list[Lease]]:
    """A small cloud, of which noise hides what pairs fail at."""
    year = live(small(scenario("standard")), 3)
    return releases(year, 0.1, InsecureSeeded(20)), list(year.leases)


def home_of_a_provider(home: Path) -> tuple[list[Release], list[Lease]]:
    """A home whose context key gives the tokens of that cloud's contexts, which leases know as `hall TOKEN`."""
    homes.create(home, ["localhost"], os.urandom, datetime.now(UTC))
    made, leases = a_year()
    return renamed(made, leases, tokens_in(home))


def tokens_in(home: Path) -> dict[str, str]:
    made, key = a_year()[0], (home / "context.key").read_bytes()
    halls = {name for one in made for name in one.table("pairs").levels("context")}
    return {one: context_tokens(key, made[-1].plan.epoch, f"hall {one}", 0)["context"] for one in halls}


def stand_ins(home: Path, pairs: Sequence[PairFinding], planted: Sequence[PairFinding], failures: int) -> None:
    """Runs of each pair, as long as an average pair needs to fail `FAILURES` times."""
    hours = FAILURES / RUNS / np.mean([pair.rate for pair in pairs])
    with (home / FILE).open("w") as file:
        for pair, run in product(pairs, range(RUNS)):
            failed = run < (TIMES * failures if pair in planted else failures)
            own = {"job": f"{pair.key} {run}", "context": f"hall {pair.context}", "archetype": pair.workload}
            more = {"nodes": 1, "hours": hours, "outcome": "wrong_result" if failed else "ok"}
            file.write(json.dumps(LINE | own | more) + "\n")


@pytest.mark.nightly
def test_findings_learn_from_what_the_provider_ran_itself(tmp_path: Path) -> None:
    """Stand-ins of a few pairs tell what noise hides of them; those that never fail convict nobody."""
    home, pairs = tmp_path / "provider", learn(*a_year()).pairs
    made, leases = home_of_a_provider(home)
    planted = pairs[75::150]

    def worse() -> set[tuple[str, str]]:
        with closing(Store(home / "provider.db")) as store:
            found = homes.open_publisher(home, store)._learner(made, leases, None)
        return {pair.key for pair in found.pairs if pair.judgement is PairJudgement.WORSE}

    assert worse() == set()
    stand_ins(home, pairs, planted, 0)
    assert worse() == set()
    stand_ins(home, pairs, planted, FAILURES)
    assert worse() == {(pair.workload, tokens_in(home)[pair.context]) for pair in planted}


def test_hangs_and_wrong_results_count_as_the_hardwares_and_unknown_ends_as_nobodys() -> None:
    outcomes = ("hang", "wrong_result", "unknown", "assertion_error", "ok")
    jobs = parse(lines(*({"job": one, "outcome": one} for one in outcomes)), "made up")
    assert evidence(jobs).events.sum() == 2
    assert evidence(jobs, Domain.FRAMEWORK).events.sum() == 1
    assert evidence(jobs).exposure_node_hours.sum() == 5 * 24
