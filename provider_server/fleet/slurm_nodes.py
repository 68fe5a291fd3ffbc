"""Slurm's own record of nodes that were down or drained, and why, as outages: what `sacctmgr list event` prints.

    SLURM_TIME_FORMAT=%s sacctmgr -P list event start=2026-11-01 format=NodeName,TimeStart,TimeEnd,State,Reason

A reason is a text that Slurm or an operator wrote; the table `slurm_reasons.toml` says of which kind it is. Events of
the whole cluster are left out, and so are states in which a node takes no part by plan (power saving, reservation).

>>> kind_of("NHC: check_hw_ib: no IB port")
'hardware/network'
>>> kind_of("ask Ann")
'unknown'
"""

import csv
import re
from collections.abc import Iterator
from functools import cache

import msgspec

from federation.protocol.toml_tables import convert, loads, shipped

COLUMNS = frozenset({"NodeName", "TimeStart", "TimeEnd", "State", "Reason"})
UNKNOWN = "unknown"
_TABLE = "slurm_reasons.toml"
_OPEN = frozenset({"", "Unknown", "None", "0"})
_BY_PLAN = re.compile(r"MAINT|RESERV|POWER|PLANNED|REBOOT", re.IGNORECASE)
SECONDS_PER_HOUR = 3600


class _Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    patterns: tuple[str, ...]


class _Reasons(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: tuple[_Reason, ...]


def is_of_slurm(first_line: str) -> bool:
    """Whether a file with this first line is a list of Slurm's events."""
    return set(first_line.strip().split("|")) >= COLUMNS


def node_events(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Node, start, end and kind of each event; times in hours since 1970, or as they stand, an unknown end empty."""
    for row in csv.DictReader(text.splitlines(), delimiter="|", quoting=csv.QUOTE_NONE):
        if not row["NodeName"] or _BY_PLAN.search(row["State"] or ""):
            continue
        end = row["TimeEnd"] or ""
        yield row["NodeName"], _hours(row["TimeStart"] or ""), "" if end in _OPEN else _hours(end), _kind(row["Reason"])


def _kind(reason: str | None) -> str:
    """The kind with the reason as its detail."""
    kind = kind_of(reason or "")
    return f"{kind}/{reason.replace('/', ' ')}" if reason else kind


def kind_of(reason: str) -> str:
    """The kind of outage that a reason tells of."""
    return next((kind for kind, pattern in _table() if pattern.search(reason)), UNKNOWN)


def _hours(time: str) -> str:
    """Seconds since 1970 become hours; other times stay as they are."""
    return repr(int(time) / SECONDS_PER_HOUR) if time.isascii() and time.isdigit() else time


@cache
def _table() -> tuple[tuple[str, re.Pattern[str]], ...]:
    reasons = convert(loads(shipped(__package__, _TABLE), _TABLE), _Reasons, _TABLE).reason
    return tuple((one.kind, re.compile("|".join(one.patterns), re.IGNORECASE)) for one in reasons)
