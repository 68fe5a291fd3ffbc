"""NVIDIA's Xid codes as data: what a code means, what to do about it, and which reason it supports, if any.

The catalogue is `xid.toml`, beside this file. Sources disagree about some codes (63, 64), which is why it is a table:
change the row, not the program.

    >>> XIDS[79].text, XIDS[79].reason
    ('GPU has fallen off the bus', 'device_lost')
    >>> 14 in XIDS
    False
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from federation.protocol.causes import Domain
from federation.protocol.toml_tables import LazyTable, convert, loads, shipped
from tenant_client.doctor.sources.reasons import REASONS


class XidRole(StrEnum):
    """What a code can be; two kinds depend on its company and on its line."""

    ROOT = "root"
    SYMPTOM = "symptom"
    SYMPATHETIC = "sympathetic"  # a root alone, a symptom after another code on the same GPU
    BY_SEVERITY = "by_severity"  # a root where the line says Fatal


class Xid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One code. `reason` is "" where the code alone supports none; `immediate` and `investigate` in NVIDIA's words.

    `advice` is one sentence or more for the user: that of the row, else those of NVIDIA's two actions. `domain` goes
    before that of the reason.
    """

    text: str
    immediate: str
    investigate: str
    reason: str
    role: XidRole
    domain: Domain | None = None
    advice: str = ""

    def __post_init__(self) -> None:
        if self.reason and self.reason not in REASONS:
            raise ValueError(f"{self.reason!r} is not a reason of causes.toml or reasons.toml")


XIDS: Mapping[int, Xid] = LazyTable(lambda: parse(shipped("tenant_client.doctor.sources", "xid.toml")))


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    actions: dict[str, str]
    codes: dict[Annotated[int, Meta(gt=0)], Xid]

    def __post_init__(self) -> None:
        unknown = {one for xid in self.codes.values() for one in (xid.immediate, xid.investigate)} - {*self.actions}
        if unknown:
            raise ValueError(f"no advice for {', '.join(sorted(unknown))}")

    def advised(self, xid: Xid) -> Xid:
        told = (self.actions[action] for action in (xid.immediate, xid.investigate))
        return xid if xid.advice else msgspec.structs.replace(xid, advice=" ".join(filter(None, dict.fromkeys(told))))


def parse(text: str) -> Mapping[int, Xid]:
    """Read a catalogue; BadTable for an invalid code, unknown columns, actions, reasons or roles."""
    table = convert(loads(text, "xid.toml"), _Table, "xid.toml")
    return {code: table.advised(xid) for code, xid in table.codes.items()}
