"""Logs of Inspector as NCCL's source writes them (`tests.support.ras`); none was recorded: no such job ran here."""

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from typer.testing import CliRunner

from federation.base.reading import CappedReader, ReadLimits, SourceError
from tenant_client.doctor.diagnosis.stragglers import waits as waits_module
from tenant_client.doctor.diagnosis.stragglers.waits import WaitCause, Waits, waits
from tenant_client.doctor.sources.nccl_inspector import Record, holds_logs, looks_like, read
from tenant_client.program.cli import app
from tests.support.ras import inspected

Times = NDArray[np.int64]
# The verbose example of plugins/profiler/inspector/README.md, NCCL 2.30.7, on one line as the plugin writes it.
DOCUMENTED = json.dumps(
    {
        "header": {"id": "0xe62dedaa97644a", "rank": 4, "n_ranks": 8, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "9019a1912-dirty",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1752867229276385,
            "hostname": "example-hostname",
            "pid": 438776,
        },
        "coll_perf": {
            "coll": "ReduceScatter",
            "coll_sn": 1231,
            "coll_msg_size_bytes": 2147483648,
            "coll_exec_time_us": 41057,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 418.439467,
            "coll_busbw_gbs": 366.134533,
            "event_trace_sn": {
                "coll_start_sn": 1,
                "coll_stop_sn": 2,
                "kernel_events": [
                    {"channel_id": 0, "kernel_start_sn": 3, "kernel_stop_sn": 48, "kernel_record_sn": 47}
                ],
            },
        },
    },
    separators=(",", ":"),
)


def of_text(text: str, limits: ReadLimits | None = None) -> list[Record]:
    return list(read(CappedReader(io.BytesIO(text.encode()), "a.log", 1 << 30), limits or ReadLimits()))


def judged(*logs: Mapping[str, str]) -> Waits:
    return waits(record for log in logs for text in log.values() for record in of_text(text))


def random_times(ranks: int, count: int = 60, seed: int = 1) -> Times:
    """Transfers of 5 ms and ranks that come up to 400 µs apart."""
    rng = np.random.default_rng(seed)
    arrives = rng.integers(0, 400, (count, ranks))
    times: Times = arrives.max(axis=1, keepdims=True) - arrives + rng.integers(4900, 5100, (count, 1))
    return times


def late_by(times_us: Times, ranks: int | list[int], late_us: int) -> Times:
    """The same if these ranks come later: all others wait longer."""
    others = (~np.isin(np.arange(times_us.shape[1]), ranks)).astype(np.int64)
    later: Times = times_us + late_us * others
    return later


# ---- reading -------------------------------------------------------------------------------------------------------


def test_the_documented_record_is_read() -> None:
    (one,) = of_text(DOCUMENTED + "\n")
    assert one.coll_perf is not None
    assert (one.header.rank, one.coll_perf.coll, one.coll_perf.coll_sn) == (4, "ReduceScatter", 1231)
    assert (one.metadata.pid, one.coll_perf.coll_exec_time_us) == (438776, 41057)
    assert looks_like(DOCUMENTED.encode())
    assert not looks_like(b'{"header": 1}\n')


def test_sends_and_times_of_the_host_are_skipped_and_a_bandwidth_may_be_nan() -> None:
    send = DOCUMENTED.replace('"coll_perf"', '"p2p_perf"')
    host = DOCUMENTED.replace("kernel_gpu", "collective_cpu")
    nan = DOCUMENTED.replace("418.439467", '"nan"')
    assert [one.coll_perf and one.coll_perf.coll_algobw_gbs for one in of_text(f"{send}\n{host}\n{nan}\n")] == ["nan"]


def test_a_half_line_is_forgiven_at_the_end_only() -> None:
    assert len(of_text(f"{DOCUMENTED}\n{DOCUMENTED[:70]}")) == 1
    with pytest.raises(SourceError, match=r"^a\.log, line 2: not a record"):
        of_text(f"{DOCUMENTED}\n{DOCUMENTED[:70]}\n{DOCUMENTED}\n")


