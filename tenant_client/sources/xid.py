"""NVIDIA's Xid codes as data: what a code means, what to do about it, and which reason it supports, if any.

The catalogue is `xid.toml`, beside this file. Sources disagree about some codes (63, 64), which is why it is a table:
change the row, not the program.

    >>> XIDS[79].text, XIDS[79].reason
    ('GPU has fallen off the bus', 'cuda_error')
    >>> 14 in XIDS
    False
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from federation.protocol.causes import CAUSES


class XidRole(StrEnum):
    """What a code can be; two kinds depend on its company and on its line."""

    ROOT = "root"
    SYMPTOM = "symptom"
    SYMPATHETIC = "sympathetic"  # a root alone, a symptom after another code on the same GPU
    BY_SEVERITY = "by_severity"  # a root where the line says Fatal


@dataclass(frozen=True)
class Xid:
    """One code. `reason` is "" where the code alone supports none; `immediate` and `investigate` in NVIDIA's words."""

    code: int
    text: str
    immediate: str
    investigate: str
    reason: str
    role: XidRole


class _Xids(Mapping[int, Xid]):
    """The catalogue by code, read when it is first asked, so that importing this module does no I/O."""

    def __getitem__(self, code: int) -> Xid:
        return _table()[code]

    def __iter__(self) -> Iterator[int]:
        return iter(_table())

    def __len__(self) -> int:
        return len(_table())


XIDS: Mapping[int, Xid] = _Xids()


def parse(text: str) -> Mapping[int, Xid]:
    """Read a catalogue; ValueError for keys that are no code, other columns, unknown reasons or roles."""
    return MappingProxyType({int(code): _xid(int(code), row) for code, row in tomllib.loads(text).items()})


@cache
def _table() -> Mapping[int, Xid]:
    return parse(resources.files(__package__).joinpath("xid.toml").read_text(encoding="utf-8"))


def _xid(code: int, row: Mapping[str, Any]) -> Xid:
    if set(row) != {"text", "immediate", "investigate", "reason", "role"} or code <= 0:
        raise ValueError(f"Xid {code} has the columns {sorted(row)}")
    if row["reason"] and row["reason"] not in CAUSES:
        raise ValueError(f"Xid {code}: {row['reason']!r} is no reason of federation/protocol/causes.toml")
    return Xid(code, row["text"], row["immediate"], row["investigate"], row["reason"], XidRole(row["role"]))
