"""How sure a diagnosis is: makes the table that lies in the package, and checks it on cases that it was not made of.

Cases are logs with a known answer that other hands wrote: the labelled logs of this folder and of `--logs`, half of
gpualert (its logs, its exit codes alone, and both), the tenants' halves of the two-sided cases, what a person read in
../shared/data. Logs that cannot be kept count by `counted.toml`, with a source in each row, as they
were counted when the program first saw them. Of the logs of a file the half whose id hashes to an odd byte makes the
table; the other half checks it. Cases of one corpus whose decisive line reads the same, numbers aside, count once: a
hundred equal logs prove little more than one.
"""

import hashlib
import itertools
import tempfile
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from simulation.studies.diagnosis import logs, two_sided
from simulation.studies.diagnosis.answers import fits
from simulation.studies.diagnosis.logs import Labelled
from simulation.studies.study import DATA, ROOT, Table
from tenant_client.doctor.diagnosis import sureness
from tenant_client.doctor.diagnosis.diagnose import Diagnosis, diagnose, gather
from tenant_client.doctor.diagnosis.log_templates import mask
from tenant_client.doctor.diagnosis.sureness import FAMILIES, Basis, Shares, basis_of, family_of
from tenant_client.doctor.sources import exit_status
from tenant_client.doctor.sources.evidence import Evidence
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN

