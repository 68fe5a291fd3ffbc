"""A claim that was altered by hand: each way to write it otherwise, to splice it or to break its reader is refused.

Refused is an exit code that is not 0, nothing on stdout and one plain line on stderr. What the tenant could sign again
itself is tried with its key, too, since it is who cheats.
"""

import base64
import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crypto.ids import Digest
from federation.protocol.anchors import ClaimDigest
from pharoah_claims import verify_claim
from plugins.claims.tests.failed_leases import OTHER, OWN, Place, failed_leases, resigned, trusted
from tests.support.factories import Cast

Alter = Callable[[dict[str, Any]], object]
HINT = "entry 9, seen by 2027-01-15 15:30 UTC: the provider's hint 7 of 2027-01-15 12:00 UTC: raised, memory"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("claims")
    cast = Cast(root)
    with failed_leases(cast, root) as there:
        yield there
    cast.close()


def outcome(folder: Path, claim: str | bytes, keys: str | bytes = "", *more: str) -> tuple[str, str]:
    """What the program prints on stdout, and what it ends with: "" where the claim is verified."""
    for name, content in (("claim", claim), ("keys", keys or json.dumps(trusted()))):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return ended_with(str(folder / "claim"), str(folder / "keys"), *more)


def ended_with(*words: str) -> tuple[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["verify_claim.py", *words])
        printed: list[str] = []
        patch.setattr("builtins.print", lambda *lines, **_: printed.extend(lines))
        try:
            runpy.run_path(verify_claim.__file__, run_name="__main__")
        except SystemExit as end:
            return "\n".join(printed), str(end.code)
        return "\n".join(printed), ""


def refusal(folder: Path, claim: str | bytes, keys: str | bytes = "") -> str:
    printed, why = outcome(folder, claim, keys)
    assert not printed
    assert why.startswith("refused: ")
    assert why.isascii()
    assert why.isprintable()
    return why


def shown(claim: dict[str, Any], kind: str) -> dict[str, str]:
    """The entry of a kind that is shown."""
    return next(one for one in claim["entries"] if isinstance(one, dict) and json.loads(one["fact"])["kind"] == kind)


def fact(claim: dict[str, Any], kind: str, **values: object) -> None:
    """Other values in a fact; the chain does not fit any more, if it is read so far."""
    entry = shown(claim, kind)
    entry["fact"] = verify_claim.canonical({**json.loads(entry["fact"]), **values}).decode()


def rebased(text: str, change: Callable[[bytes], bytes]) -> str:
    """A message in base64 with other bytes."""
    return base64.b64encode(change(base64.b64decode(text))).decode()


def test_the_claim_itself_is_verified(place: Place, tmp_path: Path) -> None:
    printed, why = outcome(tmp_path, json.dumps(place.claim()))
    assert (printed.splitlines()[0], why) == ("verified", "")
    spaced = json.dumps(dict(reversed(place.claim().items())), indent=8)  # a file that an editor formatted
    assert outcome(tmp_path, spaced)[1] == ""


# ---- the same claim, written otherwise -------------------------------------------------------------------------------


def spare_bits(text: str) -> str:
    """Base64 of the same bytes, by bits that say nothing."""
    data = base64.b64decode(text)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    body = text.rstrip("=")
    last = letters[letters.index(body[-1]) + 1]
    other = body[:-1] + last + "=" * (len(text) - len(body))
    assert base64.b64decode(other) == data
    return other


