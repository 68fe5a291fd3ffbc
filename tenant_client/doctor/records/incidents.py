"""The incidents of a home: failed attempts with the lines that tell them, how sure the diagnosis was, and what helped.

- An incident belongs to an attempt; its reason and sentence are those of the attempt, as corrected later.
- The precedents of an incident are looked up when it is kept, and stay while both have the same reason.
- Nothing here leaves.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from crypto.errors import PharoahError
from federation.base.sqlite import Rows, transaction
from tenant_client.doctor.diagnosis.precedents import LEAST, Known, Precedent, cause, like, rank, weights_of, words_of
from tenant_client.doctor.diagnosis.sureness import WORDS, Basis, Sureness

_MOST_ASKED = 500


class NoIncident(PharoahError):
    """The lease has no failed attempt that is kept."""

    default_hint = "list jobs that failed with `pharoah-tenant jobs --failed`"


@dataclass(frozen=True)
class Incident:
    """An incident with its precedents. `sure` and `sure_domain` are None where nobody has measured them."""

    lease: str
    attempt: int
    at_s: float
    basis: str
    sure: float | None
    sure_domain: float | None
    lines: tuple[str, ...]
    helped: str
    precedents: tuple[Precedent, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """How sure the diagnosis was, what helped and what it is like: a line each, for a person."""
        helped = f"helped: {self.helped}" if self.helped else ""
        return (*filter(None, (self.sureness, helped)), *like(self.precedents))

    @property
    def sureness(self) -> str:
        """How sure the diagnosis was, in words, or "" where nobody has measured it."""
        return "" if self.sure is None else f"at least {self.sure:.0%} sure, from {WORDS[Basis(self.basis)]}"


class Incidents(Rows):
    """Reads and writes the incidents in a tenant's database."""

    def keep(self, unit: str, attempt: int, lines: Sequence[str], sure: Sureness | None) -> tuple[Precedent, ...]:
        """Keeps the incident of an attempt, which has its cause already; the nearest three before it."""
        known = "SELECT reason, started_at_s FROM attempts WHERE unit = ? AND attempt = ?"
        reason, at_s = self._connection.execute(known, (unit, attempt)).fetchone()
        near = self._nearest(reason, lines)
        basis, shares = (sure.basis, (sure.reason, sure.domain)) if sure else ("", (None, None))
        words = words_of(lines)
        with transaction(self._connection):
            number = self._connection.execute(
                "INSERT INTO incidents (unit, attempt, at_s, lines, words, basis, sure, sure_domain, precedents)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (unit, attempt, at_s, json.dumps(list(lines)), len(words), basis, *shares, json.dumps(near)),
            ).lastrowid
            self._connection.executemany(
                "INSERT INTO incident_words VALUES (?, ?)", [(word, number) for word in sorted(words)]
            )
        return self._precedents(near)

    def nearest(
        self, reason: str, lines: Sequence[str], *, but: Collection[str] = (), least: float = LEAST
    ) -> tuple[Precedent, ...]:
        """The incidents nearest to a new one, the nearest first; none of the leases in `but`."""
        return self._precedents(self._nearest(reason, lines, but, least))

    def helped(self, unit: str, text: str) -> int:
        """Keeps what helped after the last incident of a lease; its attempt. NoIncident if there is none."""
        last = "SELECT MAX(attempt) FROM incidents WHERE unit = ?"
        attempt = self._connection.execute(last, (unit,)).fetchone()[0]
        if attempt is None:
            raise NoIncident(f"lease {unit} has no failure that is kept")
        changed = "UPDATE incidents SET helped = ? WHERE unit = ? AND attempt = ?"
        self._connection.execute(changed, (text, unit, attempt))
        return int(attempt)

    def kept(self) -> list[Incident]:
        """All incidents, oldest first."""
        rows = self._connection.execute(
            "SELECT unit, attempt, at_s, basis, sure, sure_domain, helped, lines, precedents,"
            " COALESCE(reason, 'unknown') FROM incidents LEFT JOIN attempts USING (unit, attempt) ORDER BY id"
        ).fetchall()
        return [_incident(row[:7], json.loads(row[7]), self._like(json.loads(row[8]), reason)) for *row, reason in rows]

    def _like(self, near: Sequence[tuple[int, float]], reason: str) -> tuple[Precedent, ...]:
        """Without those of other reasons and those too far: an older program kept them too."""
        known = self._precedents(near)
        return tuple(one for one in known if cause(one.reason) == cause(reason) and one.similarity >= LEAST)

    def _nearest(
        self, reason: str, lines: Sequence[str], but: Collection[str] = (), least: float = LEAST
    ) -> list[tuple[int, float]]:
        rows = self._connection.execute(
            "SELECT unit, id, words, COALESCE(reason, 'unknown') FROM incidents"
            " LEFT JOIN attempts USING (unit, attempt)"
        )
        known = [Known(*row) for unit, *row in rows if unit not in but]
        words = sorted(words_of(lines))[:_MOST_ASKED]
        counted = "SELECT word, COUNT(*) FROM incident_words WHERE word IN ({}) GROUP BY word"
        weights = weights_of(dict(self._of_words(counted, words)), len(known))
        shared: defaultdict[int, set[str]] = defaultdict(set)
        for word, number in self._of_words("SELECT word, incident FROM incident_words WHERE word IN ({})", weights):
            shared[number].add(word)
        return rank(reason, weights, known, shared, least)

    def _of_words(self, query: str, words: Collection[str]) -> list[tuple[str, int]]:
        return self._connection.execute(query.format(", ".join("?" * len(words))), tuple(words)).fetchall()

    def _precedents(self, near: Sequence[tuple[int, float]]) -> tuple[Precedent, ...]:
        query = (
            "SELECT i.unit, i.attempt, at_s, COALESCE(this.reason, 'unknown'), COALESCE(this.sentence, ''), helped,"
            " COALESCE(later.state, '') FROM incidents AS i LEFT JOIN attempts AS this USING (unit, attempt)"
            " LEFT JOIN attempts AS later ON later.unit = i.unit AND later.attempt = i.attempt + 1 WHERE id = ?"
        )
        rows = [(self._connection.execute(query, (number,)).fetchone(), similarity) for number, similarity in near]
        return tuple(_precedent(row, similarity) for row, similarity in rows)


def _incident(row: tuple[Any, ...], lines: Sequence[str], precedents: tuple[Precedent, ...]) -> Incident:
    unit, attempt, at_s, basis, sure, sure_domain, helped = row
    return Incident(unit, attempt, at_s, basis, sure, sure_domain, tuple(lines), helped, precedents)


def _precedent(row: tuple[Any, ...], similarity: float) -> Precedent:
    unit, attempt, at_s, reason, sentence, helped, then = row
    return Precedent(unit, attempt, at_s, reason, sentence, similarity, helped, then)
