"""Two ranks of a job that train as two nodes: a network, control groups and a processor for each, and a wire between.

undo ─ watches this process ─ and removes the groups, with all in them, when it ends
wire ─ TUN device ─ network of rank 0          TUN device ─ network of rank 1 ─ wire
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from pharoah_benchmarks.inject import telemetry, undo, wire
from pharoah_benchmarks.inject.groups import Group
from pharoah_benchmarks.inject.kinds import Victim
from pharoah_benchmarks.run import CannotRun

ADDRESSES, PORT, MTU = ("10.77.0.1", "10.77.0.2"), 29_400, 16_000
START_S, POLL_S = 120.0, 0.1
SAVE = 8  # steps between two checkpoints of a rank
_WORKER = Path(__file__).with_name("worker.py")  # which needs PyTorch, as nothing here does
NICE = -10  # a node has its processors to itself, whatever else this machine does


@dataclass(frozen=True)
class Pair:
    """The nodes, that of rank 0 first, and their processes."""

    nodes: tuple[Victim, ...]
    ranks: tuple["subprocess.Popen[bytes]", ...]

    @property
    def trains(self) -> bool:
        """Whether both ranks live."""
        return all(rank.poll() is None for rank in self.ranks)


@contextmanager
def pair(job: str, folder: Path) -> Iterator[Pair]:
    """A pair that makes steps; CannotRun where it does not within `START_S`."""
    if missing := [tool for tool in ("ip", "nsenter", "unshare") if which(tool) is None]:
        raise CannotRun(f"{missing[0]} is not installed", hint="install iproute2 and util-linux")
    name = f"pharoah-inject-{os.getpid()}"
    with ExitStack() as stack:
        guard = subprocess.Popen(
            [sys.executable, "-I", undo.__file__, name, str(folder)], stdin=subprocess.PIPE, start_new_session=True
        )
        stack.callback(guard.communicate)
        tools, groups = Group.made(f"{name}/tools"), [Group.made(f"{name}/{number}") for number in range(2)]
        devices = [f"phx{os.getpid()}{end}" for end in "ab"]
        carrier = subprocess.Popen(
            [sys.executable, "-I", wire.__file__, *devices], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        tools.add(carrier.pid)
        os.setpriority(os.PRIO_PROCESS, carrier.pid, NICE)
        assert carrier.stdin is not None and carrier.stdout is not None  # noqa: S101, PT018 - for mypy
        stack.callback(carrier.communicate)
        if not carrier.stdout.readline():
            raise CannotRun("no wire can be made", hint="faults are injected by root, where /dev/net/tun is")
        tell = carrier.stdin

        def tell_wire(words: Mapping[str, float]) -> None:
            tell.write(json.dumps(words) + "\n")
            tell.flush()

        ranks, nodes = [], []
        for number, (group, device) in enumerate(zip(groups, devices, strict=True)):
            own = folder / str(number)
            own.mkdir()
            rank = stack.enter_context(_ended(_rank(job, own, number, device)))
            group.add(rank.pid)
            os.sched_setaffinity(rank.pid, {number % (os.cpu_count() or 1)})
            os.setpriority(os.PRIO_PROCESS, rank.pid, NICE)
            ranks.append(rank)
            nodes.append(Victim(group, tools, rank.pid, number % (os.cpu_count() or 1), own, tell_wire))
        made = Pair(tuple(nodes), tuple(ranks))
        for number, device in enumerate(devices):
            _connect(ranks[number].pid, device, ADDRESSES[number])
        for rank in ranks:
            if rank.stdin is not None:
                rank.stdin.write(b"\n")
                rank.stdin.flush()
        _until_it_trains(made)
        yield made


def _rank(job: str, own: Path, number: int, device: str) -> "subprocess.Popen[bytes]":
    env = os.environ | {
        "RANK": str(number),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": ADDRESSES[0],
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": device,
        "OMP_NUM_THREADS": "1",
    }
    words = ["unshare", "--net", "--", sys.executable, str(_WORKER), job, str(own)]
    with (own / "output").open("wb") as output:
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=own, env=env)


@contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _connect(process: int, device: str, address: str) -> None:
    """Gives a process its end of the wire, when it has a network of its own."""
    ends_s = time.monotonic() + START_S
    while Path(f"/proc/{process}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
        if time.monotonic() > ends_s:
            raise CannotRun("a rank has no network of its own", hint="faults are injected by root")
        time.sleep(POLL_S)
    inside = ["nsenter", "--net", "--target", str(process), "ip"]
    for words in (
        ["ip", "link", "set", device, "netns", str(process)],
        [*inside, "link", "set", "lo", "up"],
        [*inside, "address", "add", f"{address}/30", "dev", device],
        [*inside, "link", "set", device, "up", "mtu", str(MTU)],
    ):
        told = subprocess.run(words, capture_output=True, text=True, check=False)
        if told.returncode:
            said = f"{' '.join(words)} failed: {told.stderr.strip()[:200]}"
            raise CannotRun(said, hint="faults are injected by root")


def _until_it_trains(made: Pair) -> None:
    ends_s = time.monotonic() + START_S
    while not all(telemetry.steps(node) > SAVE for node in made.nodes):
        if not made.trains or time.monotonic() > ends_s:
            said = (made.nodes[0].folder / "output").read_text(encoding="utf-8", errors="replace").strip()
            raise CannotRun(f"the job does not train: {said[-300:]}", hint="does `benchmark run` run it?")
        time.sleep(POLL_S)
