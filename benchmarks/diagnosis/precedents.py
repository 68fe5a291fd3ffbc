"""How often the right precedent is among the three nearest, how often the nearest has the same cause, and how fast.

    python -m benchmarks.diagnosis.precedents [--json] [--logs FILE.jsonl…]

Cases are the labelled logs of this folder, of `--logs` and of gpualert. Each is asked once, with all others of its
corpus kept as incidents (leave one out); a precedent is right if the label of each is right for the
other. Logs that tell themselves by the same lines are one incident, so that nothing finds its own copy. A log whose
label no other has cannot be found and is not asked. The weights were chosen on the half whose id hashes to an odd byte;
`unseen` is the other half.

`same_cause` asks more than the same reason: each log that is here, those of ../shared/data/wild with the kind of their
fault among them, is asked for the nearest other, however far. It counts those with the same reason and kind, from
`LEAST` on and below it: `LEAST` is where the first are at least twice as often right as the second.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnosis import logs
from benchmarks.diagnosis.answers import fits
from benchmarks.diagnosis.logs import Labelled
from benchmarks.figures import DATA
from federation.runtime.sqlite import Connection
from tenant_client.diagnosis.diagnose import diagnose, gather
from tenant_client.diagnosis.precedents import LEAST, MOST, Precedent, telling_lines
from tenant_client.records.attempts import AttemptCause, Attempts
from tenant_client.records.database import open_database
from tenant_client.records.incidents import Incidents
from tenant_client.sources.reasons import UNKNOWN

KINDS = DATA / "wild" / "small_logs.jsonl"
HOMES = (100, 1000, 5000)
LOOKS = 20


@dataclass(frozen=True)
class Told:
    """A labelled log as an incident. `makes` is of the half that was looked at while this was written."""

    right: tuple[str, ...]
    reason: str
    lines: tuple[str, ...]
    makes: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.diagnosis.precedents", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--logs", nargs="*", type=Path, default=[], metavar="FILE", help="more labelled excerpts")
    asked = parser.parse_args(arguments)
    corpora: dict[str, list[Told]] = {}
    for one in (*logs.labelled(), *(row for file in asked.logs for row in logs.excerpts(file))):
        corpora.setdefault(one.corpus, []).append(told(one))
    every = list({one.lines: one for of_corpus in corpora.values() for one in of_corpus}.values())
    report = {
        "found": {corpus: found(of_corpus) for corpus, of_corpus in corpora.items()},
        "same_cause": same_cause([*map(told, logs.labelled()), *_of_kinds()]),
        "lookup_ms": {str(size): lookup_ms(every, size) for size in HOMES},
    }
    sys.stdout.write(json.dumps(report) + "\n" if asked.json else shown(report))
    return 0


def told(one: Labelled) -> Told:
    """What a home would keep of it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        log.write_text(one.text, encoding="utf-8")
        gathered = gather([log])
    diagnosis = diagnose(gathered.evidence)
    makes = bool(hashlib.sha256(one.id.encode()).digest()[0] % 2)
    return Told(one.right, diagnosis.reason, telling_lines(diagnosis, gathered, frozenset()), makes)


def found(every: Sequence[Told]) -> dict[str, Any]:
    """Leave one out: how many have a right precedent first, and among the first three, in all and of one half."""
    distinct = list({one.lines: one for one in every}.values())
    with tempfile.TemporaryDirectory() as folder, closing(open_database(Path(folder) / "tenant.db")) as connection:
        keep(connection, distinct)
        hits = [(one, _hits(connection, distinct, number)) for number, one in enumerate(distinct, 1)]
    asked = [(one, near) for one, near in hits if near is not None]
    unseen = [(one, near) for one, near in asked if not one.makes]
    return {"incidents": len(distinct), **_shares(asked), "unseen": _shares(unseen)}


def _hits(connection: Connection, every: Sequence[Told], number: int) -> list[bool] | None:
    """Which of the nearest are right; None where there is nothing right to find."""
    one = every[number - 1]
    if one.right[0] == UNKNOWN or not any(_alike(one, other) for other in every if other is not one):
        return None
    return [_alike(one, every[int(precedent.lease) - 1]) for precedent in _nearest(connection, one, number)]


def _nearest(connection: Connection, one: Told, number: int, least: float = LEAST) -> Sequence[Precedent]:
    """The precedents in a home that has not kept it."""
    connection.execute("BEGIN")
    connection.execute("DELETE FROM incident_words WHERE incident = ?", (number,))
    connection.execute("DELETE FROM incidents WHERE id = ?", (number,))
    near = Incidents(connection).nearest(one.reason, one.lines, least=least)
    connection.execute("ROLLBACK")
    return near