TABLE = Path(sureness.__file__).with_suffix(".toml")
REAL = ROOT / "tests" / "logs" / "real.toml"
COUNTED = Path(__file__).with_name("counted.toml")
BINS = (0.0, 0.6, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Judged:
    """A case and what the diagnosis made of it. `makes` says whether the table is made of it."""

    corpus: str
    makes: bool
    basis: Basis | None
    said: str
    family: str
    line: str
    right: bool
    right_domain: bool


def run(
    further: Annotated[
        list[Path] | None, typer.Option("--logs", exists=True, help="More labelled logs.", show_default=False)
    ] = None,
    *,
    write: Annotated[bool, typer.Option("--write", help=f"Write {TABLE.name} of the package.")] = False,
) -> Table:
    """How sure a diagnosis may be: what the table is made of, and how often it holds on other cases."""
    judged = list(distinct(judge(further or ())))
    text = table([one for one in judged if one.makes], counted())
    if write:
        TABLE.write_text(text, encoding="utf-8")
    held_out = calibration([one for one in judged if not one.makes], sureness.parse(text))
    return Table({"made_of": dict(Counter(one.corpus for one in judged if one.makes)), "calibration": held_out})


# ---- cases ---------------------------------------------------------------------------------------------------------


def judge(further: Iterable[Path]) -> Iterator[Judged]:
    """All cases that are here."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        for one in (*logs.labelled(), *(row for file in further for row in logs.excerpts(file))):
            log.write_text(one.text, encoding="utf-8")
            yield from _of_log(one, gather([log]).evidence)
    for case in two_sided.cases():
        found = diagnose(gather(case.halves("tenant")).evidence)
        yield _judged("two-sided", case.reasons["tenant"], found, makes=True)
    for name, row in tomllib.loads(REAL.read_text(encoding="utf-8")).items():
        if (DATA / name).exists():
            yield _judged("shared data", (row["reason"],), diagnose(gather([DATA / name]).evidence), makes=True)


def _of_log(one: Labelled, evidence: list[Evidence]) -> Iterator[Judged]:
    """A log, the exit status alone, and both as `run` sees them; the status alone tells what it can."""
    makes = one.corpus == "gpualert" or bool(hashlib.sha256(one.id.encode()).digest()[0] % 2)
    yield _judged(one.corpus, one.right, diagnose(evidence), one.domain, makes=makes)
    ended = exit_status.of(one.status or 0)
    if ended is not None:
        yield _judged(one.corpus, one.right, diagnose([ended]), makes=makes)
        yield _judged(one.corpus, one.right, diagnose([*evidence, ended]), makes=makes)


def _judged(corpus: str, right: Collection[str], found: Diagnosis, domain: str = "", *, makes: bool) -> Judged:
    line = mask(found.root.text) if found.root else ""
    domains = {domain} if domain else {REASONS[reason].domain if reason in REASONS else None for reason in right}
    is_right, is_domain_right = fits(found.reason, right), found.domain in domains
    return Judged(corpus, makes, basis_of(found), found.reason, family_of(found), line, is_right, is_domain_right)


def distinct(cases: Iterable[Judged]) -> Iterator[Judged]:
    """Each kind of case once; an unknown cause is none."""
    yield from dict.fromkeys(one for one in cases if one.basis is not None and one.said != UNKNOWN)


# ---- the table -----------------------------------------------------------------------------------------------------


_Cells = dict[tuple[str, str], list[int]]


def counted() -> tuple[_Cells, list[str]]:
    """The cases of logs that are not here, by basis and family, and their sources."""
    rows = tomllib.loads(COUNTED.read_text(encoding="utf-8"))["counted"] if COUNTED.exists() else []
    cells: _Cells = {}
    for row in rows:
        _add(cells, (row["basis"], row["family"]), row["cases"])
    return cells, list(dict.fromkeys(row["source"] for row in rows))


def table(judged: Sequence[Judged], counts: tuple[_Cells, list[str]] = ({}, [])) -> str:
    """`sureness.toml`."""
    corpora = ", ".join(f"{corpus} {n}" for corpus, n in sorted(Counter(one.corpus for one in judged).items()))
    parts = [
        "# Written by `pharoah-sim study sureness --write`; do not edit.\n"
        "# By kind of evidence: [cases, right reason, right domain], in all and by whose fault was named.\n"
        f"# Distinct cases by corpus: {corpora}.\n" + "".join(f"# Counted: {source}.\n" for source in counts[1])
    ]
    cells = {cell: list(of_cell) for cell, of_cell in counts[0].items()}
    for one in judged:
        if one.basis is not None:
            _add(cells, (one.basis, one.family), (1, one.right, one.right_domain))
    for basis in Basis:
        of_basis = {family: cells[basis, family] for family in ("", *FAMILIES) if (basis, family) in cells}
        if of_basis:
            sums = [sum(column) for column in zip(*of_basis.values(), strict=True)]
            rows = "".join(f"{family} = {of_family}\n" for family, of_family in of_basis.items() if family)
            parts.append(f"[{basis}]\ncases = {sums}\n[{basis}.families]\n{rows}")
    return "\n".join(parts)


def _add(cells: _Cells, cell: tuple[str, str], counts: Sequence[int]) -> None:
    cells[cell] = [one + other for one, other in zip(cells.get(cell, [0, 0, 0]), counts, strict=True)]


# ---- how well it is calibrated -------------------------------------------------------------------------------------


def calibration(judged: Sequence[Judged], made: Mapping[Basis, Shares]) -> dict[str, Any]:
    """On cases that the table was not made of: what it promised and what came, in all, by basis and by promise."""
    pairs = [(made[one.basis].share(one.family, 1) if one.basis in made else None, one) for one in judged if one.basis]
    measured = [(share, one) for share, one in pairs if share is not None]
    bins = {
        f"{low:.0%} to {high:.0%}": _bin([pair for pair in measured if low < pair[0] <= high])
        for low, high in itertools.pairwise(BINS)
    }
    return {
        **_bin(measured),
        "not_measured": len(pairs) - len(measured),
        "brier": round(sum((share - one.right) ** 2 for share, one in measured) / max(1, len(measured)), 4),
        "by_basis": {basis: _bin([pair for pair in measured if pair[1].basis is basis]) for basis in made},
        "by_promise": {name: row for name, row in bins.items() if row["n"]},
    }


def _bin(pairs: Sequence[tuple[float, Judged]]) -> dict[str, Any]:
    n = len(pairs)
    promised = round(sum(share for share, _ in pairs) / n, 4) if n else None
    return {"n": n, "right": sum(one.right for _, one in pairs), "promised": promised}
