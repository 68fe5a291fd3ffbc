"""The run directory of an attempt, the names of leases and jobs, and the job's environment.

A run directory is `<home>/runs/<lease>-<attempt>`, readable by its owner only:

    settings.json     settings of the observer: time-outs and paths
    lock              held by the observer while it runs
    *.log, *.log.1    the last part of the job's output
    progress-<rank>   the progress of each rank, written by the hook in the job
    pattern-<rank>.json     what each rank's functions took in the last seconds, from the hook too
    readings-<rank>   its losses, gradient norms and checkpoints, for `show --only restart`
    save-now          there, and new, when a hint asks for a checkpoint
    failures-per-hour how often the lease fails, for `should_checkpoint`, if the home knows it
    trace-<rank>-<n>.json   traces of a few steps, from the hook too; removed after they are described
    sampling-<rank>   why a rank has no trace yet, in words
    described         there once the workload is described, so that no further trace is made
    dumps/            flight recorder dumps, one per rank, unless the user set another folder
    attempt_<n>/<rank>/     copies of torchrun's error files

If the home is not writable it is a temporary directory. Old run directories are removed.
"""

import errno
import fcntl
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crypto.ids import LeaseId
from federation.base.foreign import number
from federation.base.hostlist import hostlist
from federation.base.key_files import HomeError, read_key
from federation.protocol.job_leases import lease_of_job
from federation.protocol.pod_leases import lease_of_gang
from tenant_client.doctor.records.masking import masked_words
from tenant_client.doctor.sources.scheduler import gang_of, placement

KEPT_RUNS = 20
DUMPS = "dumps"
LEASE_KEY = "lease.key"
RUN_DIR = "PHAROAH_RUN_DIR"
_PROBE_BYTES = 4096
_MOST_LETTERS = 200
_MOST_COMPONENTS = 128  # of Slurm's MAX_HET_JOB_COMPS
_AUTOLOAD = Path(__file__).resolve().parent / "hook" / "autoload"
_AT_ONCE = {"PHAROAH_SAMPLE_FIRST_STEP": "1", "PHAROAH_SAMPLE_LOAD": "inf", "PHAROAH_SAMPLE_JITTER": "inf"}
_DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


@dataclass(frozen=True)
class RunDirectory:
    """An attempt's run directory, and where torchrun will put its own (None: where the user wants it)."""

    run_dir: Path
    attempt: int
    elastic_dir: Path | None


def lease_name(env: Mapping[str, str], home: Path | None = None) -> str:
    """The lease of this job's start, if the home has a lease key and a scheduler started it.

    Else the scheduler's job id, the same after a requeue; a random name without a scheduler.
    """
    where = placement(env)
    if home is not None and (granted := lease_of_start(env, home)):
        return str(granted)
    task = "" if where.array_task is None else str(where.array_task)
    if where.scheduler == "slurm":
        job = where.array_job_id or where.job_id
        return _plain(f"slurm-{job}_{task}" if where.array_job_id and task else f"slurm-{job}")
    if where.scheduler == "kubernetes":
        job = f"{where.namespace or 'default'}-{where.job_id or where.pod or 'pod'}"
        return _plain(f"k8s-{job}-{task}" if task else f"k8s-{job}")
    return f"local-{os.urandom(8).hex()}"


def lease_of_start(env: Mapping[str, str], home: Path) -> LeaseId | None:
    """The lease of the start of Slurm's job or Kubernetes' pods; None without a job, or without a usable lease key."""
    job = number(env.get(f"SLURM_JOB_ID{_component(env)}", ""))
    restarts, gang = number(env.get("SLURM_RESTART_COUNT", "0")), gang_of(env)
    if (job is None or restarts is None) and not gang:
        return None
    try:
        key = read_key(home / LEASE_KEY)
    except HomeError:
        return None
    if job is not None and restarts is not None:
        return lease_of_job(key, env.get("SLURM_CLUSTER_NAME", ""), job, restarts)
    return lease_of_gang(key, gang) if gang else None


def node_list(env: Mapping[str, str]) -> str:
    """The nodes of the lease in Slurm's notation: of Slurm's job, or `NODE_NAME` of a pod that works alone; else "".

    A pod of several knows its own node only, which need not be the one that fails.
    """
    if (gang := gang_of(env)) and gang.kind == "pod":
        return env.get("NODE_NAME", "")
    return env.get(f"SLURM_JOB_NODELIST{_component(env)}", "")


