"""Logs that a person has labelled, and how many of them are told apart.

A corpus is a file `*.jsonl` in this folder, one object on a line: `id`, `source`, `reason` and `also` (the right slugs,
"unknown" among them where the log says no cause), `why`, `text`. One more is unpacked from ../shared/data where it is
there: half of Parv-01/gpualert-eval, whose labels are modes of failure; `MODES` translates them.
"""

import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.answers import Asked, grade, tally
from benchmarks.figures import DATA

HERE = Path(__file__).resolve().parent
GPUALERT = DATA / "gpualert" / "half.tar.gz"
MODES: dict[str, tuple[str, ...]] = {
    "cuda_oom": ("gpu_out_of_memory",),
    "ram_oom": ("host_out_of_memory",),
    "oom_killer": ("host_out_of_memory",),
    "segfault": ("segmentation_fault",),
    "nan_loss": ("nan_loss",),
    "nccl": ("collective_timeout", "nccl_timeout_error", "nccl_remote_error", "network_error"),
    "cuda_runtime": ("cuda_error", "device_side_assert"),
    "device_mismatch": ("runtime_error",),
    "runtime_error": ("runtime_error",),
    "traceback": ("key_error",),
    "missing_module": ("import_error",),
    "permission": ("permission_error",),
    "file_not_found": ("file_not_found_error",),
    "div_zero": ("zero_division_error",),
    "assertion": ("assertion_error",),
}


@dataclass(frozen=True)
class Labelled:
    """A log and the slugs that are right for it; the job's exit code and whose fault it is, where the corpus tells."""

    corpus: str
    id: str
    right: tuple[str, ...]
    text: str
    status: int | None = None
    domain: str = ""


def labelled(folder: Path = HERE, archive: Path = GPUALERT) -> Iterator[Labelled]:
    """All logs that are here."""
    for file in sorted(folder.glob("*.jsonl")):
        yield from excerpts(file)
    if archive.exists():
        yield from _gpualert(archive)


def excerpts(file: Path) -> Iterator[Labelled]:
    """The logs of one corpus."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.strip():
            row = json.loads(line)
            right = (row["reason"] if "reason" in row else row["expected"], *(row.get("also") or ()))
            yield Labelled(file.stem, row["id"], right, row["text"], domain=row.get("domain") or "")


def _gpualert(archive: Path) -> Iterator[Labelled]:
    with tarfile.open(archive) as packed:
        rows = [json.loads(line) for line in _member(packed, "labels.jsonl").splitlines()]
        for row in rows:
            text, status = _member(packed, row["log_path"]), row["true_exit_code"]
            yield Labelled("gpualert", row["id"], MODES[row["mode"]], text, status)


def _member(packed: tarfile.TarFile, name: str) -> str:
    file = packed.extractfile(name)
    if file is None:
        raise FileNotFoundError(f"{name} is no file of {packed.name!r}")
    return file.read().decode("utf-8", "replace")


def score(logs: Iterable[Labelled], asked: Asked) -> dict[str, Any]:
    """How many are right, unknown and wrong, of each corpus and of all, and what was said of the latter two."""
    grades: dict[str, list[str]] = {}
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.log"
        for log in logs:
            file.write_text(log.text, encoding="utf-8")
            reason = asked(file).reason
            grades.setdefault(log.corpus, []).append(grade(reason, log.right))
            if grades[log.corpus][-1] != "right":
                missed.append({"id": log.id, "right": log.right, "said": reason})
    every = [one for of_corpus in grades.values() for one in of_corpus]
    corpora = {corpus: tally(of_corpus) for corpus, of_corpus in grades.items()}
    return {**tally(every), "corpora": corpora, "missed": missed}
