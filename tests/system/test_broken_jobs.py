"""Jobs that are broken on purpose, started by torchrun behind `pharoah-tenant run`: the cause, the rank, what to do.

Each row of `BROKEN` was written before the job ran. `advice` must be found in what the tenant is told to do, `sentence`
in the cause; `side` is whose part it is by `show --only explain`.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tenant_client.doctor.advice.explanation import Explanation, explain
from tenant_client.doctor.advice.failure_facts import Known, facts_of
from tenant_client.doctor.records.attempts import Attempt
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.sources.reasons import REASONS
from tests import needs
from tests.jobs.wrapped import JOBS, attempts, start

needs.installed("torch")

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("torchrun")]
TRIES, PATIENCE_S = 3, 240.0
GROUPS = Path("/sys/fs/cgroup")
A_STORE_FOR_EACH_TRY = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass(frozen=True)
class Broken:
    """A job and what has to be said of it; `rank` is -1 where no rank is at fault."""

    fault: str
    reason: str
    advice: str
    rank: int = -1
    sentence: str = ""
    side: str = "tenant"
    ranks: int = 2
    options: tuple[str, ...] = ()


# Losses are read at each tenth step: of one that is NaN from step 13 on, at step 21.
BROKEN = (
    Broken("key_error", "key_error", "key", 1, "labels"),
    Broken("sigkill", "killed", "who sent", 1, "SIGKILL", side="nobody"),
    Broken("segfault", "segmentation_fault", "faulthandler", 1, "SIGSEGV"),
    Broken("abort", "aborted", "SIGABRT: look above", 1, "SIGABRT"),
    Broken("nan_goes_on", "", "", sentence="since step 21"),
    Broken("nan_assert", "nan_loss", "checkpoint|learning rate", sentence="NaN at step 12"),
    Broken("disk_full", "disk_full|checkpoint_write", "[Ff]ree|space", 0, r"free on .*disk"),
    Broken("loader_killed", "dataloader_killed", "workers|memory", 1),
    Broken("loader_raises", "value_error", "sample|data", 1, "sample 48: bad JPEG"),
    Broken("world_size", "assertion_error", "condition|world size", sentence="needs 4 ranks"),
    Broken("missing_checkpoint", "file_not_found_error", "path", sentence="step-1000"),
    Broken("corrupt_checkpoint", "model_loading_error", "damaged|whole|earlier|another copy"),
    Broken("truncated_checkpoint", "model_loading_error", "damaged|whole|earlier|another copy"),
    Broken(
        "mismatch",
        "mismatched_collective",
        "same collectives|same order",
        sentence="(?i)all_?reduce.*broadcast.*broken.py:",
    ),
    Broken("mismatch_three", "mismatched_collective", "same order", 1, "broadcast.*broken.py:", ranks=3),
    Broken("sizes", "mismatched_collective", "same sizes"),
    Broken("no_driver", "(?!cuda_error)", "container|--gpus|image", sentence="no NVIDIA driver"),
    Broken("early_exit", "uneven_end", "batches|exit", 1, "rank 1 .*exit"),
    Broken("hang", "cancelled_stalled", "look for the rank|stands", 1, r"rank 1 .*broken.py:", side="tenant"),
    Broken("hang_limit", "cancelled_stalled", "look for the rank|stands", 1, r"rank 1 .*broken.py:", side="tenant"),
    Broken("slow", "", "", sentence="rank 1 is slow.*suspect: host CPU"),
    Broken("cgroup_oom", "host_out_of_memory", "memory", 1),
    Broken("ulimit_oom", "host_out_of_memory|bad_alloc|out_of_memory_error", "memory", 1),
    Broken("ulimit_oom_torch", "host_out_of_memory|bad_alloc|out_of_memory_error", "memory", 1),
    Broken("port_in_use", "os_error", "another port", sentence=r"\d{4,5}"),
    Broken(
        "missing_module", "import_error", "[Ii]nstall", sentence="flash_attn_of_nobody", options=("--max-restarts=1",)
    ),
)


@dataclass(frozen=True)
class Told:
    """What was said of one job."""

    code: int
    stderr: str
    attempts: tuple[Attempt, ...]
    advice: str
    explained: Explanation | None

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Told | str]]:
    """All jobs, two at a time; a reason to skip in place of what was said."""
    folder = tmp_path_factory.mktemp("broken")
    with ThreadPoolExecutor(2) as pool:
        yield dict(zip([one.fault for one in BROKEN], pool.map(lambda one: _told(one, folder), BROKEN), strict=True))


def _told(one: Broken, folder: Path) -> Told | str:
    for number in range(TRIES):
        own = folder / one.fault / f"try-{number}"
        (own / "disk").mkdir(parents=True)
        (own / "corrupt.pt").write_bytes(os.urandom(4096))
        whole = _checkpoint(own / "whole.pt")
        (own / "truncated.pt").write_bytes(whole[: len(whole) // 2])
        with ExitStack() as stack:
            if one.fault == "disk_full" and not stack.enter_context(_small_disk(own / "disk")):
                return "no file system can be mounted here"
            group = stack.enter_context(_small_group(one.fault)) if one.fault == "cgroup_oom" else None
            if one.fault == "cgroup_oom" and group is None:
                return "no memory cgroup can be made here"
            port = stack.enter_context(_taken_port()) if one.fault == "port_in_use" else 0
            said = _run(one, own, group, port)
        if not (own / "no-gloo").exists():
            return said
    return "Gloo does not find its peers here"


def _checkpoint(path: Path) -> bytes:
    import torch

    torch.save({"weight": torch.zeros(4096)}, path)
    return path.read_bytes()


def _run(one: Broken, folder: Path, group: Path | None, port: int) -> Told:
    launch: list[object] = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={one.ranks}",
        *one.options,
    ]
    launch += ["--master-addr=127.0.0.1", f"--master-port={port}"] if port else ["--standalone"]
    job: list[object] = [*launch, JOBS / "broken.py", one.fault, folder]
    if one.fault == "hang_limit":
        job = ["timeout", "90", *job]
    into = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    job = ["sh", "-c", into, "sh", *job] if group else job
    home = folder / "home"
    with (folder / "stderr").open("wb") as stderr:
        options = ["--poll-s", 0.2]
        process = start(home, job, options, stdout=stderr, stderr=stderr, env=A_STORE_FOR_EACH_TRY)
        if one.fault == "hang":
            _wait_for(folder / "stderr", "hang:", process)
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            code = process.wait(60)
    own = tuple(attempts(home))
    cause = own[-1].cause
    advice = asdict(cause).get("advice") or (REASONS[cause.reason].advice if cause.reason in REASONS else "")
    with closing(open_database(home / "tenant.db")) as connection:
        explained = explain(facts_of(Known.of(connection), own[-1]))
    return Told(code, (folder / "stderr").read_text(errors="replace"), own, advice, explained)


def _wait_for(file: Path, words: str, process: "subprocess.Popen[bytes]") -> None:
    end_s = time.monotonic() + PATIENCE_S
    while words not in file.read_text(errors="replace") and process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.2)


@contextmanager
def _small_disk(folder: Path) -> Iterator[bool]:
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None or os.getuid():
        yield False
        return
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "none", folder], check=False).returncode == 0
    try:
        yield made
    finally:
        if made:
            subprocess.run([umount, "-l", folder], check=True)


@contextmanager
def _small_group(name: str) -> Iterator[Path | None]:
    """A memory cgroup of its own, of either version, that ends who takes more than 1.5 GiB."""
    for top, limit in ((GROUPS / "memory", "memory.limit_in_bytes"), (GROUPS, "memory.max")):
        group = top / f"pharoah-test-{name}-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(1536 << 20))
            (group / "cgroup.procs").stat()
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            _remove(group)
        return
    yield None


def _remove(group: Path) -> None:
    """Its last process is about to end."""
    end_s = time.monotonic() + 10.0
    while time.monotonic() < end_s and (group / "cgroup.procs").read_text():
        time.sleep(0.2)
    group.rmdir()


@contextmanager
def _taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.fixture(params=BROKEN, ids=lambda one: one.fault)
def job(request: pytest.FixtureRequest, told: dict[str, Told | str]) -> tuple[Broken, Told]:
    one: Broken = request.param
    said = told[one.fault]
    if isinstance(said, str):
        pytest.skip(said)
    return one, said


def test_the_cause_is_named(job: tuple[Broken, Told]) -> None:
    one, said = job
    if not one.reason:  # the job went on, and a finding tells of it
        assert said.code == 0
        assert any(re.search(one.sentence, str(finding["text"])) for finding in said.last.findings), said.stderr
        return
    assert said.code != 0
    for attempt in said.attempts:
        assert re.match(one.reason, attempt.cause.reason), attempt.cause
        assert re.search(one.sentence, attempt.cause.sentence), attempt.cause
        assert one.rank in (-1, attempt.cause.rank), attempt.cause


def test_the_first_thing_to_do_is_right(job: tuple[Broken, Told]) -> None:
    one, said = job
    assert re.search(one.advice, said.advice), said.advice


def test_it_is_said_whose_part_it_is(job: tuple[Broken, Told]) -> None:
    one, said = job
    if one.reason:
        assert said.explained is not None
        assert said.explained.side == one.side, said.explained.sentence
