"""Benchmarks on this machine, with slow and wrong hardware planted in them, and the verb from end to end.

Work, extra work, throttles and damaged bytes are real. Where a verdict hangs on how long work took, time is
counted in work (`WorkClock`) and noise comes from a seed, so that no other load on the machine decides; what is slow is
measured in turns with what is not, and ratios are compared.
"""

import json
import mmap
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import click.testing
import numpy as np
import pytest
from numpy.random import Generator
from typer.testing import CliRunner

from crypto.errors import NotYours
from crypto.ids import LeaseId, TenantId
from federation.protocol.service_messages import Action, CheckVerdict, Hint, HintState, Outcome, Suspicion
from federation.transport.certificates import make_certificate
from pharoah_confirm import cpu, cuda, kept, machine, machine as storage, pair, telling
from pharoah_confirm.assess import BenchmarkFinding, Measured, assess, overall, rows
from pharoah_confirm.criteria import GRID, Criterion, judge, learn
from pharoah_confirm.machine import Busy, Target, default_device
from pharoah_confirm.sample import Benchmark, CannotMeasure, Once, Rates, Sample, WrongResult
from provider_server.rounds.online.service import serve_online
from provider_server.rounds.online.sessions import Sessions, session_key
from provider_server.rounds.store.revocations import LIFETIME_S
from simulation.run.processes import free_ports
from tenant_client.doctor.advice.hints import HintLog
from tenant_client.doctor.records.database import open_database
from tenant_client.program.cli import app
from tests.support import schemas
from tests.support.factories import NO_SIGNATURE
from tests.support.federations import Grounds
from tests.support.waiting import PATIENCE_S, until

SLOWER = 1.3
REPEATS = 32


def sample(values: Rates) -> Sample:
    return Sample("test", "here", "of the other", values)


class WorkClock:
    """Stands for the module `time`: time passes by work that is done, and by nothing else."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self.links: dict[str, float] = {}  # seconds for a byte that comes from an address

    def spend(self, seconds: float) -> None:
        """So long does a piece of work take that was just done."""
        self._now_s += seconds

    def now(self) -> float:
        """Every clock of the module."""
        return self._now_s

    monotonic = perf_counter = process_time = thread_time = now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WorkClock:
    """The clock of all benchmarks, with matrix products of 20 GFLOP/s, on a machine that nobody else uses."""
    made, matmul, receive = WorkClock(), np.matmul, pair._receive

    def multiplied(one: Rates, other: Rates, *, out: Rates) -> None:
        matmul(one, other, out=out)
        made.spend(1e-10 * one.shape[0] * one.shape[1] * other.shape[1])

    def received(connection: socket.socket, into: memoryview) -> None:
        receive(connection, into)
        made.spend(made.links.get("{}:{}".format(*connection.getpeername()), 0.0) * into.nbytes)

    monkeypatch.setattr(pair, "_receive", received)
    for module in (cpu, machine, pair, storage):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(np, "matmul", multiplied)
    monkeypatch.setattr(machine, "_ticks", lambda: (0, 0))
    return made


class Turns:
    """Measures in turns, on a machine whose noise comes from a seed: neighbours in time resemble each other."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def ratios(self, one: Once, other: Once, repeats: int = REPEATS) -> Sample:
        """How fast `one` is in terms of `other`."""
        noise = self._generator.standard_normal(repeats)
        for at in range(1, repeats):
            noise[at] += 0.5 * noise[at - 1]
        level = 0.01 * self._generator.standard_normal()
        return sample(np.array([one() / other() for _ in range(repeats)]) * np.exp(level + 0.02 * noise))

    def runs(self, one: Once, other: Once, number: int, repeats: int = REPEATS) -> dict[str, list[Sample]]:
        """So many runs."""
        return {str(run): [self.ratios(one, other, repeats)] for run in range(number)}


# ---- planted faults ------------------------------------------------------------------------------------------------


