"""Slurm's own record of nodes that were down or drained, and why, as outages.

    SLURM_TIME_FORMAT=%s sacctmgr -P list event start=2026-11-01 format=NodeName,TimeStart,TimeEnd,State,Reason

tells all of them. What is down or drained now, since when, is told by `scontrol show nodes` and `sinfo`, as `--json` or
as text, and by `sinfo -R`: these are outages that last.

A reason is a text that Slurm or an operator wrote; the table `slurm_reasons.toml` says of which kind it is. Events of
the whole cluster are left out, and so are states in which a node takes no part by plan (power saving, reservation).

>>> kind_of("NHC: check_hw_ib: no IB port")
'hardware/network'
>>> kind_of("ask Ann")
'unknown'
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, zip_longest

import msgspec

from federation.base.foreign import number
from federation.base.hostlist import hostlist
from federation.base.visible import counted_as
from federation.protocol.toml_tables import convert, loads, shipped

COLUMNS = frozenset({"NodeName", "TimeStart", "TimeEnd", "State", "Reason"})
UNKNOWN = "unknown"
_TABLE = "slurm_reasons.toml"
_OPEN = frozenset({"", "Unknown", "None", "0"})
_BY_PLAN = re.compile(r"MAINT|RESERV|POWER|PLANNED|REBOOT", re.IGNORECASE)
_OUT = re.compile(r"DOWN|DRAIN|DRNG|FAIL|NOT_RESPONDING|ERROR", re.IGNORECASE)
_SINFO = re.compile(r"(?=.*\bREASON\b)(?=.*\b(?:NODELIST|HOSTNAMES)\b)(?:[A-Z:_]++[ \t]*+){1,8}+")
_DATE = re.compile(r"\w{3} \w{3} +\d+ [\d:]{8} \d{4}\s*")  # above what `sinfo -l` prints
_LINE = 500
_CELLS = {
    "REASON": r"(?P<reason>\S.*?|)",
    "TIMESTAMP": r"(?P<since>\d{4}-\d\d-\d\dT[\d:]{5,8}|\d{9,10})",
    "STATE": r"(?P<state>[A-Za-z]\S*)",
    "NODELIST": r"(?P<nodes>\S+)",
}
_SHOWN = re.compile(r"NodeName=(\S+)\s")
_SHOWN_STATE = re.compile(r"\bState=(\S+)")
_SHOWN_REASON = re.compile(r"\bReason=(.*?) *\[[^\]@]*@([^\]]+)\]")
SECONDS_PER_HOUR = 3600
Event = tuple[int, str, str, str, str]


class _Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    patterns: tuple[str, ...]


class _Reasons(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: tuple[_Reason, ...]


def events_of(text: str, left_out: list[str]) -> list[Event] | None:
    """Row in the text, node, start, end and kind of each outage; None for what is no text of Slurm.

    Times are hours since 1970, or as they stand; empty where nothing tells them. Rows without a node, which tell of
    the whole cluster, are told in `left_out`.
    """
    first_line = next((line for line in text.splitlines() if line.strip() and not _DATE.fullmatch(line)), "")
    if set(map(str.strip, first_line.split("|"))) >= COLUMNS:
        return list(_events(text, left_out))
    if _SINFO.fullmatch(first_line):
        return list(_reasons(text, left_out))
    if _SHOWN.match(first_line):
        return list(_shown(text))
    return None


def events_told(nodes: list[object], left_out: list[str]) -> Iterator[Event]:
    """The same of nodes in Slurm's JSON, its place for the row; one that cannot be read is told in `left_out`."""
    for place, raw in enumerate(nodes, start=1):
        try:
            one = msgspec.convert(raw, type=_Node)
        except msgspec.ValidationError as error:
            left_out.append(f"node {place}: {error}")
            continue
        states = " ".join((*_listed(one.state), *one.state_flags, *_listed(one.node.state)))
        reason = one.reason if isinstance(one.reason, _Why) else _Why(one.reason or "", one.reason_changed_at)
        since_s = reason.time.number if isinstance(reason.time, _Since) else reason.time
        if _OUT.search(states) and not _BY_PLAN.search(states):
            for node in (one.name,) if one.name else one.nodes.nodes:
                start = repr(since_s / SECONDS_PER_HOUR) if since_s else ""
                yield place, node, start, "", _kind(reason.description)


class _Since(msgspec.Struct, frozen=True):
    number: int = 0


class _Why(msgspec.Struct, frozen=True):
    description: str = ""
    time: int | _Since | None = None


