"""Verifies a claim about a lease offline: `python verify_claim.py CLAIM KEYS` (docs/check.md). Exit code 1: refused.

KEYS is whom the verifier trusts (`pharoah-provider trustees keys`). Proven is: the tenant that signed holds the
lease, since the provider granted it; that hints and ends are the provider's own words about it; and that what the
tenant says was in a journal in which nothing was changed, added or left out since the hour that is printed: a quorum
of trustees had seen it. What says when it happened (at_s; an interrupted job does not) is refused if it was seen
before, or more than eight days later.
"""

import base64
import hashlib
import json
import struct
import sys
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

LATE_S, CLOCKS_S = 8 * 24 * 3600, 3600  # a journal is anchored every week; two clocks may differ by an hour
FORMS = "BHIxxxfdBHIQbhiqxxxxxBHIHI"  # of numbers behind msgpack's codes from C4 on; x: messages have none
PROVIDERS = {"grant": "pharoah/lease-grants/3", "hint": "pharoah/hint/1", "end": "pharoah/lease-end/1"}
MISREAD = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RecursionError, TypeError, ValueError)


class Refused(Exception):
    """The claim does not prove what it says."""


def require(condition: object, why: str) -> None:
    """Refused for this reason, unless the condition holds."""
    if not condition:
        raise Refused(why)


def sha256(*parts: bytes) -> bytes:
    """The hash of all parts, one after the other."""
    return hashlib.sha256(b"".join(parts)).digest()


def read(file_name: str) -> Any:
    """The JSON of a file; an object in which a name stands twice is empty, which none may be."""
    with open(file_name, "rb") as file:  # noqa: PTH123  # one import less
        text = file.read(1 << 25).decode()
        require(not file.read(1), "a file is longer than 32 MiB")
    return json.loads(text, object_pairs_hook=lambda pairs: dict(pairs) if len(dict(pairs)) == len(pairs) else {})


def canonical(value: object) -> bytes:
    """The bytes of a JSON value that are hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def unhex(text: str) -> bytes:
    """32 bytes, from the one form of hex that is allowed."""
    data = bytes.fromhex(text)
    require((data.hex(), len(data)) == (text, 32), "a key, a salt or a commitment is not written as it should be")
    return data


def value_at(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The value at this place of a message, which is msgpack, and the place behind it."""
    first, at = data[at], at + 1
    if first < 0x80 or first >= 0xE0:
        return first - 256 * (first >= 0xE0), at
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first], at
    number = first & (0x1F if first >= 0xA0 else 0x0F)
    if first >= 0xC4:
        form, size = ">" + FORMS[first - 0xC4], struct.calcsize(FORMS[first - 0xC4])
        require(at + size <= len(data), "a message is cut short")
        number, at = struct.unpack_from(form, data, at)[0], at + size
    if 0xCA <= first < 0xD4:
        return number, at
    if first in (0xDC, 0xDD) or 0x90 <= first < 0xA0:
        values = []
        for _ in range(number):
            value, at = value_at(data, at)
            values.append(value)
        return values, at
    require(first >= 0xA0 and first != 0xC1 and at + number <= len(data), "a message is cut short, or no message")
    part = data[at : at + number]
    return part if first in (0xC4, 0xC5, 0xC6) else part.decode(), at + number


def parts(text: str) -> tuple[bytes, bytes]:
    """Body and signature of a message (base64), from the one form that is allowed."""
    data = base64.b64decode(text, validate=True)
    (_, signature, body), _ = value_at(data)
    form, first = (">BB", 0xC4) if len(body) < 1 << 8 else (">BH", 0xC5) if len(body) < 1 << 16 else (">BI", 0xC6)
    strict = b"\x93\xb0pharoah/signed/2\xc4\x40" + signature + struct.pack(form, first, len(body)) + body
    require((data, base64.b64encode(data).decode()) == (strict, text), "a message is not written as it should be")
    return body, signature


def opened(text: str, key: bytes, label: str) -> tuple[list[Any], bytes]:
    """The fields of a message that the holder of `key` signed, and the SHA-256 of the message."""
    body, signature = parts(text)
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, b"pharoah/signed/2\0" + sha256(body))
    except InvalidSignature:
        raise Refused(f"a message {label} is not signed by the key that it should be signed by") from None
    (named, *fields), end = value_at(body)
    require((named, end) == (label, len(body)), f"a message is not {label}")
    return fields, sha256(body)