def _alike(one: Told, other: Told) -> bool:
    """Whether the label of each is right for the other."""
    labels = one.right[0], other.right[0]
    return UNKNOWN not in labels and fits(labels[0], other.right) and fits(labels[1], one.right)


def _of_kinds() -> Iterable[Told]:
    """Logs with the kind of their fault, without those that have none."""
    rows = map(json.loads, KINDS.read_text(encoding="utf-8").splitlines()) if KINDS.exists() else ()
    for row in rows:
        if row["expected"] != UNKNOWN:
            yield told(Labelled(KINDS.stem, row["id"], (f"{row['expected']}: {row['kind']}",), row["text"]))


def same_cause(every: Sequence[Told]) -> dict[str, list[int]]:
    """How many of the nearest precedents have the same cause, and of how many, near enough to be told and not."""
    distinct = list({one.lines: one for one in every}.values())
    counts = {f"{half} {side}": [0, 0] for half in ("made", "unseen") for side in ("told", "not told")}
    with tempfile.TemporaryDirectory() as folder, closing(open_database(Path(folder) / "tenant.db")) as connection:
        keep(connection, distinct)
        for number, one in enumerate(distinct, 1):
            for nearest in _nearest(connection, one, number, least=0.0)[:1]:
                side = "told" if nearest.similarity >= LEAST else "not told"
                count = counts[f"{'made' if one.makes else 'unseen'} {side}"]
                count[0] += distinct[int(nearest.lease) - 1].right[0] == one.right[0]
                count[1] += 1
    return counts


def _shares(hits: Sequence[tuple[Told, Sequence[bool]]]) -> dict[str, Any]:
    known = [(one, near) for one, near in hits if fits(one.reason, one.right)]
    return {
        "n": len(hits),
        "first": _share(any(near[:1]) for _, near in hits),
        "top_three": _share(any(near[:MOST]) for _, near in hits),
        "top_three_where_the_reason_is_right": _share(any(near[:MOST]) for _, near in known),
    }


def _share(hits: Iterable[bool]) -> float | None:
    all_hits = list(hits)
    return round(sum(all_hits) / len(all_hits), 4) if all_hits else None


def keep(connection: Connection, every: Sequence[Told]) -> None:
    """As a home keeps failed attempts; the lease is the number."""
    attempts, incidents = Attempts(connection), Incidents(connection)
    connection.execute("PRAGMA synchronous=OFF")
    for number, one in enumerate(every, 1):
        attempts.begin(str(number), float(number))
        attempts.explain(str(number), 1, AttemptCause(one.reason))
        incidents.keep(str(number), 1, one.lines, None)


def lookup_ms(every: Sequence[Told], size: int) -> dict[str, float]:
    """Median and slowest of some look-ups in a home of so many incidents, copies of these, in CPU time."""
    with tempfile.TemporaryDirectory() as folder, closing(open_database(Path(folder) / "tenant.db")) as connection:
        keep(connection, every[:size])
        while (kept := connection.execute("SELECT COUNT(*) FROM incidents").fetchone()[0]) < size:
            copies = (kept, size - kept)
            connection.execute(
                "INSERT INTO incidents SELECT id + ?1, unit || '+' || ?1, attempt, at_s, lines, words, basis, sure,"
                " sure_domain, '[]', helped FROM incidents WHERE id <= ?2",
                copies,
            )
            connection.execute(
                "INSERT INTO incident_words SELECT word, incident + ?1 FROM incident_words WHERE incident <= ?2", copies
            )
        took = []
        for number in range(LOOKS):
            one = every[number * len(every) // LOOKS]
            began_s = time.process_time()
            Incidents(connection).nearest(one.reason, one.lines)
            took.append(1000 * (time.process_time() - began_s))
    return {"median": round(sorted(took)[LOOKS // 2], 1), "slowest": round(max(took), 1)}


def shown(report: dict[str, Any]) -> str:
    """For a person."""
    rows = [f"{'':28}{'n':>5}{'first':>8}{'top three':>11}"]
    for corpus, row in report["found"].items():
        for name, part in ((corpus, row), (f"{corpus}, unseen half", row["unseen"])):
            if part["n"]:
                rows.append(f"{name:28}{part['n']:5}{part['first']:8.1%}{part['top_three']:11.1%}")
    for side, (right, asked) in report["same_cause"].items():
        rows.append(f"nearest has the same cause, {side}: {right} of {asked}")
    for size, took in report["lookup_ms"].items():
        rows.append(f"{size} incidents: median {took['median']} ms, slowest {took['slowest']} ms")
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    sys.exit(main())
