"""The control groups of one of the two nodes: what it may use, and how long it waited for that.

Limits are those of cgroup v1 (cpu, memory, blkio), pressure is that of v2: both are mounted on a hybrid system.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from pharoah_benchmarks.inject.undo import GROUPS
from pharoah_benchmarks.run import CannotRun

HIERARCHIES = ("unified", "cpu", "memory", "blkio")
PERIOD_US = 100_000
FREE = -1  # no limit


@dataclass(frozen=True)
class Group:
    """A group of one name in each hierarchy."""

    name: str

    @classmethod
    def made(cls, name: str) -> "Group":
        """A new one; CannotRun where this machine does not allow it."""
        try:
            for hierarchy in HIERARCHIES:
                if not (GROUPS / hierarchy / "cgroup.procs").exists():
                    raise FileNotFoundError(f"{GROUPS / hierarchy} is no control group")
                (GROUPS / hierarchy / name).mkdir(parents=True)
        except OSError as error:
            raise CannotRun(
                f"no control groups can be made: {error}",
                hint="faults are injected by root, where cgroup v1 (cpu, memory, blkio) and v2 (unified) are mounted",
            ) from error
        return cls(name)

    def file(self, hierarchy: str, name: str) -> Path:
        """A file of the group."""
        return GROUPS / hierarchy / self.name / name

    def add(self, process: int) -> None:
        """Puts a process in."""
        for hierarchy in HIERARCHIES:
            self.set(hierarchy, "cgroup.procs", str(process))

    def set(self, hierarchy: str, name: str, value: str) -> None:
        """Writes a setting."""
        self.file(hierarchy, name).write_text(value, encoding="ascii")

    def limit_processor(self, share: float | None) -> None:
        """To this share of one processor; None: no limit."""
        self.set("cpu", "cpu.cfs_quota_us", str(FREE if share is None else int(PERIOD_US * share)))

    def limit_memory(self, most_bytes: int | None) -> None:
        """To so many bytes, pages of files included."""
        self.set("memory", "memory.limit_in_bytes", str(FREE if most_bytes is None else most_bytes))

    def limit_disk(self, folder: Path, bytes_per_s: int | None) -> None:
        """What is read from and written to the disk of a folder, past the page cache."""
        device = folder.stat().st_dev
        for way in ("read", "write"):
            limit = f"{os.major(device)}:{os.minor(device)} {bytes_per_s or 0}"
            self.set("blkio", f"blkio.throttle.{way}_bps_device", limit)

    def memory(self) -> dict[str, int]:
        """Bytes by kind, and counts of page faults, as memory.stat has them."""
        lines = self.file("memory", "memory.stat").read_text(encoding="ascii").splitlines()
        return {name: int(value) for name, value in (line.split() for line in lines)}

    def waited_s(self, what: str) -> float:
        """Seconds in which something of it waited for cpu, memory or io."""
        some = self.file("unified", f"{what}.pressure").read_text(encoding="ascii").split()
        return int(next(word for word in some if word.startswith("total=")).removeprefix("total=")) / 1e6
