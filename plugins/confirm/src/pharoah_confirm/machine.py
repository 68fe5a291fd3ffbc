"""The testable hardware of this machine, its names, and the CPU load of other programs."""

import os
import platform
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from federation.protocol.service_messages import Suspicion
from pharoah_confirm import cpu, cuda, pair, storage
from pharoah_confirm.assess import Measured
from pharoah_confirm.sample import Benchmark, CannotMeasure

CPU = "cpu"
GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


@dataclass(frozen=True)
class Target:
    """What is to be tested: `device` is cpu or cuda:N, `folder` is on the disk, `partner` is host:port or loopback."""

    device: str
    folder: Path
    partner: str = pair.LOOPBACK

    def benchmark(self, suspicion: Suspicion) -> tuple[Benchmark, str, str]:
        """The benchmark that tests a suspicion, what it runs on, and how that is called; CannotMeasure if none does."""
        benchmark = self.benchmarks().get(suspicion)
        if benchmark is None:
            raise CannotMeasure(f"{self.device} has no test for {suspicion}", hint="pass a GPU with --device")
        if benchmark in cuda.BENCHMARKS:
            return benchmark, self.device, cuda.described(self.device)
        if suspicion is Suspicion.STORAGE:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8")
            return benchmark, str(self.folder), storage.file_system(self.folder.resolve(), mounts)
        if suspicion is Suspicion.INTERCONNECT:
            return benchmark, self.partner, pair.LOOPBACK if self.partner == pair.LOOPBACK else "tcp"
        return benchmark, CPU, processor()

    def benchmarks(self) -> Mapping[Suspicion, Benchmark]:
        """All that can be tested. With a partner the link to it is tested, else that between two GPUs."""
        own = cuda.BENCHMARKS if self.device != CPU else ()
        last = pair.BENCHMARKS if self.partner != pair.LOOPBACK else ()
        tests = (*cpu.BENCHMARKS, *storage.BENCHMARKS, *pair.BENCHMARKS, *own, *last)
        return {benchmark.suspicion: benchmark for benchmark in tests}

    def measure(self, suspicion: Suspicion, seconds: float) -> Measured:
        """One run."""
        benchmark, device, described = self.benchmark(suspicion)
        on_device = cuda.busy(device) if benchmark in cuda.BENCHMARKS else 0.0
        with Busy() as busy:
            sample = benchmark.run(seconds, device, described=described, clock=time.monotonic)
        return Measured(sample, busy.share, on_device)


class Busy:
    """The share of all processors that other programs used within a `with` block; 0 where the system does not tell."""

    def __enter__(self) -> "Busy":
        self.share = 0.0
        self._began = _ticks(), time.process_time()
        return self

    def __exit__(self, *_ended: object) -> None:
        (busy_before, every_before), began_s = self._began
        busy, every = _ticks()
        own = (time.process_time() - began_s) * os.sysconf("SC_CLK_TCK")
        if every > every_before:
            self.share = max(0.0, busy - busy_before - own) / (every - every_before)


def default_device() -> str:
    """The first GPU where a driver is loaded, else the processor."""
    return f"{cuda.PREFIX}0" if any(driver.exists() for driver in GPU_DRIVERS) else CPU


def processor() -> str:
    """The processor's product name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def name() -> str:
    """What this machine is called."""
    return socket.gethostname()


def _ticks() -> tuple[int, int]:
    """Busy ticks of all processors since the start, and all ticks."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return 0, 0
    ticks = [int(number) for number in first.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
