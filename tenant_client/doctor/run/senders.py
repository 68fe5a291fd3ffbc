"""Which program sent a signal, read from /proc while the sender is still there."""

from pathlib import Path

TERMINAL = "the terminal"


def sender_of(pid: int, job: int, mark: str = "") -> str | None:
    """The name of the program with this process id, "" if unknown; None for the job itself or what it started.

    `mark` is a line of the environment that the job alone was given: what it started may have lost its parent by now.
    """
    if mark and mark in _environment(pid):
        return None
    seen: set[int] = set()
    name, at = "", pid
    while at > 1 and at not in seen:
        if at == job:
            return None
        seen.add(at)
        try:
            text = Path(f"/proc/{at}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        name = name or text[text.index("(") + 1 : text.rindex(")")]
        at = int(text.rpartition(")")[2].split()[1])
    return name


def _environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:  # it is gone, or somebody else's
        return []
