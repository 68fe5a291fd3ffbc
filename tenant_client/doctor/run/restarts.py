"""What torchrun leaves on disk: <log dir>/<run id>/attempt_<n>/<local rank>/{error.json,stdout.log,stderr.log}.

torchrun restarts its workers by itself; each restart is an attempt, and its number is in the name of a directory.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

_ATTEMPT = re.compile(r"attempt_(\d{1,6})")


def is_torchrun(command: Sequence[str]) -> bool:
    """Whether a command starts torchrun on this machine; what srun or a script starts may run on others.

    >>> is_torchrun(["torchrun", "a.py"]), is_torchrun(["python3", "-m", "torch.distributed.run", "a.py"])
    (True, True)
    >>> is_torchrun(["srun", "torchrun", "a.py"]), is_torchrun(["python3", "a.py", "torch.distributed.run"])
    (False, False)
    """
    program = Path(command[0]).name
    if program.startswith("python") and "-m" in command:
        return command[command.index("-m") + 1 :][:1] == ["torch.distributed.run"]
    return program == "torchrun"


def attempt_dirs(log_dir: Path, *, since_s: float = 0.0) -> dict[int, Path]:
    """Directories of attempts by number, those of the newest run that was changed after `since_s`."""
    newest: dict[int, Path] = {}
    for run in sorted(_runs(log_dir), key=lambda path: path.stat().st_mtime):
        found = dict(_numbered(run))
        if found and max(path.stat().st_mtime for path in found.values()) >= since_s:
            newest = found
    return newest


def keep_errors(attempts: dict[int, Path], run_dir: Path) -> None:
    """Copies the small error files to the run directory; logs stay where they are."""
    for number, folder in attempts.items():
        for error in folder.glob("*/error.json"):
            kept = run_dir / f"attempt_{number}" / error.parent.name
            kept.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(error, kept / error.name)


def logs_of(attempt: Path) -> list[Path]:
    """Logs of one attempt's workers, where the user had torchrun redirect them."""
    return [path for path in sorted(attempt.glob("*/std*.log")) if path.is_file() and path.stat().st_size]


def remove_if_empty(log_dir: Path) -> None:
    """Removes a log directory that we made, unless somebody may want to read what is in it."""
    if not any(path.stat().st_size for path in log_dir.rglob("*") if path.is_file() and path.name != "error.json"):
        shutil.rmtree(log_dir, ignore_errors=True)


def _runs(log_dir: Path) -> Iterator[Path]:
    """`log_dir` itself may be a run."""
    if log_dir.is_dir():
        yield log_dir
        yield from (path for path in log_dir.iterdir() if path.is_dir() and not _ATTEMPT.fullmatch(path.name))


def _numbered(run: Path) -> Iterator[tuple[int, Path]]:
    for path in sorted(run.iterdir()):
        matched = _ATTEMPT.fullmatch(path.name)
        if matched and path.is_dir():
            yield int(matched[1]), path
