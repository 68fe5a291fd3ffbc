"""The tenant's one file: journal, ledger, outbox and token cache in SQLite, on the tenant's own disk.

The file holds plaintext outcomes and a selection secret; `federation.base.sqlite` tells how it is kept, and what
becomes of one that another version wrote.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from federation.base import sqlite
from federation.base.sqlite import Connection, transaction

if TYPE_CHECKING:
    from crypto.ristretto import RandomBytes  # loads what only a federation needs

SCHEMA = """
CREATE TABLE IF NOT EXISTS units (unit TEXT PRIMARY KEY, start_h REAL NOT NULL, labels TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS failures (
    unit TEXT NOT NULL REFERENCES units, at_h REAL NOT NULL, age_h REAL NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sizes (unit TEXT PRIMARY KEY REFERENCES units, nodes INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS node_lists (unit TEXT PRIMARY KEY REFERENCES units, nodes TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS votes (
    unit TEXT NOT NULL REFERENCES units, at_h REAL NOT NULL, node_a TEXT NOT NULL, node_b TEXT NOT NULL, rail INTEGER,
    basis TEXT NOT NULL, UNIQUE (unit, at_h, node_a, node_b));
CREATE TABLE IF NOT EXISTS attempts (
    unit TEXT NOT NULL REFERENCES units, attempt INTEGER NOT NULL, state TEXT NOT NULL, started_at_s REAL NOT NULL,
    ended_at_s REAL, exit_code INTEGER, signal INTEGER, reason TEXT NOT NULL DEFAULT 'unknown', rank INTEGER,
    host TEXT NOT NULL DEFAULT '', gpu TEXT NOT NULL DEFAULT '', place TEXT NOT NULL DEFAULT '',
    sentence TEXT NOT NULL DEFAULT '', steps INTEGER NOT NULL DEFAULT 0, findings TEXT NOT NULL DEFAULT '[]',
    PRIMARY KEY (unit, attempt));
CREATE TABLE IF NOT EXISTS own_words (
    unit TEXT NOT NULL, attempt INTEGER NOT NULL, domain TEXT NOT NULL, advice TEXT NOT NULL,
    PRIMARY KEY (unit, attempt));
CREATE TABLE IF NOT EXISTS paces (
    unit TEXT NOT NULL, attempt INTEGER NOT NULL, at_s INTEGER NOT NULL, observed_s REAL NOT NULL,
    steps INTEGER NOT NULL, timed INTEGER NOT NULL, stepping_s REAL NOT NULL, squares REAL NOT NULL,
    hang_s REAL NOT NULL, first_s REAL, saved INTEGER, PRIMARY KEY (unit, attempt, at_s)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lost_time (
    unit TEXT NOT NULL, attempt INTEGER NOT NULL, at_s INTEGER NOT NULL, reason TEXT NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (unit, attempt, at_s, reason)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usages (
    unit TEXT NOT NULL, attempt INTEGER NOT NULL, ranks INTEGER NOT NULL, rank_bytes REAL NOT NULL,
    workers_bytes REAL NOT NULL, steps INTEGER NOT NULL, sent_bytes REAL NOT NULL, cpu_s REAL NOT NULL,
    PRIMARY KEY (unit, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gpu_peaks (
    unit TEXT NOT NULL, attempt INTEGER NOT NULL, gpu_bytes REAL NOT NULL, gpu_limit_bytes REAL NOT NULL,
    PRIMARY KEY (unit, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS starts (
    unit TEXT NOT NULL, attempt INTEGER NOT NULL, started TEXT NOT NULL, PRIMARY KEY (unit, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fixes (
    unit TEXT NOT NULL, attempt INTEGER NOT NULL, fixed_at_s REAL NOT NULL, reason TEXT NOT NULL, said TEXT NOT NULL,
    PRIMARY KEY (unit, attempt));
CREATE TABLE IF NOT EXISTS descriptors (
    unit TEXT PRIMARY KEY REFERENCES units, described_at_s REAL NOT NULL, descriptor TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS undescribed (unit TEXT PRIMARY KEY REFERENCES units, why TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (unit TEXT PRIMARY KEY REFERENCES units, job TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS incidents (
    id INTEGER PRIMARY KEY, unit TEXT NOT NULL, attempt INTEGER NOT NULL, at_s REAL NOT NULL, lines TEXT NOT NULL,
    words INTEGER NOT NULL, basis TEXT NOT NULL, sure REAL, sure_domain REAL, precedents TEXT NOT NULL,
    helped TEXT NOT NULL DEFAULT '', UNIQUE (unit, attempt));
CREATE TABLE IF NOT EXISTS first_causes (
    unit TEXT NOT NULL, attempt INTEGER NOT NULL, at_s REAL NOT NULL, named_by TEXT NOT NULL,
    PRIMARY KEY (unit, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS incident_words (
    word TEXT NOT NULL, incident INTEGER NOT NULL REFERENCES incidents, PRIMARY KEY (word, incident)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS excerpts (
    unit TEXT NOT NULL, attempt INTEGER NOT NULL, excerpt TEXT NOT NULL, PRIMARY KEY (unit, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS healthy_lines (
    workload TEXT NOT NULL, line TEXT NOT NULL, seen_in TEXT NOT NULL, at_s REAL NOT NULL,
    PRIMARY KEY (workload, line, seen_in)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS failures_by_time ON failures (at_h);
CREATE TABLE IF NOT EXISTS registrations (
    lease BLOB PRIMARY KEY, epoch INTEGER NOT NULL, start_h REAL NOT NULL, ladder BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS links (
    epoch INTEGER NOT NULL, token_before BLOB NOT NULL, token_now BLOB NOT NULL, PRIMARY KEY (epoch, token_before));
CREATE TABLE IF NOT EXISTS grants (digest BLOB PRIMARY KEY, message BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS granted (lease BLOB PRIMARY KEY, grants BLOB NOT NULL REFERENCES grants);
CREATE TABLE IF NOT EXISTS grants_refused (
    lease BLOB NOT NULL REFERENCES granted, grants BLOB NOT NULL REFERENCES grants, PRIMARY KEY (lease, grants));
CREATE TABLE IF NOT EXISTS told (lease BLOB PRIMARY KEY REFERENCES registrations);
CREATE TABLE IF NOT EXISTS asked (
    epoch INTEGER NOT NULL, trustee INTEGER NOT NULL, elements INTEGER NOT NULL, PRIMARY KEY (epoch, trustee));
CREATE TABLE IF NOT EXISTS tokens (
    epoch INTEGER NOT NULL, input BLOB NOT NULL, token BLOB NOT NULL, PRIMARY KEY (epoch, input));
CREATE TABLE IF NOT EXISTS charges (
    round_id BLOB PRIMARY KEY, plan BLOB NOT NULL, start_h INTEGER NOT NULL, end_h INTEGER NOT NULL,
    epsilon REAL NOT NULL, rho REAL NOT NULL);
CREATE TABLE IF NOT EXISTS given_back (round_id BLOB PRIMARY KEY REFERENCES charges, endorsed BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS epoch_windows (epoch INTEGER PRIMARY KEY, edges TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS endorsed_sets (
    name BLOB PRIMARY KEY, epoch INTEGER NOT NULL, start_h INTEGER NOT NULL, message BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    round_id BLOB PRIMARY KEY REFERENCES charges, signed_plan BLOB NOT NULL, message BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS refused (
    round_id BLOB PRIMARY KEY, start_h INTEGER NOT NULL, end_h INTEGER NOT NULL, why TEXT NOT NULL, hint TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS directory (number INTEGER PRIMARY KEY, entry BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS bundles (number INTEGER PRIMARY KEY, message BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS published (number INTEGER PRIMARY KEY, bundle BLOB NOT NULL, signed_plan BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS hints (
    number INTEGER PRIMARY KEY, lease TEXT NOT NULL, received_at_s REAL NOT NULL, hint BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS hint_signatures (number INTEGER PRIMARY KEY REFERENCES hints, signature BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS lease_ends (
    number INTEGER PRIMARY KEY, lease TEXT NOT NULL, received_at_s REAL NOT NULL, end BLOB NOT NULL,
    signature BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS claim_entries (
    number INTEGER PRIMARY KEY, subject TEXT NOT NULL, lease TEXT NOT NULL, salt BLOB NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS claim_entries_by_subject ON claim_entries (subject, number);
CREATE TABLE IF NOT EXISTS anchors (
    holder BLOB NOT NULL, number INTEGER NOT NULL, length INTEGER NOT NULL, head BLOB NOT NULL, message BLOB,
    PRIMARY KEY (holder, number));
CREATE TABLE IF NOT EXISTS warned_sums (start_h INTEGER PRIMARY KEY, sum TEXT);
CREATE TABLE IF NOT EXISTS outcomes_sent (
    told_at_s REAL NOT NULL, hint INTEGER NOT NULL, lease BLOB NOT NULL, suspicion TEXT NOT NULL,
    confirmed INTEGER NOT NULL, shortfall_percent REAL NOT NULL);
CREATE TABLE IF NOT EXISTS questions_sent (
    hour INTEGER NOT NULL, receiver TEXT NOT NULL, kind TEXT NOT NULL, questions INTEGER NOT NULL,
    sent_bytes INTEGER NOT NULL, PRIMARY KEY (hour, receiver, kind));
CREATE TABLE IF NOT EXISTS passes (week INTEGER NOT NULL, pass BLOB NOT NULL, PRIMARY KEY (week, pass)) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS charges_are_final BEFORE UPDATE ON charges BEGIN SELECT RAISE(ABORT, 'append-only'); END;
CREATE TRIGGER IF NOT EXISTS charges_stay BEFORE DELETE ON charges BEGIN SELECT RAISE(ABORT, 'append-only'); END;
CREATE TRIGGER IF NOT EXISTS charges_are_not_replaced BEFORE INSERT ON charges
    WHEN EXISTS (SELECT 1 FROM charges WHERE round_id = NEW.round_id) BEGIN SELECT RAISE(ABORT, 'append-only'); END;
"""


def open_database(path: Path) -> Connection:
    """The tenant's database at `path`, created if absent."""
    return sqlite.open_database(path, SCHEMA)


# ---- secrets that never leave the database --------------------------------------------------------------------------


def selection_key(connection: Connection, random_bytes: "RandomBytes") -> bytes:
    """The secret that decides which failures count; drawn once per database."""
    return _secret(connection, "selection", random_bytes)


def digest_key(connection: Connection, random_bytes: "RandomBytes") -> bytes:
    """The key of the digests that stand for secret-looking values in the journal; drawn once per database."""
    return _secret(connection, "digests", random_bytes)


def _secret(connection: Connection, name: str, random_bytes: "RandomBytes") -> bytes:
    with transaction(connection):
        connection.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, random_bytes(32)))
    row = connection.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()
    return bytes(row[0])
