"""Finds out what a job was started with: command, code, packages, environment and hosts.

Nothing of the job is run or imported: its packages are read as files, git is asked with the hooks and monitors of the
repository switched off. Packages are those of the command's own Python; a shell script in front hides them.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tenant_client.doctor.records.masking import digest, masked_variables, masked_words
from tenant_client.doctor.records.starts import Started

_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_GIT_S = 5.0
_MOST_FILES, _MOST_BYTES = 100, 1 << 20
_OURS = "PHAROAH_"
_EACH_TIME = frozenset(  # differ from run to run, and say nothing
    (
        *("_", "SHLVL", "OLDPWD", "PWD", "WINDOWID", "INVOCATION_ID", "JOURNAL_STREAM"),
        *("SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "XDG_SESSION_ID"),
        *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_TASK_PID"),
    )
)


def started(command: Sequence[str], variables: Mapping[str, str], folder: Path, key: bytes, hosts: str) -> Started:
    """What a command was started with in a folder; `key` makes the digests of what looks secret."""
    commit, dirty = _code(folder)
    dirty = dirty if commit else _scripts(command, folder)
    mask = partial(digest, key=key)
    return Started(
        command=masked_words(command, mask),
        folder=str(folder),
        commit=commit,
        dirty=dirty,
        packages=dict(sorted(_packages(command, variables.get("PATH", os.defpath), folder))),
        environment=masked_variables({name: variables[name] for name in sorted(variables) if _tells(name)}, mask),
        hosts=hosts or os.uname().nodename,
    )


def _tells(name: str) -> bool:
    return name not in _EACH_TIME and not name.startswith(_OURS)


def _packages(command: Sequence[str], path: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Those of the environment whose Python runs: the program itself, or the interpreter that a script names."""
    found = shutil.which(command[0], path=path) if command else None
    if found is None:
        return
    program = folder / found
    if not program.name.startswith("python"):
        program = Path(_interpreter(program))
    if not program.name.startswith("python"):
        return
    for kept in program.parent.parent.glob("lib/python3*/*-packages/*.dist-info"):
        name, _, version = kept.stem.rpartition("-")
        yield name.lower().replace("_", "-"), version


def _interpreter(script: Path) -> str:
    """What the first line of a script names; "" without one."""
    try:
        with script.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return ""
    return os.fsdecode(first[2:]).split()[0] if first.startswith(b"#!") and first[2:].split() else ""


def _code(folder: Path) -> tuple[str, dict[str, str]]:
    """The commit and the files that differ from it, with digests of what they hold now."""
    commit, top = _git(folder, "rev-parse", "HEAD").strip(), _git(folder, "rev-parse", "--show-toplevel").strip()
    if not commit or not top:
        return "", {}
    names = [line[3:] for line in _git(folder, "status", "--porcelain", "-z", "--no-renames").split("\0") if line]
    return commit, {name: _content(Path(top) / name) for name in names[:_MOST_FILES]}


def _scripts(command: Sequence[str], folder: Path) -> dict[str, str]:
    """Of code that git does not know: the scripts that the command names, with digests of what they hold."""
    names = [word for word in command if word.endswith((".py", ".sh"))]
    return {name: content for name in names[:_MOST_FILES] if (content := _content(folder / name))}


def _content(file: Path) -> str:
    try:
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return ""
        return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def _git(folder: Path, *words: str) -> str:
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/"), "GIT_OPTIONAL_LOCKS": "0"}
    try:
        asked = subprocess.run(
            (*_GIT, "-C", str(folder), *words), capture_output=True, env=env, timeout=_GIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(asked.stdout) if asked.returncode == 0 else ""
