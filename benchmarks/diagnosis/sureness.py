"""How sure a diagnosis is: makes the table that lies in the package, and checks it on cases that it was not made of.

    python -m benchmarks.diagnosis.sureness [--write] [--json] [--logs FILE.jsonl…] [--campaign FOLDER…]

Cases are logs with a known answer: the labelled logs of this folder and of `--logs`, half of gpualert (its logs, its
exit codes alone, and both), campaigns that `python -m benchmarks.diagnosis --out FOLDER` has run (and the status alone
of the rank that failed), and those of tests/logs with what a person read in ../shared/data. Of the excerpts the half
whose id hashes to an odd byte makes the table; the other half checks it. Cases of one corpus whose decisive line reads
the same, numbers aside, count once: a hundred equal logs prove little more than one.
"""

import argparse
import hashlib
import itertools
import json
import re
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnosis import logs
from benchmarks.diagnosis.answers import fits
from benchmarks.diagnosis.logs import Labelled
from benchmarks.figures import DATA
from tenant_client.diagnosis import sureness
from tenant_client.diagnosis.diagnose import Diagnosis, diagnose, gather
from tenant_client.diagnosis.log_templates import mask
from tenant_client.diagnosis.sureness import Basis, Shares, basis_of
from tenant_client.sources import exit_status
from tenant_client.sources.evidence import Evidence
from tenant_client.sources.reasons import REASONS, UNKNOWN

TABLE = Path(sureness.__file__).with_suffix(".toml")
OWN = Path(__file__).resolve().parents[2] / "tests" / "logs"
_STATUS = re.compile(r"exit code (-?\d+)")
BINS = (0.0, 0.6, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Judged:
    """A case and what the diagnosis made of it. `makes` says whether the table is made of it."""

    corpus: str
    makes: bool
    basis: Basis | None
    said: str
    line: str
    right: bool
    right_domain: bool
    sure: float | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.diagnosis.sureness", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} of the package")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--logs", nargs="*", type=Path, default=[], metavar="FILE", help="more labelled excerpts")
    parser.add_argument(
        "--campaign", nargs="*", type=Path, default=[], metavar="FOLDER", help="campaigns that have run"
    )
    asked = parser.parse_args(arguments)
    judged = list(distinct(judge(asked.logs, asked.campaign)))
    text = table([one for one in judged if one.makes])
    if asked.write:
        TABLE.write_text(text, encoding="utf-8")
    report = {
        "made_of": dict(Counter(one.corpus for one in judged if one.makes)),
        "calibration": calibration([one for one in judged if not one.makes], sureness.parse(text)),
    }
    sys.stdout.write(json.dumps(report) + "\n" if asked.json else shown(text, report["calibration"]))
    return 0


# ---- cases ---------------------------------------------------------------------------------------------------------


