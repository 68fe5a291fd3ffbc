"""Traces of a few steps, taken by torch's own profiler and written as `trace-<rank>-<n>.json`.

A trace holds operators with shapes and, where there is one, the accelerator's kernels; no stacks, no memory. It appears
under its name only when complete, readable by its owner alone. The sampler keeps clear of the job's own profiling: as
soon as the job starts a profiler, a sample under way is dropped and none follows. Whatever goes wrong ends sampling,
never the job. Why there is no trace yet stands in `sampling-<rank>`, in words; once a file `described` lies in the run
directory, no further sample is taken.
"""

import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any

from tenant_client.doctor.run.hook.lookups import CallTold, LookupTold
from tenant_client.doctor.run.hook.pacing import HISTORY_STEPS, Pacer

MIN_FREE_BYTES, MIN_FREE_DESCRIPTORS = 256 << 20, 16
DESCRIBED = "described"
WILL_PROFILE = "will profile"
_DRIVER = Path("/proc/driver/nvidia/version")
# Those of the table of known incompatibilities that PyTorch itself does not tell.
PACKAGES = (
    "bitsandbytes",
    "deepspeed",
    "flash-attn",
    "lightning",
    "mkl",
    "numpy",
    "peft",
    "protobuf",
    "pytorch-lightning",
    "setuptools",
    "torchvision",
    "transformer-engine",
    "transformers",
    "triton",
    "xformers",
)


