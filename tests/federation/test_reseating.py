"""Vectors of the entries by which trustees' seats change hands: good ones are followed, bad ones refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from crypto import errors, threshold
from crypto.codec import decode, is_labelled
from crypto.ids import VerifyKey
from crypto.signing import Signed
from federation.protocol import directory, seats
from federation.protocol.directory import Chain
from federation.protocol.seats import Reseating

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "reseating.json").read_text())
PROVIDER = VerifyKey(bytes.fromhex(VECTORS["provider"]))


def founded() -> Chain:
    return Chain.begin(bytes.fromhex(VECTORS["founding"]), PROVIDER)


def error_of(name: str) -> type[errors.PharoahError]:
    found: type[errors.PharoahError] = next(
        getattr(module, name) for module in (seats, directory, threshold, errors) if hasattr(module, name)
    )
    return found


@pytest.mark.parametrize("good", VECTORS["good"], ids=lambda good: str(good["comment"]))
def test_a_good_entry_is_followed_to_the_seats_that_it_says(good: dict[str, Any]) -> None:
    found = founded().extended(map(bytes.fromhex, good["entries"])).directory
    assert found.head.hex() == good["head"]
    assert [trustee.verify_key.hex() for trustee in found.trustees] == good["verify_keys"]
    assert [trustee.share_key.hex() for trustee in found.trustees] == good["share_keys"]
    assert [trustee.mask_key.hex() for trustee in found.trustees] == good["mask_keys"]
    assert [key.hex() for key in sorted(found.retired)] == good["retired"]


def test_the_good_ones_differ_as_they_say() -> None:
    before, renewed, succeeded, masked, later = VECTORS["good"]
    assert later["retired"] == renewed["retired"] == []
    assert renewed["verify_keys"] == masked["verify_keys"] == before["verify_keys"]
    assert not set(renewed["share_keys"]) & set(before["share_keys"])
    assert succeeded["verify_keys"][:-1] == before["verify_keys"][:-1]
    assert before["verify_keys"][-1] not in succeeded["verify_keys"]
    for changed in (succeeded, masked):
        assert changed["retired"] == before["mask_keys"][-1:]
        assert changed["mask_keys"][:-1] == before["mask_keys"][:-1]
        assert before["mask_keys"][-1] not in changed["mask_keys"]


@pytest.mark.parametrize("bad", VECTORS["bad"], ids=lambda bad: str(bad["comment"]))
def test_a_bad_entry_is_refused_and_changes_nothing(bad: dict[str, Any]) -> None:
    chain = founded().extended(map(bytes.fromhex, bad["after"]))
    entry = bytes.fromhex(bad["entry"])
    assert is_labelled(Reseating, decode(Signed, entry).body)
    with pytest.raises(error_of(bad["error"])) as caught:
        chain.extended([entry])
    assert type(caught.value).__name__ == bad["error"]
    assert caught.value.hint
    assert chain.entries == founded().extended(map(bytes.fromhex, bad["after"])).entries


def test_every_error_of_a_change_of_seats_is_among_the_bad_ones() -> None:
    named = {bad["error"] for bad in VECTORS["bad"]}
    assert named == {"BadSignature", "DecodeError", "Fork", "PeerFault", "ReseatingRefused", "TrusteeFault"}