@pytest.mark.parametrize(
    ("found", "put"),
    [
        ('"rank":4', '"rank":8'),
        ('"rank":4', '"rank":-1'),
        ('"n_ranks":8', '"n_ranks":1e30'),
        ("41057", "-1"),
        ("41057", str(1 << 62)),
        ("41057", "inf"),
        ("1231", str(1 << 63)),
        ("ReduceScatter", "R" * 2000),
        ('"hostname"', '"host"'),
        ("2147483648", "[" * 20_000),
        ("example-hostname", "h" * 100_000),
    ],
)
def test_lying_and_huge_values_are_refused_with_the_line(found: str, put: str) -> None:
    with pytest.raises(SourceError, match=r"^a\.log, line 1: "):
        of_text(f"{DOCUMENTED.replace(found, put)}\n{DOCUMENTED}\n")


@settings(max_examples=200)
@given(st.integers(0, len(DOCUMENTED) - 1), st.binary(max_size=4))
def test_any_bytes_are_records_or_refused(at: int, put: bytes) -> None:
    data = DOCUMENTED.encode()
    changed = data[:at] + put + data[at + len(put) :] + b"\n"
    try:
        waits(read(CappedReader(io.BytesIO(changed * 2), "a.log", 1 << 20)))
    except SourceError:
        return


def test_numbers_of_ranks_that_lie_fill_no_memory() -> None:
    """Sixteen million ranks by its own word, a thousand by its lines, and as many collectives."""
    one = json.loads(DOCUMENTED)
    one["header"]["n_ranks"] = 1 << 24

    def lines() -> Iterator[Record]:
        for number in range(1000):
            one["header"]["rank"], one["coll_perf"]["coll_sn"] = number, number
            yield from of_text(json.dumps(one, separators=(",", ":")) + "\n")

    assert waits(lines()).cause is WaitCause.UNDECIDED


# ---- judging -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_median_of_the_others(ranks: int) -> None:
    times = random_times(ranks).astype(float)
    others = [[float(np.median(np.delete(row, rank))) for rank in range(ranks)] for row in times]
    assert np.allclose(waits_module._of_others(times), others)


@pytest.mark.parametrize("ranks", [2, 4, 16])
@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_comes_late_is_slow_and_none_without(ranks: int, seed: int) -> None:
    times = random_times(ranks, seed=seed)
    assert judged(inspected(times.tolist())).cause is WaitCause.NONE
    found = judged(inspected(late_by(times, 1, 4000).tolist()))
    assert (found.cause, [one.rank for one in found.slow_ranks]) == (WaitCause.RANK, [1])
    assert found.slow_ranks[0].pid == 483_073
    assert 3000 < found.slow_ranks[0].lost_us < 5000
    assert judged(inspected(late_by(times, 1, 800).tolist())).cause is WaitCause.NONE


def test_a_rank_that_is_late_for_a_while_only_is_not_slow() -> None:
    times = random_times(4)
    times[:20] = late_by(times[:20], 1, 20_000)
    assert judged(inspected(times.tolist())).slow_ranks == ()


def test_a_transfer_that_grows_is_slow_and_names_no_rank() -> None:
    times = random_times(4)
    times[40:] = times[40:] * 2
    found = judged(inspected(times.tolist()))
    assert (found.cause, found.slow_ranks) == (WaitCause.TRANSFER, ())
    assert (found.slow_transfers[0].hosts, found.collectives) == (("172.16.64.210",), 60)
    assert 1.9 < found.slow_transfers[0].now_us / found.slow_transfers[0].before_us < 2.1
    times[40:] = random_times(4)[40:] * 13 // 10
    assert judged(inspected(times.tolist())).cause is WaitCause.NONE