@contextmanager
def slow_gemm(clock: WorkClock) -> Iterator[Once]:
    """Matrix products that do 30% more work than they are paid for."""
    generator = np.random.default_rng(2)
    extra = int((SLOWER - 1) * cpu.PRODUCTS * cpu.SIDE)
    one, other = (generator.random((rows, cpu.SIDE), dtype=np.float32) for rows in (extra, cpu.SIDE))
    product = np.empty((extra, cpu.SIDE), dtype=np.float32)
    with cpu.gemm("") as healthy:

        def once() -> float:
            took = 1 / healthy()
            began = clock.now()
            np.matmul(one, other, out=product)
            return 1 / (took + (clock.now() - began) / (2e-9 * cpu.PRODUCTS * cpu.SIDE**3))

        yield once


class Forwarder:
    """A link: forwards one connection to `port`, and may damage the first byte of what comes back."""

    def __init__(self, port: int, *, damages: bool) -> None:
        self._port, self._damages = port, damages
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        for one in self._sockets:
            one.close()

    def _run(self) -> None:
        near, _ = self._listening.accept()
        far = socket.create_connection(("127.0.0.1", self._port))
        self._sockets += [near, far]
        threading.Thread(target=self._forward, args=(near, far, False), daemon=True).start()
        self._forward(far, near, self._damages)

    def _forward(self, source: socket.socket, target: socket.socket, damages: bool) -> None:  # noqa: FBT001 - a thread's target
        try:
            while data := source.recv(1 << 20):
                target.sendall(bytes([data[0] ^ 0x40]) + data[1:] if damages else data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the test is over


@contextmanager
def link(clock: WorkClock, bytes_per_second: float = 1e9, *, damages: bool = False) -> Iterator[Once]:
    """All-reduces over a link of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as stack:
        threading.Thread(target=pair.answer, args=(listening,), daemon=True).start()
        forwarder = Forwarder(listening.getsockname()[1], damages=damages)
        stack.callback(forwarder.close)
        clock.links[forwarder.address] = 1 / bytes_per_second
        yield stack.enter_context(pair.exchange(forwarder.address))


@contextmanager
def disk(
    clock: WorkClock, folder: Path, throttled: Callable[[storage.Read], storage.Read] = lambda read: read
) -> Iterator[Once]:
    """Reads of a fresh file at 2 GB/s, through something that may slow or damage them."""

    def timed(block: mmap.mmap, at: int) -> int:
        number = read(block, at)
        clock.spend(number / 2e9)
        return number

    path, pattern = folder / f"file-{os.urandom(4).hex()}", os.urandom(storage.BLOCK_BYTES)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        storage.fill(descriptor, pattern)
        with storage.opened(path) as read:
            yield storage.blocks(throttled(timed), mmap.mmap(-1, storage.BLOCK_BYTES), pattern)
    finally:
        os.close(descriptor)
        path.unlink()


def throttled(read: storage.Read) -> storage.Read:
    def slowly(block: mmap.mmap, at: int) -> int:
        read(block, (at + storage.BLOCK_BYTES) % storage.FILE_BYTES)
        return read(block, at)

    return slowly


def damaged(read: storage.Read) -> storage.Read:
    def wrongly(block: mmap.mmap, at: int) -> int:
        number = read(block, at)
        if at == 5 * storage.BLOCK_BYTES:
            block[1000] ^= 1
        return number

    return wrongly


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    mounts = Path("/proc/mounts").read_text(encoding="utf-8")
    if storage.file_system(tmp_path.resolve(), mounts) in storage.IN_MEMORY:
        pytest.skip("temporary files lie in memory here")
    return tmp_path


# ---- slow hardware is found, healthy hardware is not ---------------------------------------------------------------


def bootstrapped(generator: Generator, one: Sample) -> Sample:
    """The same run, had its repeats come out otherwise: blocks of four, since neighbours resemble each other."""
    starts = generator.integers(0, len(one.values) - 3, len(one.values) // 4)
    return sample(np.concatenate([one.values[start : start + 4] for start in starts]))


@pytest.mark.nightly
def test_a_gemm_that_does_a_third_more_work_is_found_and_healthy_ones_are_not(clock: WorkClock) -> None:
    """400 trials, each learnt from eight of ten runs and judged on one of the others."""
    generator, turns = np.random.default_rng(1), Turns(1)
    with cpu.gemm("") as healthy, cpu.gemm("") as other, slow_gemm(clock) as slow:
        good = list(turns.runs(healthy, other, 10).values())
        bad = [turns.ratios(slow, other) for _ in range(3)]
    accused, found = 0, []
    for trial in range(400):
        order = generator.permutation(10)
        criterion = learn({str(at): [bootstrapped(generator, good[at][0])] for at in order[:8]})
        accused += judge(bootstrapped(generator, good[order[8]][0]), criterion).verdict is CheckVerdict.MISMATCH
        if trial % 10 == 0:
            found.append(judge(bootstrapped(generator, bad[trial % 3]), criterion))
    assert accused == 0
    assert np.mean([one.verdict is CheckVerdict.MISMATCH for one in found]) > 0.95
    assert np.median([one.shortfall for one in found]) == pytest.approx(1 - 1 / SLOWER, abs=0.05)


@pytest.mark.nightly
def test_a_slow_link_is_found(clock: WorkClock) -> None:
    turns = Turns(2)
    with link(clock) as healthy, link(clock) as other, link(clock, 0.4e9) as slow:
        criterion = learn(turns.runs(healthy, other, 8))
        assert judge(turns.ratios(healthy, other), criterion).verdict is not CheckVerdict.MISMATCH
        found = judge(turns.ratios(slow, other), criterion)
    assert found.verdict is CheckVerdict.MISMATCH
    assert found.shortfall == pytest.approx(0.6, abs=0.05)


def test_a_throttled_disk_is_found(clock: WorkClock, on_disk: Path) -> None:
    turns = Turns(3)
    with disk(clock, on_disk) as healthy, disk(clock, on_disk) as other, disk(clock, on_disk, throttled) as slow:
        criterion = learn(turns.runs(healthy, other, 8, 16))
        assert judge(turns.ratios(healthy, other, 16), criterion).verdict is not CheckVerdict.MISMATCH
        found = judge(turns.ratios(slow, other, 16), criterion)
    assert found.verdict is CheckVerdict.MISMATCH
    assert found.shortfall == pytest.approx(0.5, abs=0.05)


@pytest.mark.nightly
@pytest.mark.parametrize("benchmark", cpu.BENCHMARKS, ids=lambda one: one.suspicion.value)
def test_every_benchmark_of_the_processor_measures(benchmark: Benchmark) -> None:
    ticks = count()
    found = benchmark.run(0.2, "cpu", described="this", clock=lambda: 0.05 * next(ticks))
    assert (found.benchmark, found.device, found.unit) == (benchmark.name, "this", benchmark.unit)
    assert len(found.values) == 4


# ---- reads come from the disk --------------------------------------------------------------------------------------


def read_bytes() -> int:
    """What this process had read from block devices."""
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def test_the_page_cache_is_not_measured(on_disk: Path) -> None:
    path, block = on_disk / "file", mmap.mmap(-1, storage.BLOCK_BYTES)
    path.write_bytes(bytes(4 * storage.BLOCK_BYTES))
    path.read_bytes()
    before = read_bytes()
    path.read_bytes()
    cached = read_bytes() - before
    with storage.opened(path) as read:
        os.sync()
        assert sum(read(block, at * storage.BLOCK_BYTES) for at in range(4)) == 4 * storage.BLOCK_BYTES
    assert cached < storage.BLOCK_BYTES
    assert read_bytes() - before - cached >= 4 * storage.BLOCK_BYTES


def test_a_file_system_in_memory_is_no_disk() -> None:
    memory = Path("/dev/shm")  # noqa: S108 - nothing is written there
    if storage.file_system(memory, Path("/proc/mounts").read_text(encoding="utf-8")) != "tmpfs":
        pytest.skip("there is no such file system here")
    with pytest.raises(CannotMeasure, match="in memory"), storage.reading(str(memory)):
        pass
    with pytest.raises(CannotMeasure, match="not a folder"), storage.reading("/proc/cpuinfo"):
        pass


# ---- wrong results -------------------------------------------------------------------------------------------------


def test_a_disk_that_gives_back_another_byte_is_found(clock: WorkClock, on_disk: Path) -> None:
    with disk(clock, on_disk, damaged) as once:
        for _ in range(5):
            once()
        with pytest.raises(WrongResult, match=f"byte {5 * storage.BLOCK_BYTES}"):
            once()


def test_a_link_that_changes_a_byte_is_found(clock: WorkClock) -> None:
    with link(clock, damages=True) as once, pytest.raises(WrongResult):
        once()


def test_a_processor_that_computes_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def flipped(one: Rates, other: Rates, *, out: Rates) -> None:
        np.dot(one, other, out=out)
        out.view(np.uint32)[7, 7] ^= 1 << 3

    with cpu.gemm("") as once:
        assert once() > 0
        monkeypatch.setattr(np, "matmul", flipped)
        with pytest.raises(WrongResult):
            once()


def test_a_wrong_result_is_confirmed_without_anything_to_compare_with() -> None:
    def measure() -> Measured:
        raise WrongResult("a sum is wrong")

    found = assess(Suspicion.COMPUTE, "gemm", measure, lambda _: (None, ""))
    assert (found.verdict, found.shortfall_percent, found.wrong) == (CheckVerdict.MISMATCH, 100.0, True)


# ---- partners ------------------------------------------------------------------------------------------------------


def test_an_all_reduce_sums_in_both_ranks() -> None:
    left, right = socket.socketpair()
    one, other = np.arange(10, dtype=np.float32), np.ones(10, dtype=np.float32)
    thread = threading.Thread(target=pair.all_reduce, args=(right, other, 1))
    with left, right:
        thread.start()
        pair.all_reduce(left, one, 0)
        thread.join()
    assert one.tolist() == other.tolist() == [1 + number for number in range(10)]


@pytest.mark.parametrize("words", [0, 1, (pair.MOST_BYTES >> 2) + 2])
def test_a_visitor_gets_no_memory_that_it_should_not_have(words: int) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as visitor,
    ):
        visitor.sendall(pair.GREETING.pack(pair.MAGIC, words))
        with pytest.raises(CannotMeasure, match="does not speak the test's protocol"):
            pair.answer(listening)


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[int]]]:
    """The service at an address; how many partners it had is known when the context, and with it its time, is over."""
    now, served = [0.0], list[int]()
    monkeypatch.setattr(pair, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter))
    with free_ports("127.0.0.1", 1) as (port,):
        address = f"127.0.0.1:{port}"
        thread = threading.Thread(target=lambda: served.append(pair.serve(address, PATIENCE_S)))
        thread.start()
        try:
            yield address, served
        finally:
            now[0] = PATIENCE_S
            with suppress(ConnectionRefusedError):  # it looks at the time after each visitor, or has ended already
                socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def test_visitors_do_not_end_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch) as (address, served):
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"x"):
            with contacted(address) as visitor:
                visitor.sendall(data)
        target = Target("cpu", Path(), address)
        assert target.measure(Suspicion.INTERCONNECT, 0.2).sample.device == "tcp"
    assert served == [1]


def test_a_silent_visitor_does_not_end_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "TIMEOUT_S", 0.2)
    with serving(monkeypatch) as (address, served):
        for _ in range(2):
            with contacted(address) as silent:
                assert silent.recv(1) == b""  # shown out
    assert served == [0]


@contextmanager
def contacted(address: str) -> Iterator[socket.socket]:
    def connected() -> socket.socket | None:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
        return None

    with until(connected, "the service listens") as visitor:
        yield visitor


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:port"])
def test_a_partner_that_is_not_there_is_said(address: str) -> None:
    with pytest.raises(CannotMeasure, match=r"no partner|is not host:port"), pair.exchange(address):
        pass


def test_a_machine_without_a_gpu_says_so() -> None:
    if default_device() != "cpu":
        pytest.skip("there is a GPU here")
    for benchmark in cuda.BENCHMARKS:
        for device in ("cuda:0", "cuda:", "xpu:0"):
            with pytest.raises(CannotMeasure), benchmark.prepare(device):
                pass
    benchmark, device, _ = Target("cpu", Path()).benchmark(Suspicion.HOST_LINK)
    assert (benchmark.name, device) == ("host-memory-32MiB-each", "cpu")
    assert {one.suspicion for one in cuda.BENCHMARKS} < set(Target("cuda:0", Path()).benchmarks())


def test_each_processor_reads_memory_of_another_numa_node_and_stays_where_it_may_run(tmp_path: Path) -> None:
    for node, cpus in enumerate(("0-2,6\n", "3-5\n", "\n")):  # the last has memory alone
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}/cpulist").write_text(cpus)
    seats = cpu._seats(tmp_path, {0, 1, 3, 4, 6})
    assert seats == [(0, 3), (1, 4), (6, 3), (3, 0), (4, 1)]
    assert cpu._seats(tmp_path / "none", {2, 5}) == [(2, 2), (5, 5)]
    (tmp_path / "node0/cpulist").write_text("0-199")
    assert len(cpu._seats(tmp_path, set(range(200)))) <= cpu.MOST_SEATS
    before = os.sched_getaffinity(0)
    with cpu.host_memory("cpu") as once:
        assert once() > 0
    assert os.sched_getaffinity(0) == before  # threads of its own were moved, not this one


def test_a_copy_that_went_wrong_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    with cpu.host_memory("cpu") as once:
        monkeypatch.setattr(cpu, "_copied", lambda *_: None)
        with pytest.raises(WrongResult, match="parts of memory"):
            once()


# ---- from measurements to a finding --------------------------------------------------------------------------------


def healthy(spread: float = 0.01, usual: float = 100.0) -> Criterion:
    generator = np.random.default_rng(5)
    return learn({str(n): [sample(usual * np.exp(spread * generator.standard_normal(60)))] for n in range(16)})


def measuring(*levels: float, busy: float = 0.0) -> Callable[[], Measured]:
    generator = np.random.default_rng(6)
    left = list(levels)
    return lambda: Measured(sample(left.pop(0) * np.exp(0.01 * generator.standard_normal(60))), busy)


def assessed(measure: Callable[[], Measured], *, undisturbed: bool = False) -> BenchmarkFinding:
    known = healthy()
    return assess(Suspicion.MEMORY, "test", measure, lambda _: (known, "fleet"), undisturbed=undisturbed)


def test_what_is_slow_is_measured_twice() -> None:
    assert len(assessed(measuring(100.0)).samples) == 1
    twice = assessed(measuring(70.0, 71.0))
    assert (twice.verdict, len(twice.samples)) == (CheckVerdict.MISMATCH, 2)
    assert twice.shortfall_percent == pytest.approx(29, abs=2)
    once = assessed(measuring(70.0, 100.0))
    assert (once.verdict, len(once.samples)) == (CheckVerdict.WARNING, 2)


def test_nobody_is_accused_on_a_busy_machine_unless_that_cannot_matter() -> None:
    assert assessed(measuring(70.0, 70.0, busy=0.5)).verdict is CheckVerdict.WARNING
    assert assessed(measuring(70.0, 70.0, busy=0.5), undisturbed=True).verdict is CheckVerdict.MISMATCH
    assert assessed(measuring(100.0, busy=0.5)).verdict is CheckVerdict.OK


def test_without_a_criterion_nothing_is_said() -> None:
    found = assess(Suspicion.MEMORY, "test", measuring(100.0), lambda _: (None, "own"))
    assert (found.verdict, found.compared_with, found.shortfall_percent) == (CheckVerdict.UNKNOWN, "nothing", 0.0)


def test_the_gravest_finding_counts() -> None:
    ok, slow, unknown = (assessed(measuring(*levels)).verdict for levels in ((100.0,), (70.0, 70.0), (100.0,)))
    nothing = assess(Suspicion.MEMORY, "test", measuring(100.0), lambda _: (None, "own")).verdict
    assert overall([ok, unknown]) is CheckVerdict.OK
    assert overall([ok, nothing]) is CheckVerdict.UNKNOWN
    assert overall([ok, nothing, slow]) is CheckVerdict.MISMATCH
    assert overall([]) is CheckVerdict.UNKNOWN


def test_quantiles_and_histograms_are_shown() -> None:
    head, usual, first, second = rows(assessed(measuring(70.0, 71.0)))
    assert "50%" in head
    assert usual.startswith("usual")
    assert first[-1] == " "
    assert "█" in usual
    assert "█" in second


@pytest.mark.nightly
def test_what_others_use_is_seen() -> None:
    with Busy() as alone:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            sum(range(1000))
    spin = "import time; end = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
    processes = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    time.sleep(0.3)
    with Busy() as crowded:
        time.sleep(1.0)
    for process in processes:
        process.wait()
    assert 0 <= alone.share <= 1
    assert crowded.share > 0.5


# ---- what is kept --------------------------------------------------------------------------------------------------


def keep(
    home: Path, machine: str, level: float, *, seed: int, verdict: CheckVerdict = CheckVerdict.OK, at_s: float = 0.0
) -> Path:
    generator = np.random.default_rng(seed)
    rates = level * np.exp(0.01 * generator.standard_normal(60))
    return kept.keep(home, sample(rates), machine, at_s or float(seed), verdict)


KIND = ("test", "here", "of the other")


def test_a_run_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    path = keep(tmp_path / "home", "m1", 100.0, seed=1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    (read,) = kept.runs([tmp_path / "home" / kept.FOLDER])
    assert (read.machine, read.kind, read.verdict, len(read.values)) == ("m1", KIND, "ok", 60)


def test_a_machine_is_compared_with_its_own_healthy_runs_only(tmp_path: Path) -> None:
    assert kept.own(tmp_path, "m1", KIND) is None
    for seed in range(8):
        keep(tmp_path, "m1", 100.0, seed=1 + seed)
        keep(tmp_path, "m2", 200.0, seed=50 + seed)
        keep(tmp_path, "m1", 50.0, seed=100 + seed, verdict=CheckVerdict.MISMATCH)
    found = kept.own(tmp_path, "m1", KIND)
    assert found is not None
    assert (found.units, found.dropped) == (8, 0)
    assert found.usual == pytest.approx(100, rel=0.01)
    assert kept.own(tmp_path, "m1", ("other", "here", "of the other")) is None


def test_criteria_name_no_machine_and_come_back_as_written(tmp_path: Path) -> None:
    for number in range(8):
        for again in range(3):
            keep(tmp_path, f"machine-{number}", 100.0, seed=1 + 10 * number + again)
    learnt = kept.criteria(kept.runs([tmp_path / kept.FOLDER]))
    kept.write_criteria(tmp_path / "criteria.json", learnt)
    assert kept.read_criteria(tmp_path / "criteria.json") == learnt
    assert "machine-" not in (tmp_path / "criteria.json").read_text()
    found = learnt.find(KIND)
    assert found is not None
    assert found.units == 8
    assert learnt.find(("test", "there", "of the other")) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"version": 1}', '{"version": 2, "criteria": []}', '{"version": 1, "criteria": [], "more": 1}'],
)
def test_what_are_no_criteria_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "criteria.json").write_text(text)
    with pytest.raises(kept.UnusableSamples, match=r"criteria\.json"):
        kept.read_criteria(tmp_path / "criteria.json")
    with pytest.raises(kept.UnusableSamples):
        kept.runs([tmp_path / "missing.json"])


# ---- the verb ------------------------------------------------------------------------------------------------------


def called(home: Path, *words: str) -> click.testing.Result:
    result = CliRunner().invoke(app, ["confirm", *words, "--home", str(home)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def listed(home: Path) -> list[dict[str, object]]:
    """The outcomes among all that left."""
    told = json.loads(CliRunner().invoke(app, ["privacy", "sent", "--home", str(home), "--json"]).stdout)
    rows: list[dict[str, object]] = told.get("outcomes", [])
    return rows


def fleet_of(home: Path, times: float, into: Path) -> Path:
    """Criteria of a fleet whose machines are so many times as fast as this one was just now."""
    (run,) = kept.runs([home / kept.FOLDER])
    usual = times * float(np.median(run.values))
    levels = np.log(usual) + 0.01 * np.random.default_rng(1).standard_normal(16)
    numbers = float(levels.mean()), float(levels.std(ddof=1)), float(np.exp(levels.min()))
    criterion = Criterion(*run.kind, 16, 0, 10, (usual,) * GRID, *numbers)
    kept.write_criteria(into, kept.CriteriaFile(kept.VERSION, (criterion,)))
    return into


@pytest.mark.nightly
@pytest.mark.usefixtures("clock")
def test_from_unknown_to_fine_to_confirmed(tmp_path: Path) -> None:
    home, seconds = tmp_path / "home", ("--seconds", "1")
    first = called(home, "compute", *seconds)
    assert first.exit_code == 3
    assert "no earlier runs or criteria to compare with" in first.stdout
    slow_fleet, fast_fleet = (fleet_of(home, times, tmp_path / f"{times}.json") for times in (0.5, 2.0))
    fine = called(home, "compute", *seconds, "--criteria", str(slow_fleet))
    assert fine.exit_code == 0, fine.stdout
    confirmed = called(home, "compute", *seconds, "--criteria", str(fast_fleet), "--json")
    assert confirmed.exit_code == 2
    told = schemas.held("pharoah-tenant confirm test", confirmed.stdout)
    (finding,) = told["findings"]
    assert (told["verdict"], finding["verdict"], finding["compared_with"]) == ("mismatch", "mismatch", "fleet")
    assert finding["shortfall_percent"] == pytest.approx(50, abs=20)
    assert len(finding["runs"]) == 2
    assert [run.verdict for run in kept.runs([home / kept.FOLDER])] == ["unknown", "ok", "mismatch", "mismatch"]


@pytest.mark.nightly
def test_without_a_suspicion_what_is_worth_its_minutes_is_tested(tmp_path: Path) -> None:
    result = called(tmp_path, "--seconds", "0.1", "--json", "--risk", "0.3", "--device", "cpu")
    assert result.exit_code == 3
    found = schemas.held("pharoah-tenant confirm test", result.stdout)["findings"]
    tested = [one["suspicion"] for one in found]
    assert tested[0] == "compute"
    assert set(tested) == {"compute", "memory", "host_link", "interconnect", "storage", "host"}
    assert (
        called(tmp_path, "--risk", "0.001", "--json").stdout == '{"version": 1, "verdict": "unknown", "findings": []}\n'
    )


def test_what_cannot_be_tested_accuses_nobody(tmp_path: Path) -> None:
    assert called(tmp_path, "interconnect", "--partner", "127.0.0.1:1").exit_code == 3
    missing = called(tmp_path, "compute", "--criteria", str(tmp_path / "missing.json"))
    assert (missing.exit_code, missing.stdout) == (3, "")
    assert "missing.json" in missing.stderr
    assert called(tmp_path, "compute", "--hint", "1").exit_code == 3


def test_learning_from_many_machines(tmp_path: Path) -> None:
    for number in range(8):
        keep(tmp_path / "a", f"machine-{number}", 100.0, seed=1 + number)
    out = tmp_path / "criteria.json"
    words = ["confirm", "learn", str(tmp_path / "a" / kept.FOLDER), "--out", str(out)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert "learnt from 8 machines" in result.stdout
    learnt = CliRunner().invoke(app, [*words, "--json"]).stdout
    assert schemas.held("pharoah-tenant confirm learn", learnt)["criteria"] == 1
    alone = CliRunner().invoke(app, ["confirm", "learn", str(next((tmp_path / "a" / kept.FOLDER).iterdir()))])
    assert alone.exit_code == 2
    assert "two machines" in alone.stderr


@dataclass
class Provided:
    """What a provider's service has to say, and hears."""

    outcomes: list[Outcome] = field(default_factory=list)
    takes: bool = True

    def after(self, _tenant: TenantId, number: int) -> list[Hint]:
        return [hint for hint in (hinted(1), hinted(2, Suspicion.HOST_LINK)) if hint.number > number]

    def subscribe(self, _callback: Callable[[TenantId], None]) -> None:
        return None

    def look(self) -> None:
        return None

    def take(self, _tenant: TenantId, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if not self.takes:
            raise NotYours("the answer is lost, after the question has come")


def hinted(number: int, suspicion: Suspicion = Suspicion.COMPUTE) -> Hint:
    raised = HintState.RAISED, suspicion, 4.0, 2.0, 8.0, 0.3, 72.0, Action.CONFIRM, 1
    return Hint(number, 500_000.0, LeaseId(bytes([number]) * 16), *raised)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[tuple[Path, Provided]]:
    """A tenant's home with hints 1 and 2 in its log, and a provider that listens."""
    tls, provided, grounds = (
        make_certificate(["127.0.0.1"], datetime.now(UTC)),
        Provided(),
        Grounds.founded(tmp_path, 2),
    )
    home = tmp_path / "tenants" / "000"
    sessions = Sessions(session_key(bytes(32)), time.time, LIFETIME_S)
    with (
        grounds.opened(tmp_path) as federation,
        serve_online(
            federation.provider,
            "127.0.0.1:0",
            tls.certificate_pem,
            tls.key_pem,
            sessions=sessions,
            hints=provided,
            take_outcome=provided.take,
        ) as server,
        closing(open_database(home / "tenant.db")) as connection,
    ):
        (home / "provider.pem").write_bytes(tls.certificate_pem)
        (home / "tenant.toml").write_text(f'[provider]\nonline = "127.0.0.1:{server.port}"\n')
        HintLog(connection).take(hinted(1), 0.0, NO_SIGNATURE)
        HintLog(connection).take(hinted(2, Suspicion.HOST_LINK), 0.0, NO_SIGNATURE)
        yield home, provided


@pytest.mark.nightly
@pytest.mark.usefixtures("clock")
def test_a_hint_says_what_to_test_and_its_outcome_is_told_only_if_asked_to(
    tmp_path: Path, told: tuple[Path, Provided]
) -> None:
    home, provided = told
    about = "--lease", str(hinted(1).lease), "--seconds", "1", "--device", "cpu"
    unknown = called(home, *about, "--tell")
    assert unknown.exit_code == 3
    assert unknown.stdout.startswith("compute: unknown")
    fast_fleet = fleet_of(home, 2.0, tmp_path / "fleet.json")
    assert called(home, *about, "--criteria", str(fast_fleet)).exit_code == 2
    assert provided.outcomes == []
    confirmed = called(home, "--hint", "1", *about[2:], "--criteria", str(fast_fleet), "--tell")
    assert confirmed.exit_code == 2
    (outcome,) = provided.outcomes
    assert (outcome.hint, outcome.lease) == (1, hinted(1).lease)
    assert (outcome.suspicion, outcome.confirmed) == (Suspicion.COMPUTE, True)
    assert outcome.shortfall_percent == pytest.approx(50, abs=20)
    assert "sent to the provider for hint 1: compute confirmed" in confirmed.stderr


@pytest.mark.parametrize("takes", [True, False])
def test_an_outcome_that_left_is_listed_also_when_the_call_failed(*, told: tuple[Path, Provided], takes: bool) -> None:
    home, provided = told
    provided.takes = takes
    found = {
        verdict: BenchmarkFinding(Suspicion.COMPUTE, "gemm", verdict, "", "fleet", (), wrong=True)
        for verdict in CheckVerdict
    }
    assert not telling.tell(home, hinted(1), found[CheckVerdict.UNKNOWN])
    assert listed(home) == []
    with nullcontext() if takes else pytest.raises(NotYours):
        telling.tell(home, hinted(1), found[CheckVerdict.MISMATCH])
    (left,) = provided.outcomes
    (row,) = listed(home)
    assert row == {
        "told_at_s": pytest.approx(time.time(), abs=PATIENCE_S),
        "hint": left.hint,
        "lease": str(left.lease),
        "suspicion": str(left.suspicion),
        "confirmed": left.confirmed,
        "shortfall_percent": left.shortfall_percent,
    }
    said = CliRunner().invoke(app, ["privacy", "sent", "--home", str(home)])
    assert said.exit_code == 0
    assert f"hint 1, lease {left.lease}: outcome compute confirmed, 100.0% short" in said.stdout


@pytest.mark.usefixtures("clock")
def test_a_provider_that_is_away_changes_no_verdict(tmp_path: Path, told: tuple[Path, Provided]) -> None:
    home, provided = told
    (home / "tenant.toml").write_text("")
    about = "--hint", "1", "--seconds", "1", "--device", "cpu"
    assert called(home, *about).exit_code == 3
    words = *about, "--criteria", str(fleet_of(home, 2.0, tmp_path / "fleet.json")), "--tell"
    result = called(home, *words)
    assert result.exit_code == 2
    assert "was not sent" in result.stderr
    assert provided.outcomes == []


def test_a_hint_that_is_not_there_is_no_reason_to_test(told: tuple[Path, Provided]) -> None:
    home, _ = told
    result = called(home, "--hint", "9")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no hint 9" in result.stderr
    assert (
        called(home, "--hint", "2", "--device", "cpu", "--seconds", "0.1").exit_code == 3
    )  # a link that only a GPU has


def test_an_outcome_needs_a_hint(tmp_path: Path) -> None:
    result = called(tmp_path, "compute", "--tell")
    assert result.exit_code == 3  # 2 would say that the suspicion is confirmed
    assert "--hint" in result.stderr
