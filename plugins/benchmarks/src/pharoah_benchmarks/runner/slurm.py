"""Idle nodes of a Slurm partition, and runs on them behind `srun`, which other jobs may displace.

    srun --partition P --nodelist NODE --exclusive ... on_node run JOB --local --json

`srun` passes on the end of its standard input: when the runner is killed, the run ends. When the machine of `srun` is
gone, Slurm ends the job after its time limit; a runner that starts again cancels it before. Such a job is never
requeued. Preemption has to be PreemptMode=CANCEL or REQUEUE: what is suspended goes on later and blocks its node.
"""

import math
import os
import subprocess
import sys
from collections.abc import Sequence

from pharoah_benchmarks.runner.places import ON_NODE, End, How, PlaceAway, Process

PATIENCE_S = 60.0
IMMEDIATE_S = 15  # in which an idle node has to be given, or somebody else took it
_OVER = {
    "PREEMPTED": How.DISPLACED,
    "CANCELLED": How.DISPLACED,
    "NODE_FAIL": How.LOST,
    "BOOT_FAIL": How.LOST,
    "TIMEOUT": How.STOPPED,
    "DEADLINE": How.STOPPED,
}
_ENDED = {"", "COMPLETED", "FAILED", "OUT_OF_MEMORY"}


class Slurm:
    """A partition, or what a QOS may use of all."""

    def __init__(self, partition: str, qos: str, program: str) -> None:
        self._chosen = [f"--partition={partition}"] if partition else []
        self._qos = [f"--qos={qos}"] if qos else []
        self._program = program or sys.executable

    def idle(self) -> list[str]:
        """As `Place`; a node that does not answer or sleeps is none."""
        lines = _said("sinfo", "--noheader", "--Node", *self._chosen, "--format=%N %T").splitlines()
        return sorted({node for node, state in map(str.split, lines) if state == "idle"})

    def start(self, run: str, node: str, words: Sequence[str], limit_s: float) -> "_Step":
        """As `Place`; the whole node is the run's."""
        options = [f"--nodelist={node}", f"--job-name={run}", f"--time={math.ceil(limit_s / 60)}"]
        options += ["--nodes=1", "--ntasks=1", "--exclusive", "--mem=0", f"--immediate={IMMEDIATE_S}", "--quiet"]
        return _Step(run, ["srun", *self._chosen, *self._qos, *options, self._program, *ON_NODE, *words])

    def end(self, run: str) -> bool:
        """As `Place`."""
        return _cancelled(run)


class _Step(Process):
    """A run behind an `srun`."""

    def __init__(self, run: str, command: Sequence[str]) -> None:
        super().__init__(command)
        self._run = run
        self._over: End | None = None

    def poll(self) -> End | None:
        """As `Running`."""
        if self._over is None and (said := super().poll()):
            state = _state(self._run)
            if state in _OVER or state in _ENDED:
                self._over = End(_OVER.get(state, said.how), said.text)
            elif state != "COMPLETING":
                _cancelled(self._run)  # its `srun` was killed
        return self._over


def _state(run: str) -> str:
    """The state of the job of that name, which Slurm remembers for a while."""
    words = _said("squeue", "--noheader", "--states=all", f"--name={run}", "--format=%T").split()
    return words[-1] if words else ""


def _cancelled(run: str) -> bool:
    """Cancels a job; whether it is over."""
    _said("scancel", "--quiet", f"--name={run}")
    return _state(run) in _OVER.keys() | _ENDED


def _said(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlaceAway(f"{command[0]} cannot be asked: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [os.strerror(0)])[-1]
        raise PlaceAway(f"{command[0]} failed: {last[:200]}")
    return done.stdout
