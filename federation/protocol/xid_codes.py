"""Codes of GPU errors, NVIDIA's Xids and their like of AMD and Intel: what each comes from, before anything is seen.

The table is `xid_causes.toml`, beside this file: assumed shares of hardware, program and driver with their source, what
a line adds, and what an owner's own words say became of an error.

    >>> code_of("NVRM: Xid (PCI:0000:3b:00): 45, pid=9, Ch 00000001 caused by previous Xid 149")
    '149'
    >>> known_codes()["79"].hardware > 0.8 > 0.1 > known_codes()["31"].hardware
    True
    >>> outcome_of("replaced the riser"), outcome_of("asked again")
    ('hardware', None)
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Literal

import msgspec

from federation.protocol.toml_tables import convert, loads, shipped

FILE = "xid_causes.toml"
XID_LINE = re.compile(r"(?<!S)Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+)\): (\d{1,6})\b(.*)", re.ASCII)
CAUSED_BY = re.compile(r"caused by previous Xid (\d{1,6})", re.ASCII)
Cause = Literal["hardware", "program", "driver"]
CAUSES: tuple[Cause, ...] = ("hardware", "program", "driver")


class KnownCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a code before anything is seen; the table says what each column is."""

    text: str
    hardware: float
    program: float
    driver: float
    named: str
    next: str
    follows: bool = False
    explains: bool = False
    spreads: bool = False
    cleans: bool = False
    test: str = ""
    pattern: str = ""

    def __post_init__(self) -> None:
        if abs(self.hardware + self.program + self.driver - 1.0) > 1e-9:
            raise ValueError("hardware, program and driver must add up to 1")


class LineOdds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many times as probable a line with this pattern is where each of the three is the cause."""

    codes: tuple[str, ...]
    pattern: str
    hardware: float
    program: float
    driver: float


class _Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str
    cause: Cause


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    codes: dict[str, KnownCode]
    lines: tuple[LineOdds, ...]
    outcomes: tuple[_Outcome, ...]


@cache
def _table() -> _Table:
    return convert(loads(shipped("federation.protocol", FILE), FILE), _Table, FILE)


@cache
def known_codes() -> Mapping[str, KnownCode]:
    """Every code by its name: an Xid's number, or a word where it has none."""
    found: dict[str, KnownCode] = {}
    for name, code in _table().codes.items():
        first, _, last = name.partition("-")
        numbers = range(int(first), int(last) + 1) if last else ()
        found |= {str(number): code for number in numbers} or {name: code}
    return found


def code_of(text: str) -> str:
    """The code that a line reports, of those that are known; "" for none. Of a clean-up, the code that it names."""
    xid = XID_LINE.search(text)
    if xid:
        earlier = CAUSED_BY.search(xid[3])
        code = earlier[1] if earlier and earlier[1] in known_codes() else xid[2]
        return code if code in known_codes() else ""
    return next((name for name, code in known_codes().items() if code.pattern and re.search(code.pattern, text)), "")


def outcome_of(words: str) -> Cause | None:
    """What an owner's own words say the cause was; None where they do not say."""
    return next((one.cause for one in _table().outcomes if re.search(one.pattern, words)), None)


def odds_of(code: str, text: str) -> Iterator[LineOdds]:
    """What a line with this code adds."""
    for one in _table().lines:
        is_meant = any(known_codes()[code] is _table().codes[name] for name in one.codes)
        if is_meant and re.search(one.pattern, text):
            yield one


def name_of(code: str) -> str:
    """A code for a person."""
    return f"Xid {code}" if code.isdigit() else known_codes()[code].text