def judge(further: Iterable[Path], campaigns: Iterable[Path]) -> Iterator[Judged]:
    """All cases that are here."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        for one in (*logs.labelled(), *(row for file in further for row in logs.excerpts(file))):
            log.write_text(one.text, encoding="utf-8")
            yield from _of_log(one, gather([log]).evidence)
    for campaign in campaigns:
        yield from _of_campaign(campaign)
    yield from _of_tables()


def _of_log(one: Labelled, evidence: list[Evidence]) -> Iterator[Judged]:
    """A log, the exit status alone, and both as `run` sees them; the status alone tells what it can."""
    makes = one.corpus == "gpualert" or bool(hashlib.sha256(one.id.encode()).digest()[0] % 2)
    yield _judged(one.corpus, one.right, diagnose(evidence), makes=makes)
    ended = exit_status.of(one.status or 0)
    if ended is not None:
        yield _judged(one.corpus, one.right, diagnose([ended]), makes=makes)
        yield _judged(one.corpus, one.right, diagnose([*evidence, ended]), makes=makes)


def _of_campaign(folder: Path) -> Iterator[Judged]:
    for ran in sorted(folder.glob("jobs/*/ran.json")):
        (truth,) = json.loads(ran.read_text(encoding="utf-8"))["metadata"]["truth"].values()
        found = diagnose(gather([ran.with_name("job.log")]).evidence)
        yield _judged("campaign", truth["reasons"], found, makes=True)
        status = _STATUS.search(found.verdict.text) if found.verdict else None
        ended = exit_status.of(int(status[1])) if status else None
        if ended is not None:  # what the failed rank's status alone would tell
            yield _judged("campaign", truth["reasons"], diagnose([ended]), makes=True)


def _of_tables() -> Iterator[Judged]:
    for corpus, file, folder in (("tests/logs", "expected.toml", OWN), ("shared data", "real.toml", DATA)):
        for name, row in tomllib.loads((OWN / file).read_text(encoding="utf-8")).items():
            if (folder / name).exists():
                yield _judged(corpus, (row["reason"],), diagnose(gather([folder / name]).evidence), makes=True)


def _judged(corpus: str, right: Collection[str], found: Diagnosis, *, makes: bool) -> Judged:
    line = mask(found.root.text) if found.root else ""
    domains = {REASONS[reason].domain if reason in REASONS else None for reason in right}
    return Judged(
        corpus, makes, basis_of(found), found.reason, line, fits(found.reason, right), found.domain in domains
    )


def distinct(cases: Iterable[Judged]) -> Iterator[Judged]:
    """Each kind of case once; an unknown cause is none."""
    yield from dict.fromkeys(one for one in cases if one.basis is not None and one.said != UNKNOWN)


# ---- the table -----------------------------------------------------------------------------------------------------


def table(judged: Sequence[Judged]) -> str:
    """`sureness.toml`."""
    corpora = ", ".join(f"{corpus} {n}" for corpus, n in sorted(Counter(one.corpus for one in judged).items()))
    parts = [
        "# Written by `python -m benchmarks.diagnosis.sureness --write`; do not edit.\n"
        "# By kind of evidence: [cases, right reason, right domain], in all and by the reason that was named.\n"
        f"# Distinct cases by corpus: {corpora}.\n"
    ]
    for basis in Basis:
        of_basis = [one for one in judged if one.basis is basis]
        if of_basis:
            by_reason = {said: [one for one in of_basis if one.said == said] for said in sorted({*_said(of_basis)})}
            rows = "".join(f"{said} = {_counts(of_reason)}\n" for said, of_reason in by_reason.items())
            parts.append(f"[{basis}]\ncases = {_counts(of_basis)}\n[{basis}.reasons]\n{rows}")
    return "\n".join(parts)


def _said(judged: Iterable[Judged]) -> Iterator[str]:
    return (one.said for one in judged)


def _counts(judged: Sequence[Judged]) -> list[int]:
    return [len(judged), sum(one.right for one in judged), sum(one.right_domain for one in judged)]


# ---- how well it is calibrated -------------------------------------------------------------------------------------


def calibration(judged: Sequence[Judged], made: Mapping[Basis, Shares]) -> dict[str, Any]:
    """On cases that the table was not made of: what it promised and what came, in all, by basis and by promise."""
    pairs = [(made[one.basis].share(one.said, 1) if one.basis in made else None, one) for one in judged if one.basis]
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


def shown(text: str, measured: Mapping[str, Any]) -> str:
    """For a person."""
    rows = [f"{'':20}{'n':>5}{'right':>7}{'promised':>10}"]
    groups = {**measured["by_basis"], **measured["by_promise"], "all": measured}
    for name, row in groups.items():
        if row["n"]:
            rows.append(f"{name:20}{row['n']:5}{row['right']:7}{row['promised']:10.3f}")
    return "\n".join([text, "held-out cases:", *rows, f"Brier score {measured['brier']}", ""])


if __name__ == "__main__":
    sys.exit(main())