TEXTS: dict[str, Callable[[str], str | bytes]] = {
    "a name twice, the second counts": lambda text: text.replace('"version"', '"version": 2, "version"', 1),
    "a name twice, the first counts": lambda text: text.replace("{", '{"lease": "0", ', 1),
    "a name twice in an entry": lambda text: text.replace('"salt"', '"salt": "00", "salt"', 1),
    "bytes behind the end": lambda text: text + "\0",
    "a second claim behind it": lambda text: text + text,
    "a mark of the byte order": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "other letters": lambda text: text.encode("utf-16"),
    "no letters": lambda text: text.encode() + b"\xff",
    "a version that is a fraction": lambda text: text.replace('"version": 1', '"version": 1.0'),
    "a version that is true": lambda text: text.replace('"version": 1', '"version": true'),
    "a version that is no number": lambda text: text.replace('"version": 1', '"version": NaN'),
    "a version of 5,000 digits": lambda text: text.replace('"version": 1', f'"version": {"1" * 5000}'),
    "a key with a look-alike": lambda text: text.replace('"lease"', '"le\\u0430se"', 1),
    "cut short": lambda text: text[:-40],
    "nothing": lambda _: b"\n",
    "a number": lambda _: "1",
    "null": lambda _: "null",
    "a list": lambda _: "[]",
    "an object": lambda _: "{}",
    "deep lists": lambda _: "[" * 200_000 + "]" * 200_000,
    "deep objects": lambda _: '{"a":' * 200_000 + "1" + "}" * 200_000,
    "deep entries": lambda text: text.replace('"entries": [', '"entries": [' + "[" * 100_000 + "]" * 100_000 + ", ", 1),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_that_is_written_otherwise_is_refused(place: Place, tmp_path: Path, name: str) -> None:
    text = json.dumps(place.claim())
    altered = TEXTS[name](text)
    assert altered != text
    refusal(tmp_path, altered)


def test_a_file_without_end_is_refused_after_32_mebibytes(place: Place, tmp_path: Path) -> None:
    refusal(tmp_path, json.dumps(place.claim()) + " " * (1 << 25) + "x" * 10 + '"')
    (tmp_path / "keys").write_text(json.dumps(trusted()))
    _, why = ended_with("/dev/zero", str(tmp_path / "keys"))
    assert why.startswith("refused: ")


@pytest.mark.parametrize("words", [(), ("claim",), ("claim", "keys", "more")])
def test_other_words_print_how_it_is_called(words: tuple[str, ...]) -> None:
    printed, why = ended_with(*words)
    assert not printed
    assert "verify_claim.py CLAIM KEYS" in why


def longer(data: bytes) -> bytes:
    """A signed message whose body has a longer head than it needs."""
    head = 84
    assert data[head] in (0xC4, 0xC5)
    if data[head] == 0xC4:
        return data[:head] + b"\xc5\0" + data[head + 1 :]
    return data[:head] + b"\xc6\0\0" + data[head + 1 :]


# Without the tenant's key: nobody can write the signed file otherwise.
STRANGERS: dict[str, Alter] = {
    "signature: spare bits": lambda claim: claim.update(signed=spare_bits(claim["signed"])),
    "signature: a longer head": lambda claim: claim.update(signed=rebased(claim["signed"], longer)),
    "signature: s + order": lambda claim: claim.update(signed=rebased(claim["signed"], plus_order)),
    "signature: bytes behind": lambda claim: claim.update(signed=rebased(claim["signed"], lambda data: data + b"\0")),
    "signature: line ends": lambda claim: claim.update(signed=claim["signed"] + "\n"),
    "signature: none": lambda claim: claim.pop("signed"),
    "signature: of zeros": lambda claim: claim.update(
        signed=rebased(claim["signed"], lambda data: data[:20] + bytes(64) + data[84:])
    ),
}


def plus_order(data: bytes) -> bytes:
    """The second s that fits the equation of Ed25519; RFC 8032 takes the lesser one only."""
    at = 20 + 32
    s = int.from_bytes(data[at : at + 32], "little") + 2**252 + 27742317777372353535851937790883648493
    return data[:at] + s.to_bytes(32, "little") + data[at + 32 :]


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_cannot_write_it_otherwise(place: Place, tmp_path: Path, name: str) -> None:
    claim = place.claim()
    STRANGERS[name](claim)
    refusal(tmp_path, json.dumps(claim))


# ---- signed again by the tenant --------------------------------------------------------------------------------------


def moved(claim: dict[str, Any], name: str) -> None:
    claim[name].reverse()


def shifted(claim: dict[str, Any]) -> None:
    """The same bytes are hashed, with a salt that is a byte shorter."""
    entry = shown(claim, "attempt")
    entry["salt"], entry["fact"] = entry["salt"][:-2], chr(int(entry["salt"][-2:], 16) % 128) + entry["fact"]


def redacted(claim: dict[str, Any]) -> None:
    for at, entry in enumerate(claim["entries"]):
        if isinstance(entry, dict):
            parts = bytes.fromhex(entry["salt"]), entry["fact"].encode()
            claim["entries"][at] = verify_claim.sha256(b"pharoah/claim-entry/1\0", *parts).hex()


def swapped(claim: dict[str, Any]) -> None:
    """Salts of two entries that are shown."""
    one, other = shown(claim, "attempt"), shown(claim, "hint")
    one["salt"], other["salt"] = other["salt"], one["salt"]


def uncovered(claim: dict[str, Any]) -> None:
    """A commitment in the place of an entry that is shown, and the entry in the place of another."""
    at = claim["entries"].index(shown(claim, "attempt"))
    other = next(at for at, entry in enumerate(claim["entries"]) if isinstance(entry, str))
    claim["entries"][at], claim["entries"][other] = claim["entries"][other], claim["entries"][at]


def fact_text(change: Callable[[str], str]) -> Alter:
    def alter(claim: dict[str, Any]) -> None:
        entry = shown(claim, "attempt")
        entry["fact"] = change(entry["fact"])

    return alter


def each_anchor(change: Callable[[Any], Any]) -> Alter:
    return lambda claim: claim.update(anchors=[change(one) for one in claim["anchors"]])


TENANTS: dict[str, Alter] = {
    "a field more": lambda claim: claim.update(note="paid"),
    "a field less": lambda claim: claim.pop("anchors"),
    "another version": lambda claim: claim.update(version=2),
    "a version that is true": lambda claim: claim.update(version=True),
    "entries: none": lambda claim: claim.update(entries=[]),
    "entries: an object": lambda claim: claim.update(entries={}),
    "entries: a text": lambda claim: claim.update(entries="00" * 32),
    "entries: reversed": lambda claim: moved(claim, "entries"),
    "entries: all redacted": redacted,
    "entries: one swapped with a commitment": uncovered,
    "entries: salts swapped": swapped,
    "entries: one twice": lambda claim: claim["entries"].append(shown(claim, "attempt")),
    "entries: cut short": lambda claim: claim["entries"].pop(),
    "entries: a number": lambda claim: claim["entries"].append(5),
    "entries: a number as fact": lambda claim: claim["entries"].append({"salt": "00" * 32, "fact": 5}),
    "entries: null": lambda claim: claim["entries"].append(None),
    "entry: a field more": lambda claim: shown(claim, "attempt").update(note=""),
    "entry: salt in capitals": lambda claim: shown(claim, "attempt").update(
        salt=shown(claim, "attempt")["salt"].upper() + " "
    ),
    "entry: commitments in capitals": lambda claim: claim.update(
        entries=[one.upper() if isinstance(one, str) else one for one in claim["entries"]]
    ),
    "entry: a short salt": shifted,
    "fact: spaces": fact_text(lambda text: text.replace(":", ": ")),
    "fact: a name twice": fact_text(lambda text: text.replace("{", '{"rank":0,', 1)),
    "fact: bytes behind": fact_text(lambda text: text + " "),
    "fact: infinite": fact_text(lambda text: text.replace('"rank":3', '"rank":Infinity')),
    "fact: a list": fact_text(lambda _: "[]"),
    "fact: deep": fact_text(lambda _: "[" * 100_000),
    "fact: half a letter": fact_text(lambda text: text + "\ud800"),
    "fact: another reason": lambda claim: fact(claim, "attempt", reason="nvlink_error"),
    "anchors: none": lambda claim: claim.update(anchors=[]),
    "anchors: reversed": lambda claim: moved(claim, "anchors"),
    "anchors: the first left out": lambda claim: claim["anchors"].pop(0),
    "anchors: one twice": lambda claim: claim["anchors"].append(claim["anchors"][-1]),
    "anchors: a length that is a fraction": each_anchor(lambda one: [float(one[0]), one[1]]),
    "anchors: a length that is true": each_anchor(lambda one: [bool(one[0]), one[1]]),
    "anchors: a length of a text": each_anchor(lambda one: [str(one[0]), one[1]]),
    "anchors: a length from the end": each_anchor(lambda one: [one[0] - 100, one[1]]),
    "anchors: a length without end": each_anchor(lambda one: [10**4000, one[1]]),
    "anchors: one field more": each_anchor(lambda one: [*one, 0]),
    "anchors: a longer head": each_anchor(lambda one: [one[0], rebased(one[1], longer)]),
    "anchors: cut short": each_anchor(lambda one: [one[0], rebased(one[1], lambda data: data[:-1])]),
    "anchors: deep": each_anchor(lambda one: [one[0], base64.b64encode(b"\x91" * 100_000).decode()]),
    "anchors: a list without end": each_anchor(
        lambda one: [one[0], base64.b64encode(b"\xdd\xff\xff\xff\xff").decode()]
    ),
    "tenant: in capitals": lambda claim: claim.update(tenant=claim["tenant"].upper()),
    "tenant: with spaces": lambda claim: claim.update(tenant=" " + claim["tenant"]),
    "tenant: a short key": lambda claim: claim.update(tenant=claim["tenant"][:-2]),
    "lease: in capitals": lambda claim: claim.update(lease=claim["lease"].upper() + "A"),
    "lease: another": lambda claim: claim.update(lease=str(OTHER)),
    "lease: a list": lambda claim: claim.update(lease=[claim["lease"]]),
    "lease: null": lambda claim: claim.update(lease=None),
}


@pytest.mark.parametrize("name", TENANTS)
def test_the_tenant_cannot_write_it_otherwise(place: Place, tmp_path: Path, name: str) -> None:
    claim = json.loads(json.dumps(place.claim()))
    TENANTS[name](claim)
    refusal(tmp_path, json.dumps(claim))
    if claim.keys() >= {"signed", "tenant"}:
        refusal(tmp_path, json.dumps(resigned(place, claim)))


def test_two_claims_do_not_make_one(place: Place, tmp_path: Path) -> None:
    one, other = (json.loads(json.dumps(place.claim(lease))) for lease in (OWN, OTHER))
    for name in ("entries", "lease", "signed"):
        refusal(tmp_path, json.dumps({**one, name: other[name]}))
    both = [
        first if isinstance(first, dict) else second
        for first, second in zip(one["entries"], other["entries"], strict=True)
    ]
    assert "about another lease" in refusal(tmp_path, json.dumps(resigned(place, {**one, "entries": both})))


def test_a_key_of_small_order_signs_for_nobody(place: Place, tmp_path: Path) -> None:
    """Under it one signature fits every message; but no provider granted a lease to its tenant."""
    weak, claim = b"\1" + bytes(31), place.claim()
    body = {name: value for name, value in claim.items() if name != "signed"} | {"tenant": weak.hex()}
    tenant = verify_claim.sha256(b"pharoah/tenant-id/1\0", weak)[:16]
    message = place.key.sign(ClaimDigest(tenant, Digest(verify_claim.sha256(verify_claim.canonical(body)))))  # type: ignore[arg-type]
    signed = message[:20] + weak + bytes(32) + message[84:]
    refusal(tmp_path, json.dumps({**body, "signed": base64.b64encode(signed).decode()}))


def test_the_word_of_a_tenant_does_not_pass_for_the_providers(place: Place, tmp_path: Path) -> None:
    """Whatever it names its values, and whatever letters are in them, each is on the one line that says who says it."""
    forged = {"kind": "job", "lease": str(OWN), HINT: "\n" + HINT, "job": "\x1b[2J\u202e\ud800"}
    body = verify_claim.canonical(forged)
    statement = "INSERT INTO claim_entries (subject, lease, salt, body) VALUES ('forged', ?, ?, ?)"
    place.connection.execute(statement, (str(OWN), bytes(32), body))
    place.anchor()
    printed, why = outcome(tmp_path, json.dumps(place.claim(everything=True)))
    assert why == ""
    (line,) = (line for line in printed.splitlines() if "hint 7" in line)
    assert ": the tenant says: " in line
    assert printed.isascii()
    unknown = verify_claim.canonical({"kind": "the provider's hint 7", "lease": str(OWN)})
    place.connection.execute(statement, (str(OWN), bytes(32), unknown))
    place.anchor()
    refusal(tmp_path, json.dumps(place.claim(everything=True)))


# ---- keys ------------------------------------------------------------------------------------------------------------

KEYS: dict[str, Alter] = {
    "no quorum": lambda keys: keys.pop("quorum"),
    "a quorum of 0": lambda keys: keys.update(quorum=0),
    "a quorum below 0": lambda keys: keys.update(quorum=-1),
    "a quorum that is a fraction": lambda keys: keys.update(quorum=1.5),
    "a quorum in letters": lambda keys: keys.update(quorum="2"),
    "a quorum beyond all": lambda keys: keys.update(quorum=99),
    "no trustees": lambda keys: keys.update(trustees=[]),
    "trustees of others": lambda keys: keys.update(trustees=[[seat, key[::-1]] for seat, key in keys["trustees"]]),
    "one trustee in each seat": lambda keys: keys.update(
        trustees=[[seat, keys["trustees"][0][1]] for seat, _ in keys["trustees"]]
    ),
    "another provider": lambda keys: keys.update(provider="01" * 32),
    "a provider in capitals": lambda keys: keys.update(provider=keys["provider"].upper() + " "),
    "a provider that is a number": lambda keys: keys.update(provider=5),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_that_were_altered_verify_nothing(place: Place, tmp_path: Path, name: str) -> None:
    keys = json.loads(json.dumps(trusted()))
    KEYS[name](keys)
    refusal(tmp_path, json.dumps(place.claim()), json.dumps(keys))


@pytest.mark.parametrize("keys", ["[]", "{}", "1", '{"quorum": 1, "quorum": 1}', b"\xff"])
def test_what_are_no_keys_verify_nothing(place: Place, tmp_path: Path, keys: str | bytes) -> None:
    refusal(tmp_path, json.dumps(place.claim()), keys)
