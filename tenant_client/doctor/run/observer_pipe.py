"""The pipe from the supervisor to the observer. The supervisor sends events and never waits for an answer.

The observer has its own process and session, so that its failure (a crash in a library, a hanging file system, the
out-of-memory killer) does not affect the job.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenant_client.doctor.run.run_directory import RunDirectory
from tenant_client.doctor.run.settings import RunSettings
from tenant_client.doctor.run.supervise import ENDING_SIGNALS, Ending

_MODULE = "tenant_client.doctor.run.observe"
_NAP_S = 0.2
_ONE_CORE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # the cores are the job's
_JOBS = "PHAROAH_JOBS_"  # before the names of variables of the job that are others here


class Link:
    """A running observer."""

    def __init__(self, settings: RunSettings, place: RunDirectory) -> None:
        elastic = place.elastic_dir or os.environ.get("PET_LOG_DIR")
        told = {"run_dir": str(place.run_dir), "attempt": place.attempt, "elastic_dir": str(elastic or "")}
        told["elastic_is_ours"] = str(place.elastic_dir is not None)
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        try:
            self._pid = _spawn(settings.to_json(), json.dumps(told), reading)
        finally:
            os.close(reading)

    def begun(self, pid: int) -> None:
        """The job runs as process `pid`."""
        self._tell({"pid": pid, "at_s": time.time()})

    def asked(self, number: int, sender: str | None, at_s: float) -> None:
        """A signal asked the job to end, and was forwarded; see `attempt.sender_of`."""
        self._tell({"asked": number, "sender": sender, "at_s": at_s})

    def ended(self, how: Ending) -> None:
        """The job has ended."""
        asked_by = list(how.asked_by)
        self._tell({"exit_code": how.exit_code, "signal": how.signal, "asked_by": asked_by, "at_s": time.time()})

    def close(self) -> None:
        """Nothing more will be said."""
        os.close(self._writing)

    def await_end(self, wait_s: float) -> bool:
        """Whether the observer ended within `wait_s`. Ctrl-C and the like end the waiting; then it is killed."""
        until_s = time.monotonic() + wait_s
        while time.monotonic() < until_s:
            try:
                if os.waitpid(self._pid, os.WNOHANG)[0]:
                    return True
            except ChildProcessError:  # reaped with the job's other children
                return True
            info = signal.sigtimedwait(ENDING_SIGNALS | {signal.SIGCHLD}, _NAP_S)
            if info is not None and info.si_signo in ENDING_SIGNALS:
                break
        os.kill(self._pid, signal.SIGKILL)
        return False

    def _tell(self, word: dict[str, Any]) -> None:
        os.write(self._writing, json.dumps(word).encode() + b"\n")


def _spawn(settings: str, told: str, reading: int) -> int:
    command = [sys.executable, "-P", "-m", _MODULE, settings, told]
    paths = [str(Path(entry).resolve()) for entry in sys.path]  # ours may have come from the directory we started in
    nothing = os.open(os.devnull, os.O_WRONLY)
    actions = [(os.POSIX_SPAWN_DUP2, reading, 0), (os.POSIX_SPAWN_DUP2, nothing, 1)]
    jobs = {f"{_JOBS}{name}": os.environ[name] for name in ("PYTHONPATH", *_ONE_CORE) if name in os.environ}
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)} | dict.fromkeys(_ONE_CORE, "1") | jobs
    try:
        return os.posix_spawn(sys.executable, command, env, file_actions=actions, setsid=True, setsigmask=())
    finally:
        os.close(nothing)


def jobs_environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment that the job was started in, from the observer's own."""
    kept = {name: value for name, value in own.items() if name not in ("PYTHONPATH", *_ONE_CORE)}
    jobs = {name.removeprefix(_JOBS): kept.pop(name) for name in list(kept) if name.startswith(_JOBS)}
    return kept | jobs