class _States(msgspec.Struct, frozen=True):
    state: str | list[str] = ""


class _Names(msgspec.Struct, frozen=True):
    nodes: list[str] = []


class _Node(msgspec.Struct, frozen=True):
    """A node of `scontrol show nodes`, or alike ones of `sinfo`, as JSON."""

    name: str = ""
    state: str | list[str] = ""
    state_flags: list[str] = []
    reason: str | _Why | None = None
    reason_changed_at: int | _Since | None = None
    node: _States = _States()
    nodes: _Names = _Names()


def _listed(states: str | list[str]) -> list[str]:
    return [states] if isinstance(states, str) else states


def _reasons(text: str, left_out: list[str]) -> Iterator[Event]:
    """Of what `sinfo -R` prints."""
    header, *lines = (line for line in text.splitlines() if line.strip() and not _DATE.fullmatch(line))
    form = _form_of(header)
    for place, line in enumerate(lines, start=1):
        if row := form.fullmatch(line[:_LINE]):
            one = row.groupdict()
            state = one.get("state") or ("" if one["reason"].lower() == "none" else "down")
            if _OUT.search(state) and not _BY_PLAN.search(state):
                for node in hostlist(one["nodes"]):
                    yield place, node, _hours(one.get("since") or ""), "", _kind(one["reason"])
        elif not _SINFO.fullmatch(line):  # several partitions have a header each
            left_out.append(f"row {place}: nothing tells since when it is out")


def _form_of(header: str) -> re.Pattern[str]:
    """What a row below these columns is: a reason may have blanks, as no other cell has."""
    names = list(dict.fromkeys(header.split()))
    if "NODELIST" not in names:
        names[names.index("HOSTNAMES")] = "NODELIST"
    return re.compile(r"\s*" + r"\s+".join(_CELLS.get(name, r"\S+") for name in names) + r"\s*", re.ASCII)


def _shown(text: str) -> Iterator[Event]:
    """Of what `scontrol show nodes` prints, on one line for each node or several."""
    begins = [found.start() for found in _SHOWN.finditer(text)]
    for place, (begin, end) in enumerate(pairwise([*begins, len(text)]), start=1):
        node, block = text[begin:end].split(maxsplit=1)
        state, reason = _SHOWN_STATE.search(block), _SHOWN_REASON.search(block)
        if state and _OUT.search(state[1]) and not _BY_PLAN.search(state[1]):
            name = node.removeprefix("NodeName=")
            yield place, name, _hours(reason[2]) if reason else "", "", _kind(reason[1] if reason else "")


def _events(text: str, left_out: list[str]) -> Iterator[Event]:
    """Of a table of sacctmgr; bars are not escaped, so what is too much in a row belongs to the reason."""
    header, *lines = (line.rstrip("|").split("|") for line in text.splitlines() if line.strip())
    names, of_cluster = [name.strip() for name in header], list[int]()
    for place, cells in enumerate(lines, start=1):
        reason = slice(at := names.index("Reason"), at + 1 + max(0, len(cells) - len(names)))
        cells[reason] = ["|".join(cells[reason])]
        row = dict(zip_longest(names, cells, fillvalue=""))
        if not row["NodeName"].strip():
            of_cluster.append(place)
        elif not _BY_PLAN.search(row["State"]):
            end = "" if row["TimeEnd"] in _OPEN else _hours(row["TimeEnd"])
            yield place, row["NodeName"], _hours(row["TimeStart"]), end, _kind(row["Reason"])
    if of_cluster:
        left_out.append(f"{counted_as(len(of_cluster), 'row')}, the first row {of_cluster[0]}: no node")


def _kind(reason: str | None) -> str:
    """The kind with the reason as its detail."""
    kind = kind_of(reason or "")
    return f"{kind}/{reason.replace('/', ' ')}" if reason else kind


def kind_of(reason: str) -> str:
    """The kind of outage that a reason tells of."""
    return next((kind for kind, pattern in _table() if pattern.search(reason)), UNKNOWN)


def _hours(time: str) -> str:
    """Seconds since 1970 become hours; other times stay as they are."""
    seconds = number(time)
    return time if seconds is None else repr(seconds / SECONDS_PER_HOUR)


@cache
def _table() -> tuple[tuple[str, re.Pattern[str]], ...]:
    reasons = convert(loads(shipped(__package__, _TABLE), _TABLE), _Reasons, _TABLE).reason
    return tuple((one.kind, re.compile("|".join(one.patterns), re.IGNORECASE)) for one in reasons)
