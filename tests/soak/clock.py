"""A wall clock for each program, which is moved while it runs: see clock.c, which programs preload."""

import os
import struct
import subprocess
import time
from pathlib import Path

from tests import needs

SOURCE = Path(__file__).with_name("clock.c")


class Clocks:
    """The clocks of programs, by name, in files below `folder`. All run at the speed of real time in between."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._library = folder, folder / "clock.so"
        compiler = str(needs.program("cc"))
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", self._library, SOURCE, "-ldl"], check=True)
        self._ahead_s = 0
        self._odd_s: dict[str, int] = {}
        self.prefix("")

    def now(self) -> float:
        """The right time, in seconds since 1970."""
        return time.time() + self._ahead_s

    def move(self, seconds: float) -> None:
        """Moves all clocks."""
        self._ahead_s += int(seconds)
        for name in self._odd_s:
            self._write(name)

    def step(self, name: str, wrong_s: int) -> None:
        """Steps one clock, which is wrong by that much from now on."""
        self._odd_s[name] = wrong_s
        self._write(name)

    def prefix(self, name: str) -> list[str]:
        """What begins the command line of a program that has a clock of that name."""
        self._odd_s.setdefault(name, 0)
        self._write(name)
        return ["env", f"LD_PRELOAD={self._library}", f"PHAROAH_CLOCK={self._file(name)}"]

    def _file(self, name: str) -> Path:
        return self._folder / f"{name or 'right'}.clock"

    def _write(self, name: str) -> None:
        descriptor = os.open(self._file(name), os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(
            descriptor, struct.pack("=q", self._ahead_s + self._odd_s[name]), 0
        )  # eight bytes, never half of them
        os.close(descriptor)
