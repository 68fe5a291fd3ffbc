"""What a part writes down while it runs, an object a line: a part that crashes or takes too long keeps what it saw."""

import json
from pathlib import Path
from typing import Any

LINES = 200


class Skipped(Exception):
    """A part cannot be tried here; the message says why."""


class Notes:
    """One part's notes. `device` is cuda:0, or cpu where there is no card; `folder` is the parts' own."""

    def __init__(self, file: Path, device: str) -> None:
        self._file = file
        self.device = device
        self.folder = file.parent

    def figures(self, **figures: Any) -> None:
        """What was measured."""
        self._write({"figures": figures})

    def check(self, name: str, said: object = "", *, good: bool) -> None:
        """A condition of success, and what was found."""
        self._write({"check": name, "good": bool(good), "said": str(said)[:600]})

    def evidence(self, name: str, text: str) -> None:
        """The end of an output, for whoever mends what it shows."""
        self._write({"evidence": name, "text": "\n".join(text.splitlines()[-LINES:])[-24_000:]})

    def skipped(self, why: str) -> None:
        """The part, or the rest of it, cannot be tried."""
        self._write({"skipped": why})

    def _write(self, line: dict[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")


def written(file: Path) -> list[dict[str, Any]]:
    """The notes of a part that has ended; a line that it did not finish is left out."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]
