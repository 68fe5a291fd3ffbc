"""What made a job's steps long, against ByteDance's published results and against pipelines with a known answer."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from federation.base.reading import SourceError
from tenant_client.doctor.diagnosis.stragglers.schedule import NoSchedule, schedule
from tenant_client.doctor.diagnosis.stragglers.simulation import own_times, step_times
from tenant_client.doctor.diagnosis.stragglers.what_if import StragglerCause, what_if
from tenant_client.doctor.sources.step_trace import read_step_trace
from tenant_client.program.cli import app
from tests.support import pipelines
from tests.support.schemas import held

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "stragglers"
STEPS, BATCHES = 20, 4


def a_pipeline(
    path: Path, ranks: int, stages: int, slow: tuple[int, int] | None = None, lengths: NDArray[np.float64] | None = None
) -> Path:
    factors = np.ones((ranks, stages))
    if slow is not None:
        factors[slow] = 2.0
    return pipelines.write(path, factors, np.ones((ranks, STEPS, BATCHES)) if lengths is None else lengths)


def uneven(ranks: int, spread: float) -> NDArray[np.float64]:
    return np.random.default_rng(7).lognormal(0.0, spread, (ranks, STEPS, BATCHES))


@pytest.mark.parametrize(("name", "cause"), [("AR", StragglerCause.WORKER), ("ST", StragglerCause.LAST_STAGE)])
def test_published_slowdowns_are_found_again(name: str, cause: StragglerCause) -> None:
    if not (DATA / f"trace-{name}.parquet").exists():
        pytest.skip(f"../shared/data/stragglers/trace-{name}.parquet is missing")
    pytest.importorskip("polars")
    published = {kind: json.loads((DATA / f"{kind}-{name}.json").read_text()) for kind in ("result", "mw", "ms")}
    found = what_if(read_step_trace(DATA / f"trace-{name}.parquet"))
    assert found.cause is cause
    assert found.slowdown == pytest.approx(published["result"]["blocking_slowdown"], abs=0.001)
    assert found.workers == pytest.approx(published["mw"]["Mw"], abs=0.001)
    assert found.last_stage == pytest.approx(published["ms"]["Ms"], abs=0.001)
    assert found.by_kind == pytest.approx(published["result"]["blocking_decompose_by_optype"], abs=0.001)
    for ours, theirs in ((found.by_dp_rank, "dp_rank"), (found.by_stage, "stage")):
        others = published["result"][f"blocking_decompose_by_{theirs}"]
        assert list(ours) == pytest.approx([others[str(number)] for number in range(len(ours))], abs=0.001)


def test_one_slow_worker_explains_all_of_the_excess(tmp_path: Path) -> None:
    found = what_if(read_step_trace(a_pipeline(tmp_path / "t.csv", ranks=2, stages=1, slow=(1, 0))))
    ends_s = 0.81
    assert found.step_s == pytest.approx(BATCHES * 6 + ends_s)
    assert found.ideal_s == pytest.approx(BATCHES * 4.5 + ends_s)
    assert found.workers == pytest.approx(1.0)
    assert found.by_dp_rank == pytest.approx((1.0, found.slowdown))
    assert (found.cause, found.slowest[0].rank) == (StragglerCause.WORKER, 1)


def test_the_schedule_takes_as_long_as_the_pipeline_that_was_traced(tmp_path: Path) -> None:
    trace = read_step_trace(a_pipeline(tmp_path / "t.csv", ranks=3, stages=4, slow=(1, 2), lengths=uneven(3, 0.5)))
    meetings = schedule(trace)
    traced_s = (trace.end_s.max(axis=(0, 1)) - trace.start_s.min(axis=(0, 1))).tolist()
    assert step_times(meetings, own_times(trace, meetings)).tolist() == pytest.approx(traced_s)


@pytest.mark.parametrize("stages", [1, 4])
def test_uneven_lengths_make_no_worker_slow(stages: int, tmp_path: Path) -> None:
    found = what_if(read_step_trace(a_pipeline(tmp_path / "t.csv", 4, stages, lengths=uneven(4, 0.6))))
    assert found.cause is StragglerCause.SEQUENCE_LENGTH
    assert found.lengths is not None
    assert found.lengths > 0.5


def test_a_rank_that_always_has_the_longer_sequences_is_not_slow(tmp_path: Path) -> None:
    lengths = np.ones((4, STEPS, BATCHES))
    lengths[2] = 2.0
    found = what_if(read_step_trace(a_pipeline(tmp_path / "t.csv", 4, 4, lengths=lengths)))
    assert found.cause is StragglerCause.SEQUENCE_LENGTH
    assert found.workers_at_even_lengths == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(("stages", "slow"), [(1, (2, 0)), (4, (2, 1))])
def test_a_slow_worker_is_named_among_uneven_lengths(stages: int, slow: tuple[int, int], tmp_path: Path) -> None:
    found = what_if(read_step_trace(a_pipeline(tmp_path / "t.csv", 4, stages, slow, uneven(4, 0.15))))
    assert (found.cause, found.slowest[0].rank) == (StragglerCause.WORKER, slow[0] * stages + slow[1])


def test_a_job_without_a_straggler_has_none(tmp_path: Path) -> None:
    found = what_if(read_step_trace(a_pipeline(tmp_path / "t.csv", ranks=2, stages=4)))
    assert found.slowdown == pytest.approx(1.0)
    assert found.cause is StragglerCause.NONE


# ---- the verb, and bad input ---------------------------------------------------------------------------------------


def test_the_verb_names_the_worker_and_counts_incomplete_steps(tmp_path: Path) -> None:
    path = a_pipeline(tmp_path / "t.csv", ranks=2, stages=1, slow=(1, 0))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    result = CliRunner().invoke(app, ["show", "--only", "stragglers", str(path), "--json"])
    assert result.exit_code == 1
    told = held("pharoah-tenant show --only stragglers", result.stdout)
    assert (told["cause"], told["slowest"][0]["rank"], told["left_out"]) == ("worker", 1, 1)
    assert "left out 1 incomplete steps of 20" in result.stderr
    assert (
        "rank 1 (data-parallel 1, stage 0) is slow"
        in CliRunner().invoke(app, ["show", "--only", "stragglers", str(path)]).stdout
    )


@pytest.mark.parametrize(
    ("found", "put", "said"),
    [
        ("optype", "kind", "no column optype"),
        (",gc,", ",quantum,", "unknown kind of operation: quantum"),
        ("forward-compute", "backward-compute", "is there twice"),
        (",2.0,", ",nan,", "duration is negative"),
        (",2.0,", ",two,", "not a row of a trace"),
        ("1,0,1,0,gc", "1,9999999,1,0,gc", "stage is 9999999"),
        ("1,0,1,0,gc", "1,3,1,0,gc", "no step has every operation"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_place(found: str, put: str, said: str, tmp_path: Path) -> None:
    path = a_pipeline(tmp_path / "t.csv", ranks=2, stages=1)
    path.write_text("\n".join(line.replace(found, put) for line in path.read_text().splitlines()))
    with pytest.raises((SourceError, NoSchedule), match=said):
        what_if(read_step_trace(path))


def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1" + bytes(64) + b"PAR1")
    with pytest.raises(SourceError, match="no such Parquet file"):
        read_step_trace(path)
