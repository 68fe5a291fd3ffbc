"""Claims: what is proven to whoever has three public keys and 200 lines, and each way of cheating that is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from crypto.codec import encode
from crypto.errors import BadSignature, OutOfOrder, PeerFault, Unreachable
from crypto.ids import Digest, LeaseId
from crypto.signing import reopened
from federation.protocol.anchors import Anchor, AnchorRequest
from pharoah_claims import packet, verify_claim
from plugins.claims.tests.failed_leases import (
    BEGAN_H,
    HOUR_S,
    OTHER,
    OWN,
    SECRET,
    WEEK_S,
    Place,
    end,
    fail,
    failed_leases,
    grant,
    hint,
    resigned,
    trusted,
)
from tenant_client.doctor.records.database import open_database
from tenant_client.program.anchors.chain import FactChain
from tests.support.factories import Cast, keys
from trustee.trustee import Trustee


def verified(claim: dict[str, Any]) -> list[str]:
    return verify_claim.verified(claim, dict(trusted()))


def refused(claim: dict[str, Any]) -> str:
    with pytest.raises(verify_claim.Refused) as why:
        verified(claim)
    return str(why.value)


@pytest.fixture
def place(cast: Cast, tmp_path: Path) -> Iterator[Place]:
    with failed_leases(cast, tmp_path) as there:
        yield there


# ---- what holds ------------------------------------------------------------------------------------------------------


def test_whoever_has_the_keys_learns_what_the_owner_chose_and_nothing_else(place: Place) -> None:
    claim = place.claim()
    said = "\n".join(verified(claim))
    for word in ("granted the lease", "hint 1", "memory", "reason gpu_lost", "rank 3", "seen by 2027-01-15 15:30 UTC"):
        assert word in said, (word, said)
    assert "the provider's word 3 of 2027-01-15 13:30 UTC: ended early, 2027-01-15 13:15 UTC" in said
    text = json.dumps(claim)
    for hidden in ("secret_model", "fallen off the bus", "was lost", str(OTHER), "rank3.log"):
        assert hidden not in text
    everything = "\n".join(verified(place.claim(everything=True)))
    assert "secret_model" in everything
    assert SECRET in everything


def test_a_line_is_shown_if_its_owner_adds_it(place: Place) -> None:
    entries = FactChain(place.connection, place.anchoring.tenant).entries()
    (line,) = (one.number for one in entries if SECRET.encode() in one.body and one.lease == str(OWN))
    said = "\n".join(verified(place.claim(add=(line,))))
    assert SECRET in said
    assert "NCCL WARN" not in said
    others = [
        one.number for one in FactChain(place.connection, place.anchoring.tenant).entries() if one.lease != str(OWN)
    ]
    for number in (others[0], 10_000):
        with pytest.raises(packet.NotOfThisLease, match=f"entry {number} is not about"):
            place.claim(add=(number,))


def test_the_published_verifier_needs_nothing_of_this_project(place: Place, tmp_path: Path) -> None:
    source = Path(verify_claim.__file__).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 200
    copy = tmp_path / "alone" / "verify_claim.py"
    copy.parent.mkdir()
    copy.write_text(source)
    (copy.parent / "claim.json").write_text(json.dumps(place.claim()))
    (copy.parent / "keys.json").write_text(json.dumps(trusted()))
    command = [sys.executable, "-I", "-X", "importtime", copy.name, "claim.json", "keys.json"]
    done = subprocess.run(command, cwd=copy.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "verified"), done.stderr[-400:]
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    theirs = imported - sys.stdlib_module_names - {"cryptography", "_cffi_backend", "imported package"}
    assert not {name for name in theirs if (Path(__file__).parents[2] / name).is_dir()}
    assert not theirs & {"msgspec", "msgpack", "grpc", "numpy"}
    (copy.parent / "claim.json").write_text("[]")
    done = subprocess.run(command, cwd=copy.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "refused: this is no claim" in done.stderr


def test_a_trustee_that_was_away_or_whose_answer_was_lost_goes_on_in_its_line(place: Place) -> None:
    class Deaf:
        """A trustee whose first answer does not arrive."""

        def __init__(self, trustee: Trustee) -> None:
            self.index, self._trustee, self._heard = trustee.index, trustee, False

        def anchor(self, request: bytes) -> bytes:
            answer = self._trustee.anchor(request)
            if not self._heard:
                self._heard = True
                raise Unreachable("it is away")
            return answer

    deaf = Deaf(place.trustees[0])
    place.clock.hour += 2.0
    assert place.anchoring.anchor([deaf], os.urandom) == 0
    fail(place, OWN, place.clock.hour)
    place.clock.hour += 2.0
    assert place.anchoring.anchor([deaf], os.urandom) == 1  # what was signed is heard first
    assert place.anchor() == len(place.trustees)
    assert verified(place.claim())


def test_a_week_is_due_after_a_week(place: Place) -> None:
    seen_s = place.clock.hour * HOUR_S
    assert not place.anchoring.is_due(seen_s + 0.99 * WEEK_S, WEEK_S)
    assert place.anchoring.is_due(seen_s + 1.01 * WEEK_S, WEEK_S)


# ---- what is refused -------------------------------------------------------------------------------------------------


def changed(value: Any) -> Iterator[Any]:
    """The value with one of its characters or numbers changed, each in turn (eight characters of a longer text)."""
    if isinstance(value, str):
        for at in range(0, len(value), max(1, len(value) // 8)):
            yield value[:at] + ("0" if value[at] != "0" else "1") + value[at + 1 :]
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from ({**value, name: other} for other in changed(inner))
    else:
        for at, inner in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in changed(inner))


def test_a_tampered_byte_is_refused(place: Place) -> None:
    """Wherever it is, and also by the tenant itself, who signs again what it changed."""
    place.connection.execute("DELETE FROM attempts")
    claim = place.claim()
    tried = 0
    said = verified(claim)
    for other in changed(claim):
        assert other != claim
        tried += 1
        with pytest.raises((verify_claim.Refused, ValueError, LookupError, TypeError)):
            verified(other)
        try:
            assert verified(resigned(place, other)) == said, "something else was proven"
        except (verify_claim.Refused, ValueError, LookupError, TypeError):
            continue
        assert (
            other["anchors"] != claim["anchors"] or other["signed"] != claim["signed"]
        )  # its owner left an anchor out
    assert tried > 250


def test_a_left_out_entry_is_refused(place: Place) -> None:
    claim = place.claim()
    for at in range(len(claim["entries"])):
        cut = claim["entries"][:at] + claim["entries"][at + 1 :]
        assert "was changed or cut short" in refused(resigned(place, {**claim, "entries": cut}))


def test_a_journal_rewritten_whole_is_refused(place: Place, cast: Cast) -> None:
    """Anchored anew it has no line from its first anchor on; with the old anchors it does not fit."""
    with ExitStack() as opened:
        fresh = opened.enter_context(closing(open_database(cast.root / "rewritten.db")))
        forged = Place(fresh, place.trustees, place.clock)
        fail(forged, OWN, BEGAN_H + 5.0)
        grant(forged, OWN)
        assert forged.anchor() == 0  # no trustee begins a second line
        assert "trustees have seen entry" in refused(forged.claim())
        entries = list(FactChain(fresh, forged.anchoring.tenant).entries())
        old = place.anchoring.messages()
        numbers = {entry.number for entry in entries}
        assert "was changed or cut short" in refused(forged.made(entries, numbers, anchors=old))
        assert "are left out" in refused(forged.made(entries, numbers, anchors=old[1:]))


def test_an_hour_that_is_made_up_is_refused(place: Place) -> None:
    """An attempt told a month later, and one that has not happened yet."""
    fail(place, OWN, BEGAN_H + 6.5)
    place.clock.hour = BEGAN_H + 30 * 24
    assert place.anchor() == len(place.trustees)
    assert "written down too late" in refused(place.claim())


def test_what_has_not_happened_yet_is_refused(place: Place) -> None:
    fail(place, OWN, place.clock.hour + 1000.0)
    assert place.anchor() == len(place.trustees)
    assert "seen before it happened" in refused(place.claim())


def test_what_too_few_trustees_have_seen_is_refused(place: Place) -> None:
    fail(place, OWN, place.clock.hour)
    quorum = trusted()["quorum"]
    place.anchor(*range(1, quorum))
    assert f"{quorum - 1} trustees have seen entry" in refused(place.claim())
    place.anchor(quorum)
    assert verified(place.claim())


def test_a_hint_of_another_lease_is_refused(place: Place) -> None:
    entries = list(FactChain(place.connection, place.anchoring.tenant).entries())
    others = {one.number for one in entries if one.lease == str(OTHER) and b'"hint"' in one.body}
    own = packet.chosen(entries, str(OWN), (), everything=False)
    assert "is about another lease" in refused(place.made(entries, own | others))
    fact = next(one for one in entries if one.number in others)
    renamed = fact.body.replace(str(OTHER).encode(), str(OWN).encode())
    statement = "INSERT INTO claim_entries (subject, lease, salt, body) VALUES ('hint', ?, ?, ?)"
    place.connection.execute(statement, (str(OWN), bytes(32), renamed))
    place.anchor()
    assert "a hint is about another lease" in refused(place.claim())


def test_a_hint_that_the_provider_did_not_sign_is_refused(place: Place) -> None:
    hint(place, OWN, 3, signer=place.key)
    place.anchor()
    assert "pharoah/hint/1 is not signed" in refused(place.claim())


def test_an_end_of_another_lease_is_refused(place: Place) -> None:
    fact = next(
        one
        for one in FactChain(place.connection, place.anchoring.tenant).entries()
        if one.lease == str(OTHER) and b'"end"' in one.body
    )
    renamed = fact.body.replace(str(OTHER).encode(), str(OWN).encode())
    statement = "INSERT INTO claim_entries (subject, lease, salt, body) VALUES ('end', ?, ?, ?)"
    place.connection.execute(statement, (str(OWN), bytes(32), renamed))
    place.anchor()
    assert "an end is about another lease" in refused(place.claim())


def test_an_end_that_the_provider_did_not_sign_is_refused(place: Place) -> None:
    end(place, OWN, 5, signer=place.key)
    place.anchor()
    assert "pharoah/lease-end/1 is not signed" in refused(place.claim())


def test_a_lease_of_somebody_else_is_refused(place: Place) -> None:
    foreign = LeaseId(b"\3" * 16)
    fail(place, foreign, place.clock.hour)
    place.anchor()
    assert "no grant shows" in refused(place.claim(foreign))
    grant(place, foreign, tenant=keys().tenant_id(1))
    place.anchor()
    assert "a grant is of another tenant" in refused(place.claim(foreign))


# ---- the trustee -----------------------------------------------------------------------------------------------------


def test_a_trustee_signs_one_line_and_the_same_answer_twice(place: Place) -> None:
    trustee = place.trustees[0]
    tenant = place.anchoring.tenant

    def ask(number: int, head: bytes) -> bytes:
        return trustee.anchor(place.key.sign(AnchorRequest(tenant, trustee.index, number, Digest(head))))

    place.clock.hour += 2.0
    third = ask(3, bytes(32))
    assert ask(3, bytes(32)) == third
    assert reopened(Anchor, third).at_s == int(place.clock.hour * HOUR_S)
    for number in (1, 3, 5):
        with pytest.raises(OutOfOrder, match="anchor 4 next"):
            ask(number, b"\1" * 32)
    with pytest.raises(PeerFault, match="for trustee 2"):
        trustee.anchor(place.key.sign(AnchorRequest(tenant, 2, 4, Digest(bytes(32)))))
    with pytest.raises(BadSignature):
        trustee.anchor(keys().tenants[1][0].sign(AnchorRequest(tenant, trustee.index, 4, Digest(bytes(32)))))


def test_an_anchor_tells_a_trustee_neither_how_much_nor_what_there_is(place: Place) -> None:
    """Requests about a journal of hundreds of facts and of none are the same but for 32 bytes of a hash."""
    requests = []

    class Listening:
        index = 1

        def anchor(self, request: bytes) -> bytes:
            requests.append(reopened(AnchorRequest, request))
            return place.trustees[0].anchor(request)

    for number in range(2):
        place.clock.hour += 2.0
        for _ in range(100 * number):
            fail(place, OWN, place.clock.hour)
        place.anchoring.anchor([Listening()], os.urandom)
    one, other = requests
    assert len(encode(one)) == len(encode(other))
    assert (one.tenant, one.trustee, one.number + 1) == (other.tenant, other.trustee, other.number)
