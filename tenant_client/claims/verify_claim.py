#!/usr/bin/env python3
"""Verifies a claim about a lease offline: `python verify_claim.py CLAIM KEYS`.

CLAIM is the file that a tenant gives, KEYS the keys that the verifier trusts, from `pharoah-provider keys`. It needs
Python 3.11 and the package `cryptography`, and nothing of Pharoah. What it prints is proven as far as this says:

- The tenant who signed the claim holds the lease: the provider's own signed grant says so.
- Hints, and when the lease ended, are the provider's own words about this lease: it signed them.
- What else is shown is the tenant's word, written down in a journal in which nothing was changed, added or left out
  since the hour that is printed: a quorum of trustees had seen it by then. What says when it happened (at_s; a job that
  was interrupted does not) is refused if it was seen before, or more than eight days later.

Exit codes: 0 verified, 1 refused. The formats are in docs/claims.md.
"""

import base64
import hashlib
import json
import struct
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

LATE_S, CLOCKS_S = 8 * 24 * 3600, 3600  # a journal is anchored every week; two clocks may differ by an hour


class Refused(Exception):
    """The claim does not prove what it says."""


def require(condition: object, why: str) -> None:
    """Refused for this reason, unless the condition holds."""
    if not condition:
        raise Refused(why)


def canonical(value: object) -> bytes:
    """The bytes of a JSON value that are hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256(*parts: bytes) -> bytes:
    """The hash of all parts, one after the other."""
    return hashlib.sha256(b"".join(parts)).digest()


# ---- messages: msgpack, as far as they use it ------------------------------------------------------------------------
NUMBERS = dict(zip(range(0xCA, 0xD4), [">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"], strict=True))
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
SIZES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I"}


def unpacked(data: bytes) -> Any:
    """The value of a whole message."""
    value, end = value_at(data, 0)
    require(end == len(data), "a message has bytes behind its end")
    return value


def value_at(data: bytes, at: int) -> tuple[Any, int]:
    """The value at this place, and the place behind it."""
    first, at = data[at], at + 1
    if first < 0x80 or first >= 0xE0:
        return first - 256 * (first >= 0xE0), at
    if first in CONSTANTS:
        return CONSTANTS[first], at
    if form := NUMBERS.get(first) or SIZES.get(first):
        number, at = struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
        if first in NUMBERS:
            return number, at
    else:
        require(0x90 <= first < 0xC0, "a message has a value that no message has")
        number = first & (0x1F if first >= 0xA0 else 0x0F)
    if first in (0xDC, 0xDD) or first < 0xA0:
        values = []
        for _ in range(number):
            value, at = value_at(data, at)
            values.append(value)
        return values, at
    part = data[at : at + number]
    require(len(part) == number, "a message is cut short")
    return part if first in (0xC4, 0xC5, 0xC6) else part.decode(), at + number


def opened(text: str, key: bytes, label: str) -> tuple[list[Any], bytes]:
    """The fields of a message (base64) that the holder of `key` signed, and the SHA-256 of the message."""
    kind, signature, body = unpacked(base64.b64decode(text, validate=True))
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, b"pharoah/signed/2\0" + sha256(body))
    except InvalidSignature:
        raise Refused(f"a message {label} is not signed by the key that it should be signed by") from None
    named, *fields = unpacked(body)
    require((kind, named) == ("pharoah/signed/2", label), f"a message is not {label}")
    return fields, sha256(body)


# ---- what a claim says -----------------------------------------------------------------------------------------------
def verified(claim: dict[str, Any], keys: dict[str, Any]) -> list[str]:
    """Lines that say what is proven; Refused if something does not fit."""
    key = bytes.fromhex(claim["tenant"])
    tenant = sha256(b"pharoah/tenant-id/1\0", key)[:16]
    (by, named), _ = opened(claim["signed"], key, "pharoah/claim/1")
    unsigned = {name: value for name, value in claim.items() if name != "signed"}
    require((by, named) == (tenant, sha256(canonical(unsigned))), "the claim was changed after the tenant signed it")
    heads, facts = chained(claim["entries"], tenant)
    lines = anchored(claim["anchors"], heads, tenant, keys["trustees"])
    said = [f"tenant {tenant.hex()}, lease {claim['lease']}"]
    for number, fact in facts:
        require(fact["lease"] == claim["lease"], f"entry {number} is about another lease")
        seen_s, at_s = seen(number, lines, keys["quorum"]), fact.get("at_s")
        require(at_s is None or at_s <= seen_s + CLOCKS_S, f"entry {number} was seen before it happened")
        require(at_s is None or seen_s <= at_s + LATE_S, f"entry {number} was written down too late")
        said.append(f"entry {number}, seen by {hour(seen_s)}: {told(fact, tenant, bytes.fromhex(keys['provider']))}")
    require(any(fact["kind"] == "grant" for _, fact in facts), "no grant shows that the tenant holds the lease")
    return said


def chained(entries: list[Any], tenant: bytes) -> tuple[list[bytes], list[tuple[int, dict[str, Any]]]]:
    """The head after each entry, and the facts that are shown with their numbers."""
    heads, facts = [sha256(b"pharoah/claim-head/1\0", tenant)], []
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, str):
            commitment = bytes.fromhex(entry)
        else:
            commitment = sha256(b"pharoah/claim-entry/1\0", bytes.fromhex(entry["salt"]), entry["fact"].encode())
            facts.append((number, json.loads(entry["fact"])))
        require(len(commitment) == 32, f"entry {number} is no commitment")
        heads.append(sha256(b"pharoah/claim-head/1\0", heads[-1], commitment))
    return heads, facts


def anchored(anchors: list[Any], heads: list[bytes], tenant: bytes, trustees: list[Any]) -> dict[int, list[Any]]:
    """By seat: how many entries were seen, and when (seconds since 1970). Each trustee's line is whole."""
    lines: dict[int, list[Any]] = {}
    newest: dict[str, tuple[int, bytes]] = {}
    for length, text in anchors:
        body = unpacked(unpacked(base64.b64decode(text, validate=True))[2])
        for seat, key in (one for one in trustees if one[0] == body[1]):
            try:
                fields, named = opened(text, bytes.fromhex(key), "pharoah/anchor/1")
            except Refused:
                continue  # by another holder of the seat
            _, whose, number, head, before, at_s = fields
            last, last_named = newest.get(key, (0, bytes(32)))
            is_next = (whose, number, before) == (tenant, last + 1, last_named)
            require(is_next, f"anchors of trustee {seat} are left out: the journal may have been written anew")
            fits = 0 <= length < len(heads) and heads[length] == head
            require(fits, f"the journal is not the one that trustee {seat} saw: it was changed or cut short")
            lines.setdefault(seat, []).append((length, at_s))
            newest[key] = number, named
    return lines


