"""Logs that a person has labelled, and how many of them are told apart.

A corpus is a file `*.jsonl` in this folder, one object on a line: `id`, `source`, `reason` and `also` (the right slugs,
"unknown" among them where the log says no cause), `why`, `text`. One more is unpacked from ../shared/data where it is
there: half of Parv-01/gpualert-eval, whose labels are modes of failure; `MODES` translates them.

`run` scores other labelled logs by reason and by whose fault it was (`expected` and `domain` are read as well), and
folders of healthy logs, in which nothing may be found.
"""

import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from federation.protocol.causes import Domain
from simulation.studies.diagnosis.answers import Asked, grade, tally
from simulation.studies.study import DATA, Table
from tenant_client.doctor.diagnosis.diagnose import diagnose, gather
from tenant_client.doctor.sources.reasons import UNKNOWN

OWN = (Domain.SCRIPT, Domain.FRAMEWORK)
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
            also = row.get("also") or ()
            also = filter(None, also.split(",")) if isinstance(also, str) else also
            right = (row["reason"] if "reason" in row else row["expected"], *also)
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


def score_sides(logs: Iterable[Labelled]) -> dict[str, int]:
    """Of labelled logs, or of healthy ones (right is "unknown"), what this program says of reason and of side.

    `own_called_infrastructure` is the gravest error: rounds count it against the provider.
    """
    names = ("n", "right", "right_side", "unknown", "wrong", "own_called_infrastructure", "false_alarms")
    counts = dict.fromkeys(names, 0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.log"
        for log in logs:
            file.write_text(log.text, encoding="utf-8")
            found = diagnose(gather([file]).evidence)
            graded, side = grade(found.reason, log.right), found.domain or ""
            counts["n"] += 1
            counts[graded] += 1
            counts["right_side"] += graded == "right" and side in (log.domain or side, "")
            counts["own_called_infrastructure"] += log.domain in OWN and side == Domain.INFRASTRUCTURE
            counts["false_alarms"] += log.right == (UNKNOWN,) and graded == "wrong"
    return counts


def healthy(folder: Path) -> Iterator[Labelled]:
    """Logs of jobs that did not fail, a file each."""
    for file in sorted(folder.glob("*.log")):
        yield Labelled(folder.name, file.stem, (UNKNOWN,), file.read_text(encoding="utf-8", errors="replace"))


def run(
    files: Annotated[list[Path], typer.Argument(exists=True, help="Labelled logs, and folders of healthy ones.")],
) -> Table:
    """Causes that are found in other labelled logs, by reason and by whose fault it was, and alarms in healthy ones."""
    rows = {path: healthy(path) if path.is_dir() else excerpts(path) for path in files}
    return Table([{"file": str(path), **score_sides(of_path)} for path, of_path in rows.items()])
