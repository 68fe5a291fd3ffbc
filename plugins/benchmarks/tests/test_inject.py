"""Injected faults: what a wire does, what is flipped and played, and that nothing is left however it ends."""

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pharoah_benchmarks.inject import undo
from pharoah_benchmarks.inject.groups import HIERARCHIES, Group
from pharoah_benchmarks.inject.kinds import KINDS
from pharoah_benchmarks.inject.played import DOSE_STEPS, PLAYED, label_of, play
from pharoah_benchmarks.inject.telemetry import grown
from pharoah_benchmarks.inject.wire import HEADERS, Wire
from provider_server.fleet.analysis.injected import INJURED, PEER, read
from provider_server.fleet.telemetry.catalogue import METRICS
from provider_server.program.cli import app
from tests.support.waiting import until

torch = pytest.importorskip("torch")
IS_ALLOWED = os.geteuid() == 0 and all((undo.GROUPS / one / "cgroup.procs").exists() for one in HIERARCHIES)
needs_groups = pytest.mark.skipif(not IS_ALLOWED, reason="needs root and control groups")


# ---- a wire ----------------------------------------------------------------------------------------------------------


def carried(packets: list[bytes], **bad: float) -> list[tuple[float, bytes]]:
    """What arrives at the other end by then, in seconds since it was sent."""
    ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    wire = Wire((ends[0][1].fileno(), ends[1][1].fileno()))
    vars(wire).update(bad)
    for packet in packets:
        wire.take(packet, 1, 100.0)
    found = []
    for at_ms in range(3000):
        wire.deliver(100.0 + at_ms / 1000.0)
        while True:
            try:
                found.append((at_ms / 1000.0, ends[1][0].recv(1 << 16, socket.MSG_DONTWAIT)))
            except BlockingIOError:
                break
    for one in itertools.chain(*ends):
        one.close()
    return found


PACKETS = [bytes([number]) * (HEADERS + 100) for number in range(100)]


def test_a_wire_carries_everything_in_order_and_at_once() -> None:
    assert carried(PACKETS) == [(0.0, packet) for packet in PACKETS]


def test_a_wire_loses_its_share() -> None:
    assert carried(PACKETS, loss=1.0) == []
    assert 60 < len(carried(PACKETS, loss=0.2)) < 95


def test_a_wire_delays_and_has_a_rate() -> None:
    assert [at for at, _ in carried(PACKETS[:1], delay_s=0.04)] == [0.04]
    last = carried(PACKETS, bytes_per_s=100.0 * len(PACKETS[0]))[-1][0]
    assert last == pytest.approx(1.0, abs=0.01)


def test_what_is_damaged_is_one_byte_behind_the_headers() -> None:
    (_, found), *_ = carried(PACKETS[:1], corrupt=1.0)
    assert [one == other for one, other in zip(found, PACKETS[0], strict=True)].count(False) == 1
    assert found[:HEADERS] == PACKETS[0][:HEADERS]
    assert carried([bytes(HEADERS)], corrupt=1.0) == [(0.0, bytes(HEADERS))]  # no data, no damage


# ---- bits and counters -----------------------------------------------------------------------------------------------


def test_one_bit_of_one_weight_is_flipped() -> None:
    from pharoah_benchmarks.inject.worker import flip

    weights = [torch.nn.Parameter(torch.ones(5, 7)), torch.nn.Parameter(torch.ones(11))]
    before = [one.detach().clone().view(-1).view(torch.int32) for one in weights]
    flip(weights, random.Random(1))
    changed = [
        (one.detach().view(-1).view(torch.int32) ^ other).tolist() for one, other in zip(weights, before, strict=True)
    ]
    bits = [bin(word & 0xFFFFFFFF).count("1") for words in changed for word in words]
    assert sum(bits) == max(bits) == 1


def test_gauges_are_as_they_are_and_counters_what_they_grew_by() -> None:
    before, after = {"tcp_errors": 3.0, "clock_offset": 0.1}, {"tcp_errors": 5.0, "clock_offset": 0.2}
    assert grown(before, after) == {"tcp_errors": 2.0, "clock_offset": 0.2}


@pytest.mark.parametrize(("kind", "dose"), [*itertools.product(PLAYED, DOSE_STEPS)])
def test_what_is_played_is_of_real_metrics_and_grows_at_the_injured_node_alone(kind: str, dose: float) -> None:
    found = [play(label_of(kind, dose), np.random.default_rng(seed)) for seed in range(30)]
    assert set(found[0].values) <= set(METRICS)
    label = found[0].label
    rises = {
        node: max(
            float(np.mean([one.values[name][label.healthy :, node] for one in found]))
            - float(np.mean([one.values[name][: label.healthy, node] for one in found]))
            for name in found[0].values
        )
        for node in (PEER, INJURED)
    }
    assert rises[INJURED] > 0.01
    assert rises[INJURED] > rises[PEER]


# ---- nothing is left -------------------------------------------------------------------------------------------------


@needs_groups
def test_undo_kills_and_removes_all_of_its_name_when_its_starter_ends() -> None:
    name = f"pharoah-test-{os.getpid()}"
    guard = subprocess.Popen([sys.executable, "-I", undo.__file__, name], stdin=subprocess.PIPE)
    inner = Group.made(f"{name}/0")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    inner.add(sleeper.pid)
    inner.limit_processor(0.5)
    guard.communicate()
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not list(undo.GROUPS.glob(f"*/{name}"))


@needs_groups
@pytest.mark.nightly
def test_a_trace_is_written_and_a_kill_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "traces.jsonl"
    words = ["-m", "provider_server", "benchmark", "inject", "graph", "--fault", "net_loss", "--dose", "1"]
    with (tmp_path / "said").open("wb") as said:
        running = subprocess.Popen([sys.executable, *words, "--out", str(out)], stderr=said)
    until(lambda: out.exists() and out.read_bytes().count(b"\n") > 20)
    running.kill()
    running.wait()
    until(lambda: not list(undo.GROUPS.glob(f"*/pharoah-inject-{running.pid}")))
    time.sleep(0.5)
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if b"pharoah-inject" in _read(path)]
    (trace,) = read(out.read_text(encoding="utf-8").splitlines())
    assert trace.windows >= 9
    assert np.all(np.diff(trace.steps, axis=0) >= 0)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    "words",
    [("none", "net_loss", "1"), ("graph", "none", "1"), ("graph", "net_loss", "1.5"), ("graph", "net_loss", "0")],
)
def test_what_is_not_there_is_refused_before_anything_starts(words: tuple[str, str, str], tmp_path: Path) -> None:
    job, fault, dose = words
    line = ["benchmark", "inject", job, "--fault", fault, "--dose", dose, "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(app, line).exit_code == 2
    assert not (tmp_path / "out").exists()


def test_every_kind_says_what_its_dose_is() -> None:
    from pharoah_benchmarks.inject import kinds

    assert all(name in (kinds.__doc__ or "") for name in KINDS)
