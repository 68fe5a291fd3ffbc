"""Kinds of faults, by name, behind one interface: `start` at a dose from 0 to 1, which may be called again, and `stop`.

| kind | at dose d |
|---|---|
| cpu_throttle | a quota that leaves 1 − .9 d of a processor |
| cpu_steal | another process on the same processor, a share d of the time |
| memory_bandwidth | one that copies memory there, a share d of the time |
| memory_capacity | a limit that leaves 1 − .95 d of the pages of files |
| page_cache | the job's data dropped from the page cache, 40 d times a second |
| disk_slow | reads and writes past the page cache at 4 MB/s to the power 1 − d and .2 MB/s to the power d |
| net_loss, net_corrupt | 10% d of packets lost, or damaged |
| net_delay | 40 d ms each way |
| net_rate | 200 MB/s to the power 1 − d, 4 MB/s to the power d |
| net_flap | the wire down, a share .6 d of each quarter of a second |
| clock_step | a clock 100 d ms from its peers', in the telemetry of that node alone |
| bit_flip | 8 d bits of weights flipped a second |
"""

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pharoah_benchmarks.inject.groups import Group

BEAT_S = 0.05  # of what is done a share of the time
LEAST_PER_S = 0.1
OWN_BYTES = 16 << 20  # left beside what is resident: less, and the job is killed for want of memory
SPIN = "while True: pass"
COPY = "a, b = bytearray(1 << 26), bytearray(1 << 26)\nwhile True: a[:] = b"


@dataclass
class Victim:
    """The node that a fault is injected into. `tools` holds processes that are no part of it."""

    group: Group
    tools: Group
    process: int
    processor: int
    folder: Path
    tell_wire: Callable[[Mapping[str, float]], None]
    clock_off_s: float = 0.0


@dataclass(frozen=True)
class Fault:
    """One kind of fault at one node; `start` takes its dose."""

    start: Callable[[float], object]
    stop: Callable[[], object]


Kind = Callable[[Victim], Fault]


# ---- limits ----------------------------------------------------------------------------------------------------------


def _throttled(victim: Victim) -> Fault:
    limit = victim.group.limit_processor
    return Fault(lambda dose: limit(1.0 - 0.9 * dose), lambda: limit(None))


def _squeezed(victim: Victim) -> Fault:
    """Takes pages of files away: those of anybody's own memory cannot be."""

    def start(dose: float) -> None:
        found = victim.group.memory()
        victim.group.limit_memory(found["rss"] + OWN_BYTES + int((1.0 - 0.95 * dose) * found["cache"]))

    return Fault(start, lambda: victim.group.limit_memory(None))


def _slow_disk(victim: Victim) -> Fault:
    def limit(bytes_per_s: int | None) -> None:
        victim.group.limit_disk(victim.folder, bytes_per_s)

    return Fault(lambda dose: limit(int(4e6 ** (1.0 - dose) * 2e5**dose)), lambda: limit(None))


def _wired(bad: Callable[[float], Mapping[str, float]]) -> Kind:
    """Something that the wire does; without it, it is as at dose 0, and as fast as it can be."""
    well = {name: math.inf if "per_s" in name else 0.0 for name in bad(0.0)}
    return lambda victim: Fault(lambda dose: victim.tell_wire(bad(dose)), lambda: victim.tell_wire(well))


def _clock_step(victim: Victim) -> Fault:
    """In telemetry: no clock of the machine is touched."""

    def off_by(seconds: float) -> None:
        victim.clock_off_s = seconds

    return Fault(lambda dose: off_by(0.1 * dose), lambda: off_by(0.0))


# ---- what is done again and again ------------------------------------------------------------------------------------


class _Beats(threading.Thread):
    """Calls `beat`, which is given the dose and a way to wait, until it is over."""

    def __init__(self, beat: Callable[[float, Callable[[float], object]], None]) -> None:
        super().__init__(daemon=True)
        self.dose, self._beat, self._over = 0.0, beat, threading.Event()

    def run(self) -> None:
        """As the class says."""
        while not self._over.is_set():
            self._beat(self.dose, self._over.wait)

    def at(self, dose: float) -> None:
        """From now on at this dose."""
        self.dose = dose
        if not self.is_alive():
            self.start()

    def end(self) -> None:
        """When this returns, nothing beats any more."""
        self._over.set()
        self.join()


def _hog(program: str) -> Kind:
    """A process on the node's processor that runs a share of the time."""

    def kind(victim: Victim) -> Fault:
        process = subprocess.Popen([sys.executable, "-c", program])
        victim.tools.add(process.pid)
        os.sched_setaffinity(process.pid, {victim.processor})
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, victim.process))

        def beat(dose: float, wait: Callable[[float], object]) -> None:
            process.send_signal(signal.SIGCONT)
            wait(BEAT_S * dose)
            process.send_signal(signal.SIGSTOP)
            wait(BEAT_S * (1.0 - dose))

        def stop() -> None:
            beats.end()
            process.kill()
            process.wait()

        beats = _Beats(beat)
        return Fault(beats.at, stop)

    return kind


def _beaten(do: Callable[[Victim], object], per_s: float) -> Kind:
    """Something done so many times a second at dose 1."""

    def kind(victim: Victim) -> Fault:
        def beat(dose: float, wait: Callable[[float], object]) -> None:
            do(victim)
            wait(1.0 / max(per_s * dose, LEAST_PER_S))

        beats = _Beats(beat)
        return Fault(beats.at, beats.end)

    return kind


def _forget_data(victim: Victim) -> None:
    with (victim.folder / "data").open("rb") as data:
        os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---- all of them -----------------------------------------------------------------------------------------------------


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "cpu_throttle": _throttled,
        "cpu_steal": _hog(SPIN),
        "memory_bandwidth": _hog(COPY),
        "memory_capacity": _squeezed,
        "page_cache": _beaten(_forget_data, 40.0),
        "disk_slow": _slow_disk,
        "net_loss": _wired(lambda dose: {"loss": 0.1 * dose}),
        "net_corrupt": _wired(lambda dose: {"corrupt": 0.1 * dose}),
        "net_delay": _wired(lambda dose: {"delay_s": 0.04 * dose}),
        "net_rate": _wired(lambda dose: {"bytes_per_s": 2e8 ** (1.0 - dose) * 4e6**dose}),
        "net_flap": _wired(lambda dose: {"down": 0.6 * dose}),
        "clock_step": _clock_step,
        "bit_flip": _beaten(lambda victim: os.kill(victim.process, signal.SIGUSR1), 8.0),
    }
)
SPOILS = frozenset({"bit_flip"})  # the job that had it trains on what is wrong: the next fault gets a new one