def _component(env: Mapping[str, str]) -> str:
    """How variables end that are about the component of a heterogeneous job on this node; "" of other jobs."""
    node, size = env.get("SLURMD_NODENAME", ""), number(env.get("SLURM_HET_SIZE", "")) or 0
    for group in range(min(size, _MOST_COMPONENTS)) if node else ():
        if node in hostlist(env.get(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", "")):
            return f"_HET_GROUP_{group}"
    return ""


def job_name(command: Sequence[str], env: Mapping[str, str]) -> str:
    """The scheduler's name of the job, else its command without what looks like a secret, cut where it gets long."""
    return (env.get("SLURM_JOB_NAME") or shlex.join(masked_words(command)))[:_MOST_LETTERS]


def make_place(home: Path, lease: str, *, elastic: bool, wanted_bytes: int = 0) -> RunDirectory:
    """A fresh run directory below `home`, or a temporary one where there is no room; OSError if that fails too."""
    try:
        run_dir, attempt = _numbered(home / "runs", _plain(lease), wanted_bytes)
    except OSError:
        run_dir, attempt = Path(tempfile.mkdtemp(prefix="pharoah-")), 1
    (run_dir / DUMPS).mkdir(mode=0o700)
    # Not below `home`: torchrun dies where it cannot make its directory, and by default it makes it just there.
    elastic_dir: Path | None = None
    with suppress(OSError):  # then torchrun will tell
        elastic_dir = Path(tempfile.mkdtemp(prefix="pharoah-elastic-")) if elastic else None
    return RunDirectory(run_dir, attempt, elastic_dir)


def environment(
    env: Mapping[str, str], place: RunDirectory, *, sample: bool, describe_now: bool = False
) -> dict[str, str]:
    """The job's environment: the user's own, plus Pharoah's variables that the user did not set."""
    job = dict(env)
    job[RUN_DIR] = str(place.run_dir)
    if describe_now:
        job |= {name: value for name, value in _AT_ONCE.items() if name not in env}
    if place.elastic_dir is not None:
        job["PET_LOG_DIR"] = str(place.elastic_dir)
    if not any(name in env for name in _DUMP_VARIABLES):
        job |= dict.fromkeys(_DUMP_VARIABLES, str(place.run_dir / DUMPS / "rank_"))
    if sample and _AUTOLOAD.is_dir():
        job["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_AUTOLOAD), env.get("PYTHONPATH"))))
    return job


def remove(place: RunDirectory | None) -> None:
    """Removes what `make_place` made, for a job that could not start."""
    for folder in (place.run_dir, place.elastic_dir) if place is not None else ():
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def hold(run_dir: Path) -> int:
    """Locks the run directory for as long as this process lives; OSError if somebody else holds it."""
    descriptor = os.open(run_dir / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def held(run_dir: Path) -> bool:
    """Whether an observer is running for this directory."""
    try:
        descriptor = hold(run_dir)
    except BlockingIOError:
        return True
    except OSError:
        return False
    os.close(descriptor)
    return False


def observed(home: Path, lease: str) -> bool:
    """Whether an observer is running for any attempt on this lease."""
    return any(held(run_dir) for run_dir in (home / "runs").glob(f"{_plain(lease)}-*"))


def prune(runs: Path, keep: int = KEPT_RUNS) -> None:
    """Removes the oldest run directories beyond `keep`, except those of running observers."""
    oldest_first = sorted(filter(Path.is_dir, runs.iterdir()), key=lambda path: path.stat().st_mtime)
    for run_dir in oldest_first[: max(0, len(oldest_first) - keep)]:
        if not held(run_dir):
            shutil.rmtree(run_dir, ignore_errors=True)


def _numbered(runs: Path, lease: str, wanted_bytes: int) -> tuple[Path, int]:
    for folder in (runs.parent, runs):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    taken = [path.name.rpartition("-") for path in runs.iterdir()]
    attempt = max((number(end) or 0 for start, _, end in taken if start == lease), default=0)
    while True:
        attempt += 1
        run_dir = runs / f"{lease}-{attempt}"
        with suppress(FileExistsError):  # another wrapper under the same lease was faster
            run_dir.mkdir(mode=0o700)
            _probe(run_dir, wanted_bytes)
            return run_dir, attempt


def _probe(run_dir: Path, wanted_bytes: int) -> None:
    """OSError, and no directory, where little can be written: directories can be made on disks that are full."""
    try:
        free = os.statvfs(run_dir)
        if free.f_bavail * free.f_frsize < wanted_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        probe = run_dir / "lock"
        probe.write_bytes(bytes(_PROBE_BYTES))
        probe.write_bytes(b"")
    except OSError:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def newest_runs(home: Path) -> dict[str, Path]:
    """The newest run directory of each lease that has one, the newest last."""
    newest: dict[str, Path] = {}
    for run in sorted(filter(Path.is_dir, (home / "runs").glob("*-*")), key=lambda one: one.stat().st_mtime):
        lease = run.name.rpartition("-")[0]
        newest.pop(lease, None)
        newest[lease] = run
    return newest
