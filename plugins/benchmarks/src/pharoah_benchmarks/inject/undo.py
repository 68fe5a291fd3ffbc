"""Undoes an injection when whoever started it ends, in whatever way: undo.py NAME FOLDER..., with a pipe as stdin.

It kills what is left in the control groups of that name, and removes them and the folders. A network, and the wire in
it, end with their processes. Needs the standard library alone.
"""

import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

GROUPS, FREEZER = Path("/sys/fs/cgroup"), "unified"
WAIT_S = 10.0  # for the kernel to let go of what was killed


def main() -> None:
    """As the module says."""
    sys.stdin.read()
    undo(sys.argv[1])
    for folder in sys.argv[2:]:
        shutil.rmtree(folder, ignore_errors=True)


def undo(name: str) -> None:
    """Kills and removes all of that name."""
    with suppress(FileNotFoundError):
        (GROUPS / FREEZER / name / "cgroup.kill").write_text("1", encoding="ascii")
    ends_s = time.monotonic() + WAIT_S
    for top in sorted(GROUPS.glob(f"*/{name}")):
        for folder in [*sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True), top]:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > ends_s:
                        raise
                    time.sleep(0.02)


if __name__ == "__main__":
    main()