class Sampler:
    """Samples the steps that `pacer` picks; tells `complain` what went wrong when there will be no more.

    `on_step` is to be called from step number `next_step` on.
    """

    def __init__(self, torch: Any, run_dir: Path, rank: int, pacer: Pacer, complain: Callable[[str], None]) -> None:
        self._torch = torch
        self._run_dir = run_dir
        self._rank = rank
        self._pacer = pacer
        self._complain = complain
        self._profile: Any = None
        self._steps = pacer.settings.warmup + pacer.settings.active
        if not pacer.stopped:
            first = pacer.next_step + self._steps
            self._note(f"too few steps were seen: the first sample is complete after step {first}")
        self._steps_left = 0
        self._last = (-1, 0.0)  # step, seconds
        self._began_s = 0.0
        self._inside_s = 0.0
        self._working = False
        self._unwatch = ExitStack()
        self._safely(self._watch_other_profilers)

    @property
    def sampling(self) -> bool:
        """Whether a sample is under way."""
        return self._profile is not None

    @property
    def next_step(self) -> float:
        """From this step on it must be told of each: some before a candidate, to know how long they take."""
        return inf if self._pacer.stopped else self._pacer.next_step - HISTORY_STEPS

    def on_step(self, step: int, now_s: float) -> None:
        """Begins, continues or ends a sample; to be called after each step, in the thread that trains."""
        cuda = self._torch.cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            return  # this step is being captured in a graph, and not yet run
        if self._profile is not None:
            self._safely(self._advance)
        else:
            if step == self._last[0] + 1:
                self._pacer.saw(now_s - self._last[1])
            if step >= self._pacer.next_step:
                self._at_candidate(step, now_s)
        self._last = (step, time.perf_counter())

    def _at_candidate(self, step: int, now_s: float) -> None:
        pacer = self._pacer
        if pacer.due(step, now_s, load_per_core()):
            self._began_s, self._inside_s = now_s, 0.0
            self._safely(self._begin)
        elif pacer.busy and not pacer.samples:
            self._note(f"{WILL_PROFILE} {pacer.put_off_s():.0f} s after the first step (host busy: {pacer.busy})")

    def _note(self, why: str) -> None:
        """Says why there is no trace yet, for whoever reads the run directory; nothing once there is one."""
        path = self._run_dir / why_file(self._rank)
        with suppress(OSError):
            if not why:
                path.unlink(missing_ok=True)
                return
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(why)

    def forget_last_step(self) -> None:
        """The coming step's time will say nothing of how long steps take."""
        self._last = (-1, 0.0)

    def close(self) -> None:
        """Drops a sample that is not complete, and leaves torch as it was."""
        self._safely(self._drop)
        self._unwatch.close()

    def _safely(self, work: Callable[[], None]) -> None:
        self._working, began_s = True, time.perf_counter()
        try:
            work()
        except Exception as error:  # noqa: BLE001  # torch raises anything, and the job must not see it
            self._pacer.stopped = True
            self._note(f"sampling failed: {type(error).__name__}: {error}")
            self._complain(f"no further traces: {type(error).__name__}: {error}")
            self._stop_after_failure()
        self._working = False
        self._inside_s += time.perf_counter() - began_s

    def _stop_after_failure(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:  # it may still record, at the job's expense
            profile.on_trace_ready = None
            self._safely(profile.stop)

    def _begin(self) -> None:
        if (self._run_dir / DESCRIBED).exists():
            self._pacer.stopped = True
            return
        if self._profiled_by_others():
            self._leave_to_others()
            return
        if _free_descriptors() < MIN_FREE_DESCRIPTORS:
            self._note("the job has nearly all the descriptors that it may have")
            return
        if shutil.disk_usage(self._run_dir).free < MIN_FREE_BYTES:
            raise OSError(f"less than {MIN_FREE_BYTES >> 20} MiB free in the run directory")
        profiler, settings = self._torch.profiler, self._pacer.settings
        activities = [profiler.ProfilerActivity.CPU]
        if self._torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._steps_left = self._steps
        self._profile = profiler.profile(
            activities=activities,
            schedule=profiler.schedule(wait=0, warmup=settings.warmup, active=settings.active, repeat=1),
            on_trace_ready=self._export,
            record_shapes=True,
        )
        if not self._pacer.samples:
            self._note("the first sample was not completed")
        with _quiet_kineto():
            self._profile.start()

    def _advance(self) -> None:
        self._profile.step()
        self._steps_left -= 1
        if self._steps_left == self._pacer.settings.active:
            self._profile.add_metadata_json("pharoah_versions", json.dumps(versions(self._torch)))
            self._profile.add_metadata_json("pharoah_software", json.dumps(software()))
        elif self._steps_left == 0:
            self._stop()
            wall_s = time.perf_counter() - self._began_s
            self._pacer.charge(max(self._inside_s, wall_s - self._steps * self._pacer.usual_step_s()))
            self._pacer.stopped |= self._may_crash_next_time()

    def _may_crash_next_time(self) -> bool:
        """CUPTI before CUDA 12.6 does not survive being started again in a process with CUDA graphs."""
        cuda = self._torch.version.cuda
        return cuda is not None and tuple(int(part) for part in cuda.split(".")[:2]) < (12, 6)

    def _export(self, profile: Any) -> None:
        number = len(list(self._run_dir.glob(f"trace-{self._rank}-*.json")))
        with tempfile.TemporaryDirectory(prefix=".trace-", dir=self._run_dir) as hidden:
            unfinished = Path(hidden) / "trace.json"
            profile.export_chrome_trace(str(unfinished))
            if not _ends_like_json(unfinished):
                raise OSError("the trace was not written to its end; is the disk full?")
            unfinished.chmod(0o600)
            unfinished.rename(self._run_dir / f"trace-{self._rank}-{number}.json")
        self._note("")

    def _drop(self) -> None:
        if self._profile is not None:
            self._profile.on_trace_ready = None
            self._stop()

    def _stop(self) -> None:
        profile, self._profile = self._profile, None
        profile.stop()

    def _profiled_by_others(self) -> bool:
        return "NSYS_PROFILING_SESSION_ID" in os.environ or self._torch.autograd._profiler_enabled()

    def _leave_to_others(self) -> None:
        if not self._pacer.samples:
            self._note("the job was profiled by its owner")
        self._pacer.stopped = True

    def _watch_other_profilers(self) -> None:
        """There is one profiler per process: were ours to run when the job starts its own, the job would fail."""
        module = self._torch.autograd.profiler
        prepare, run = module.profile._prepare_trace, module._run_on_profiler_start
        self._replace(module.profile, "_prepare_trace", LookupTold(prepare, lambda _: self._give_way()))
        self._replace(module, "_run_on_profiler_start", CallTold(run, self._give_way))

    def _replace(self, owner: Any, name: str, told: Any) -> None:
        self._unwatch.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, told)

    def _give_way(self) -> None:
        if not self._working:
            self._leave_to_others()
            self._safely(self._drop)


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Kineto announces each trace on the job's stderr, unless this level, read once when it is first used, is high."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "6"
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)


def _free_descriptors() -> int:
    try:
        return os.sysconf("SC_OPEN_MAX") - len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # half as dear
    except OSError:
        return 0


def _ends_like_json(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-min(64, path.stat().st_size), os.SEEK_END)
        return file.read().rstrip().endswith(b"}")


def why_file(rank: int) -> str:
    """The name of the file in the run directory that says why `rank` has no trace yet."""
    return f"sampling-{rank}"


def load_per_core() -> float:
    """The host's load average of the last minute, per core."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def versions(torch: Any) -> dict[str, str]:
    """What the job runs on, so that a trace says by which software it was made."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
    if torch.version.cuda and torch.cuda.is_initialized():
        found["cudnn"] = torch.backends.cudnn.version()
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {library: str(version) for library, version in found.items() if version}


def software() -> dict[str, str]:
    """What else may fail with these: the kernel, the driver, and packages, looked up by name and not imported."""
    from importlib import metadata

    found = {"linux": platform.release()} if platform.system() == "Linux" else {}
    with suppress(OSError):
        driver = re.search(r" (\d{3}\.[\d.]+)", _DRIVER.read_text(encoding="utf-8", errors="replace"))
        found |= {"driver": driver[1]} if driver else {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