def verified(claim: dict[str, Any], keys: dict[str, Any]) -> list[str]:
    """Lines that say what is proven; Refused if something does not fit."""
    require(canonical(claim["version"]) == b"1" and len(claim) == 6, "this is no claim of version 1")
    key, provider, quorum = unhex(claim["tenant"]), unhex(keys["provider"]), keys["quorum"]
    require(1 <= quorum <= len(dict(keys["trustees"])), "the quorum of the keys is none")
    tenant = sha256(b"pharoah/tenant-id/1\0", key)[:16]
    (by, named), _ = opened(claim["signed"], key, "pharoah/claim/1")
    unsigned = {name: value for name, value in claim.items() if name != "signed"}
    require((by, named) == (tenant, sha256(canonical(unsigned))), "the claim was changed after the tenant signed it")
    heads, facts = chained(claim["entries"], tenant)
    lines = anchored(claim["anchors"], heads, tenant, keys["trustees"])
    said = [f"tenant {tenant.hex()}, lease {claim['lease']}"]
    for number, fact in facts:
        require(fact["lease"] == claim["lease"], f"entry {number} is about another lease")
        seen_s = [[at_s for length, at_s in line if length >= number] for line in lines.values()]
        first_s, at_s = sorted(min(times_s) for times_s in seen_s if times_s), fact.get("at_s")
        require(len(first_s) >= quorum, f"{len(first_s)} trustees have seen entry {number}, {quorum} are needed")
        by_s = first_s[quorum - 1]
        require(at_s is None or at_s <= by_s + CLOCKS_S, f"entry {number} was seen before it happened")
        require(at_s is None or by_s <= at_s + LATE_S, f"entry {number} was written down too late")
        said.append(f"entry {number}, seen by {hour(by_s / 3600)}: {told(fact, tenant, provider)}")
    require(any(fact["kind"] == "grant" for _, fact in facts), "no grant shows that the tenant holds the lease")
    return said


def chained(entries: list[Any], tenant: bytes) -> tuple[list[bytes], list[tuple[int, dict[str, Any]]]]:
    """The head after each entry, and the facts that are shown with their numbers."""
    heads, facts = [sha256(b"pharoah/claim-head/1\0", tenant)], []
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, str):
            commitment = unhex(entry)
        else:
            text, fact = entry["fact"].encode(), json.loads(entry["fact"])
            require(len(entry) == 2 and canonical(fact) == text, f"entry {number} is not written as it should be")
            commitment = sha256(b"pharoah/claim-entry/1\0", unhex(entry["salt"]), text)
            facts.append((number, fact))
        heads.append(sha256(b"pharoah/claim-head/1\0", heads[-1], commitment))
    return heads, facts


def anchored(anchors: list[Any], heads: list[bytes], tenant: bytes, trustees: list[Any]) -> dict[int, list[Any]]:
    """By seat: how many entries were seen, and when (seconds since 1970). Each trustee's line is whole."""
    lines: dict[int, list[Any]] = {}
    newest: dict[str, tuple[int, bytes]] = {}
    for length, text in anchors:
        for seat, key in (one for one in trustees if one[0] == value_at(parts(text)[0])[0][1]):
            try:
                (_, whose, number, head, before, at_s), named = opened(text, unhex(key), "pharoah/anchor/1")
            except Refused:
                continue  # by another holder of the seat
            last, last_named = newest.get(key, (0, bytes(32)))
            is_next = (whose, number, before) == (tenant, last + 1, last_named)
            require(is_next, f"anchors of trustee {seat} are left out: the journal may have been written anew")
            fits = type(length) is int and 0 <= length < len(heads) and heads[length] == head
            require(fits, f"the journal is not the one that trustee {seat} saw: it was changed or cut short")
            lines.setdefault(seat, []).append((length, at_s))
            newest[key] = number, named
    return lines


def told(fact: dict[str, Any], tenant: bytes, provider: bytes) -> str:
    """What a fact says; messages of the provider are opened, and must be of this tenant and lease."""
    if fact["kind"] in ("lease", "attempt", "job", "sentence", "line"):
        values = {name: value for name, value in fact.items() if value is not None and name != "lease"}
        return "the tenant says: " + ", ".join(f"{name} {value}" for name, value in values.items())
    fields, _ = opened(fact["message"], provider, PROVIDERS[fact["kind"]])
    if fact["kind"] == "grant":
        began_h = [one[2] for one in fields[1] if one[0].hex() == fact["lease"]]
        require(fields[0] == tenant and began_h, "a grant is of another tenant or lease")
        return f"the provider granted the lease from {hour(began_h[0])} on"
    number, at_h, lease, what, *more = fields
    require(lease.hex() == fact["lease"], f"{'an end' if fact['kind'] == 'end' else 'a hint'} is about another lease")
    if fact["kind"] == "end":
        return f"the provider's word {number} of {hour(at_h)}: {what.replace('_', ' ')}, {hour(more[0])}"
    suspicion, ratio, low, high, _, _, action, _ = more
    what += f", {suspicion}, {ratio:.3g} times the usual hazard ({low:.3g} to {high:.3g}), {action}"
    return f"the provider's hint {number} of {hour(at_h)}: {what}"


def hour(at_h: float) -> str:
    """A time in hours since 1970, in UTC."""
    return datetime.fromtimestamp(3600 * at_h, UTC).strftime("%Y-%m-%d %H:%M UTC")


if __name__ == "__main__":
    try:
        lines = verified(*map(read, sys.argv[1:])) if len(sys.argv) == 3 else sys.exit(__doc__)
    except Refused as refused:
        sys.exit(f"refused: {refused}")
    except MISREAD as error:
        sys.exit(f"refused: this is no claim, or these are no keys ({type(error).__name__})")
    print("verified", *(line.encode("unicode_escape").decode() for line in lines), sep="\n")