def seen(number: int, lines: dict[int, list[Any]], quorum: int) -> int:
    """When a quorum had seen an entry, in seconds since 1970."""
    by_seat = [[at_s for length, at_s in line if length >= number] for line in lines.values()]
    first = sorted(min(times) for times in by_seat if times)
    require(len(first) >= quorum, f"{len(first)} trustees have seen entry {number}, {quorum} are needed")
    return int(first[quorum - 1])


def told(fact: dict[str, Any], tenant: bytes, provider: bytes) -> str:
    """What a fact says; messages of the provider are opened, and must be of this tenant and lease."""
    if fact["kind"] == "grant":
        (whose, leases), _ = opened(fact["message"], provider, "pharoah/lease-grants/3")
        began_h = [one[2] for one in leases if one[0].hex() == fact["lease"]]
        require(whose == tenant and began_h, "a grant is of another tenant or lease")
        return f"the provider granted the lease from {hour(3600 * began_h[0])} on"
    if fact["kind"] == "hint":
        hint, _ = opened(fact["message"], provider, "pharoah/hint/1")
        number, at_h, lease, state, suspicion, ratio, low, high, _, _, action, _ = hint
        require(lease.hex() == fact["lease"], "a hint is about another lease")
        much = f"{ratio:.3g} times the usual hazard ({low:.3g} to {high:.3g})"
        return f"the provider's hint {number} of {hour(3600 * at_h)}: {state}, {suspicion}, {much}, {action}"
    if fact["kind"] == "end":
        (number, at_h, lease, change, end_h, _), _ = opened(fact["message"], provider, "pharoah/lease-end/1")
        require(lease.hex() == fact["lease"], "an end is about another lease")
        return f"the provider's word {number} of {hour(3600 * at_h)}: {change.replace('_', ' ')}, {hour(3600 * end_h)}"
    return ", ".join(f"{name} {value}" for name, value in fact.items() if value is not None and name != "lease")


def hour(at_s: float) -> str:
    """A time in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        lines = verified(*(json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]))
    except Refused as refused:
        sys.exit(f"refused: {refused}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error) as error:
        sys.exit(f"refused: this is no claim, or these are no keys ({type(error).__name__})")
    print("verified", *(line.encode("unicode_escape").decode() for line in lines), sep="\n")
