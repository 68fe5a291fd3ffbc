"""The programs of a federation as a fleet in which nodes are killed, missed, and started again; and what they use.

Each program is a process with a home of its own, at the SuperLink of the provider's.
"""

import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from federation.base.key_files import read
from provider_server.rounds.home import CONTROL
from provider_server.rounds.network.superlink import registered_nodes
from simulation.run.processes import Places, program, wait_until_ready
from tenant_client.rounds.network.flower_node import NodeKey

LOOK_S, PATIENCE_S = 1.0, 120.0


@dataclass(frozen=True)
class Death:
    """A node that was killed: when, when it was missed (if anybody waited for that), started again, and back."""

    name: str
    killed_s: float
    missed_s: float | None
    started_s: float
    back_s: float


@dataclass
class Fleet:
    """The programs of a federation. Times are of the monotonic clock."""

    places: Places
    stack: ExitStack
    programs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    deaths: list[Death] = field(default_factory=list)
    down: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, *names: str) -> None:
        """Starts programs side by side, and waits until they do their work."""
        for name in names:
            started = program(self.places, name)
            with self.lock:
                self.programs[name] = self.stack.enter_context(started)
        for name in names:
            wait_until_ready(self.places, name, self.programs[name])

    def die(self, name: str, *, wait: bool) -> None:
        """Kills a node and starts it again: once it is missed, or at once."""
        killed_s, missed_s = time.monotonic(), None
        self.programs[name].send_signal(signal.SIGKILL)
        self.programs[name].wait()
        if wait:
            missed_s = self._missed(name)
        started_s = time.monotonic()
        self.start(name)
        self.deaths.append(Death(name, killed_s, missed_s, started_s, time.monotonic()))
        self.down.discard(name)

    def _missed(self, name: str) -> float | None:
        key = NodeKey.of(read(self.places.root / name / "node.key")).public_openssh
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            nodes = registered_nodes(self.places.provider / CONTROL)
            if not any(node.online for node in nodes if node.public_openssh == key):
                return time.monotonic()
            time.sleep(LOOK_S)
        return None

    @contextmanager
    def dying(self, every_s: float) -> Iterator[None]:
        """Kills a node that lives, every so often, while the context lasts; all are back when it ends."""
        over, names, dying = threading.Event(), [home.name for home in self.places.tenant_homes], list[Future[None]]()

        def kill() -> None:
            while not over.wait(every_s):
                name = random.choice([one for one in names if one not in self.down])  # noqa: S311 - no secret
                self.down.add(name)
                dying.append(some.submit(self.die, name, wait=bool(len(dying) % 2)))

        with ThreadPoolExecutor(len(names)) as some:
            killer = threading.Thread(target=kill)
            killer.start()
            try:
                yield
            finally:
                over.set()
                killer.join()
        for each in dying:
            each.result()
