"""Vectors of endorsed sets: those of a quorum are taken, and what only looks like one is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from crypto import errors
from crypto.codec import decode, encode
from crypto.ids import VerifyKey
from crypto.signing import open_signed
from federation.protocol import directory
from federation.protocol.directory import Chain
from federation.protocol.endorsed import EndedRounds, EndorsedSet, check_ended, uncounted_since
from federation.protocol.plan import Plan
from federation.protocol.round_messages import UnmaskRequest
from tests.support.changing import replace

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "endorsed.json").read_text())
PROVIDER = VerifyKey(bytes.fromhex(VECTORS["provider"]))
PLAN = decode(Plan, bytes.fromhex(VECTORS["plan"]))


def checked(ended: str) -> EndorsedSet:
    (one,) = decode(EndedRounds, bytes.fromhex(ended)).rounds
    return check_ended(one, Chain.begin(bytes.fromhex(VECTORS["founding"]), PROVIDER))


@pytest.mark.parametrize("good", VECTORS["good"], ids=lambda good: str(good["comment"]))
def test_a_set_is_that_of_its_request_and_a_quorum_stands_by_it(good: dict[str, Any]) -> None:
    asked = open_signed(UnmaskRequest, bytes.fromhex(good["request"]), PROVIDER)
    told = EndorsedSet.of(PLAN, asked)
    assert open_signed(Plan, asked.plan, PROVIDER) == PLAN
    assert encode(told).hex() == good["set"]
    assert told.name.hex() == good["name"]
    assert [tenant.hex() for tenant in told.tenants] == good["tenants"]
    assert checked(good["ended"]) == told


def test_who_is_in_no_set_of_the_window_before_counts_from_there() -> None:
    full, empty = (checked(good["ended"]) for good in VECTORS["good"])
    start, end = PLAN.windows[2:4]
    after = replace(PLAN, start_hour=start, end_hour=end)
    (member, *_) = full.tenants
    assert uncounted_since(after, [full], member) == start
    assert uncounted_since(after, [empty], member) == PLAN.start_hour


@pytest.mark.parametrize("bad", VECTORS["bad"], ids=lambda bad: str(bad["comment"]))
def test_what_is_no_set_of_a_quorum_is_refused_by_name(bad: dict[str, Any]) -> None:
    known: type[errors.PharoahError] = getattr(errors, bad["error"], None) or getattr(directory, bad["error"])
    with pytest.raises(known) as caught:
        checked(bad["ended"])
    assert type(caught.value) is known