def test_longer_collectives_of_another_size_are_no_slow_transfer() -> None:
    times = random_times(4)
    times[40:] = times[40:] * 3
    logs = inspected(times.tolist())
    larger = {
        name: "".join(
            line.replace('"coll_msg_size_bytes":67108864', '"coll_msg_size_bytes":201326592') if at >= 40 else line
            for at, line in enumerate(text.splitlines(keepends=True))
        )
        for name, text in logs.items()
    }
    assert judged(larger).cause is WaitCause.NONE


def test_a_rank_that_is_late_since_it_waits_elsewhere_is_not_named() -> None:
    """GPU 1 is late for GPU 0 since it waits for GPU 2 in another communicator."""
    first = inspected(late_by(random_times(2), 1, 4000).tolist(), "0xa", [0, 1])
    second = inspected(late_by(random_times(2), 1, 6000).tolist(), "0xb", [1, 2])
    found = judged(first, second)
    assert [(one.communicator, one.pid) for one in found.slow_ranks] == [("0xb", 483_074)]


def test_half_of_the_ranks_may_be_slow_and_more_are_not_named() -> None:
    found = judged(inspected(late_by(random_times(4), [0, 1], 6000).tolist()))
    assert sorted(one.rank for one in found.slow_ranks) == [0, 1]
    assert judged(inspected(late_by(random_times(4), [0, 1, 2], 6000).tolist())).cause is WaitCause.NONE


def test_without_the_log_of_a_rank_it_is_undecided() -> None:
    logs = dict(list(inspected(random_times(4).tolist()).items())[:-1])
    found = judged(logs)
    assert (found.cause, found.left_out, found.collectives) == (WaitCause.UNDECIDED, 60, 0)


def test_broadcasts_are_not_compared() -> None:
    logs = inspected(late_by(random_times(4), 0, 4000).tolist())
    assert judged({name: text.replace("AllReduce", "Broadcast") for name, text in logs.items()}).collectives == 0


# ---- the verbs -----------------------------------------------------------------------------------------------------


def written(logs: Mapping[str, str], folder: Path) -> Path:
    folder.mkdir()
    for name, text in logs.items():
        (folder / name).write_text(text)
    return folder


def invoked(*arguments: Path | str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_stragglers_reads_a_folder_of_logs_by_their_content(tmp_path: Path) -> None:
    folder = written(inspected(late_by(random_times(4), 2, 9000).tolist()), tmp_path / "logs")
    (folder / "notes.txt").write_text("not a log\n")
    assert holds_logs(folder)
    code, said, _ = invoked("stragglers", folder)
    assert code == 1
    assert said.startswith("rank 2 of communicator 0x7f8c496ae9f661 (process 483074 on 172.16.64.210) is slow: ")
    code, said, _ = invoked("stragglers", folder, "--json")
    told: dict[str, Any] = json.loads(said)
    assert (code, told["cause"], told["slow_ranks"][0]["rank"], told["collectives"]) == (1, "rank", 2, 60)


def test_one_log_of_many_is_too_few_to_tell(tmp_path: Path) -> None:
    folder = written(inspected(random_times(4).tolist()), tmp_path / "logs")
    one = min(folder.iterdir())
    code, said, _ = invoked("stragglers", one)
    assert (code, said.partition(":")[0]) == (3, "undecided")


def test_a_folder_without_logs_is_undecided_and_a_broken_log_is_refused(tmp_path: Path) -> None:
    assert invoked("stragglers", written({}, tmp_path / "empty"))[0] == 3
    logs = {name: text[:900] + "\n" + text for name, text in inspected(random_times(2).tolist()).items()}
    code, _, said = invoked("stragglers", written(logs, tmp_path / "broken"))
    assert code == 2
    assert "line 2: not a record of NCCL's Inspector" in said


def test_diagnose_says_which_verb_reads_them(tmp_path: Path) -> None:
    folder = written(inspected(random_times(2).tolist()), tmp_path / "logs")
    code, _, said = invoked("diagnose", min(folder.iterdir()), "--home", tmp_path / "home")
    assert code == 2
    assert "Inspector log" in said
    assert invoked("diagnose", folder, "--home", tmp_path / "home")[0] == 3
