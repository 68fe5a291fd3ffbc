"""What the watch found of an attempt, in a few words for a list, and what to do about it.

>>> nan = {"kind": "nan_loss", "text": "loss of rank 0 is nan since step 41", "ranks": [0], "cleared_at_s": None}
>>> in_short([nan])
'NaN loss since step 41'
>>> hung_at("rank 1 is outside, idle, for 9 s; 1 rank waits for it; rank 1 at wait (hang.py:7) < main (hang.py:12)")
'rank 1 hung at wait (hang.py:7)'
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tenant_client.doctor.sources.reasons import REASONS

TIMED_OUT = "collective_timeout"
_HANG, _NO_NUMBER = "non_communication_hang", "nan_loss"
_SAID_OTHERWISE = ("hint", "lease_end", "launcher")  # no findings about how the job went
_WHERE = re.compile(r"; rank (?P<rank>\d+) at (?P<where>[^;]*? \([^()]*:\d+\))")
_SINCE = re.compile(r" since step \d+")


def held(findings: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Those about the job that held when it ended, or hold."""
    return [one for one in findings if one.get("cleared_at_s") is None and one["kind"] not in _SAID_OTHERWISE]


def in_short(findings: Sequence[Mapping[str, Any]]) -> str:
    """The first that held, and how many more; "" without one."""
    words = list(dict.fromkeys(_short(one["kind"], one["text"]) for one in held(findings)))
    return "".join(words[:1]) + (f" and {len(words) - 1} more" if len(words) > 1 else "")


def hung_at(text: str) -> str:
    """Where the one rank hangs of which a finding tells; "" where it tells no line, or of several ranks."""
    found = list(_WHERE.finditer(text))
    return f"rank {found[0]['rank']} hung at {found[0]['where']}" if len(found) == 1 else ""


def hung_before(reason: str, findings: Sequence[Mapping[str, Any]]) -> str:
    """Where the rank hangs for which others waited until a collective timed out; "" where it is not so."""
    if reason != TIMED_OUT:
        return ""
    hangs = (hung_at(one["text"]) for one in held(findings) if one["kind"] == _HANG)
    return next(filter(None, hangs), "")


def to_do(findings: Sequence[Mapping[str, Any]]) -> str:
    """The advice for the first that held and that is a reason, too; "" without one."""
    kinds = [str(one["kind"]) for one in held(findings)]
    return next((REASONS[kind].advice for kind in kinds if kind in REASONS), "")


def _short(kind: str, text: str) -> str:
    if kind == _NO_NUMBER:
        since = _SINCE.search(text)
        return "NaN loss" + (since[0] if since else "")
    return (hung_at(text) if kind == _HANG else "") or kind.replace("_", " ")
