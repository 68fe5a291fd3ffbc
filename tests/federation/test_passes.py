"""Passes by themselves: the published vectors, what must be refused, and what messages tell by their lengths."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crypto.codec import decode, encode
from crypto.errors import DecodeError, PassRefused, PeerFault
from crypto.ids import EncodedElement, Token
from crypto.ristretto import Element, Scalar, mul, mul_base
from crypto.signing import SigningKey
from crypto.voprf import blind, evaluate, finalize, output_of
from federation.protocol import passes
from federation.protocol.bundle import MismatchEntry
from federation.protocol.check import Checker, check_page
from federation.protocol.directory import Chain, Directory, Fork, TrustChanged, next_entry, pass_keys
from federation.protocol.pass_messages import (
    BATCH,
    PAGE_UNIT,
    AnonymousCheck,
    ContextPage,
    Pass,
    PassKeys,
    PassRequest,
    padded,
    padded_length,
    page_of,
    unpadded,
)
from federation.protocol.passes import (
    challenge,
    check_pass,
    issue,
    order,
    passes_of,
    week_key,
    week_of,
)
from provider_server.rounds.online.bundle_cache import Pages
from simulation.run.online_service import CONTEXTS, WORKLOADS, a_bundle, labels
from tests.support.federations import NEWCOMER, Grounds

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "privacy_pass_ristretto255.json").read_text())["vectors"]
WEEK = 2965
PROVIDER = SigningKey(bytes(range(32))).public
SEED = bytes(32)
KEY = week_key(SEED, WEEK)


def bought() -> tuple[Pass, ...]:
    asked = order(PROVIDER, WEEK, KEY.public, os.urandom)
    return passes_of(asked, issue(KEY.secret, asked.elements, os.urandom))


@pytest.mark.parametrize("vector", VECTORS)
def test_a_pass_has_the_bytes_of_the_published_token(vector: dict[str, str]) -> None:
    public, secret = bytes.fromhex(vector["public_key"]), Scalar.decode(bytes.fromhex(vector["secret_key"]))
    head = passes._head(bytes.fromhex(vector["nonce"]), bytes.fromhex(vector["challenge"]), Element.decode(public))
    blinding = blind([head], lambda _: bytes.fromhex(vector["blind"]).ljust(64, b"\0"))
    assert blinding.elements[0].encoded == bytes.fromhex(vector["token_request"])[3:]
    (output,) = finalize(blinding, evaluate(secret, blinding.elements))
    assert Pass(head + output) == bytes.fromhex(vector["token"])
    assert output_of(secret, head) == output


def test_the_challenge_is_a_struct_of_rfc_9577() -> None:
    of = challenge(PROVIDER, WEEK)
    issuer = PROVIDER.hex().encode()
    assert of[:4] == b"\x00\x05\x00\x40"
    assert of[4:68] == issuer
    assert of[68] == 32
    assert of[101:103] == b"\x00\x0d"
    assert of[103:] == b"pharoah-check"


def test_every_pass_of_a_batch_is_good_and_names_itself_otherwise() -> None:
    of_one = bought()
    nonces = {check_pass(each, PROVIDER, WEEK, KEY) for each in of_one}
    assert len(of_one) == len(nonces) == BATCH


def test_a_pass_of_another_week_key_or_provider_is_refused() -> None:
    shown = bought()[0]
    other = SigningKey(bytes(32)).public
    for provider, week, key in (
        (PROVIDER, WEEK + 1, week_key(SEED, WEEK + 1)),
        (PROVIDER, WEEK + 1, KEY),
        (PROVIDER, WEEK, week_key(b"\1" * 32, WEEK)),
        (other, WEEK, KEY),
    ):
        with pytest.raises(PassRefused, match="another week, key or provider"):
            check_pass(shown, provider, week, key)


def test_a_pass_with_one_bit_turned_is_none() -> None:
    shown = bought()[0]
    for at in range(len(shown)):
        with pytest.raises(PassRefused):
            check_pass(Pass(shown[:at] + bytes([shown[at] ^ 1]) + shown[at + 1 :]), PROVIDER, WEEK, KEY)


def test_passes_under_another_key_are_not_taken() -> None:
    """A provider with a key for each tenant would know whose pass it sees; the proof is under the key of all."""
    asked = order(PROVIDER, WEEK, KEY.public, os.urandom)
    with pytest.raises(PeerFault, match="proof does not show"):
        passes_of(asked, issue(week_key(b"\1" * 32, WEEK).secret, asked.elements, os.urandom))


def test_one_element_under_another_key_spoils_the_batch() -> None:
    """A tenant marked by a single pass is refused as well as one marked by all."""
    asked = order(PROVIDER, WEEK, KEY.public, os.urandom)
    said = issue(KEY.secret, asked.elements, os.urandom)
    marked = (mul(week_key(b"\1" * 32, WEEK).secret, asked.elements[0]), *said.elements[1:])
    with pytest.raises(PeerFault, match="proof does not show"):
        passes_of(asked, replace(said, elements=marked))


def test_only_whole_batches_are_issued_and_decoded() -> None:
    asked = order(PROVIDER, WEEK, KEY.public, os.urandom)
    with pytest.raises(ValueError, match="32 elements"):
        issue(KEY.secret, asked.elements[1:], os.urandom)
    elements = tuple(EncodedElement(each.encoded) for each in asked.elements)
    for wrong in (elements[1:], (*elements, elements[0])):
        with pytest.raises(DecodeError):
            decode(PassRequest, encode(PassRequest(bytes(64), WEEK, wrong)))


def test_a_pass_shows_in_no_repr() -> None:
    shown = bought()[0]
    question = AnonymousCheck(WEEK, shown, Token(bytes(16)), Token(bytes(16)))
    for text in (repr(shown), str(shown), f"{shown}", repr(question), repr([shown])):
        assert shown.hex()[4:20] not in text
        assert repr(bytes(shown))[2:20] not in text


# ---- what a length tells ---------------------------------------------------------------------------------------------


def test_questions_of_a_week_have_one_length() -> None:
    questions = [
        encode(AnonymousCheck(WEEK, each, Token(os.urandom(16)), Token(os.urandom(16)))) for each in bought()[:8]
    ]
    assert len({len(question) for question in questions}) == 1


def test_pages_of_a_bundle_have_one_length_whatever_is_asked() -> None:
    bundle = a_bundle()
    few = tuple(entry for number, entry in enumerate(bundle.mismatches) if number % 3 or entry.judgement == "worse")
    pages = Pages(type(bundle)(1, 0, 168, (), few, bundle.hazards[:7], None))
    known = [(entry.context, level.context_level) for entry in few[:40] for level in bundle.hazards[::5]]
    asked = [*known, (Token(os.urandom(16)), Token(os.urandom(16))), (few[0].context, Token(os.urandom(16)))]
    lengths = {len(pages.page(context, level)) for context, level in asked}
    assert len(lengths) == 1
    assert lengths.pop() % PAGE_UNIT == 0


def test_a_page_gives_the_verdict_of_the_whole_bundle() -> None:
    whole = a_bundle()
    # Workloads of every third row have rows elsewhere and none here; their coarser rows must not stand in for them.
    rows = tuple(entry for number, entry in enumerate(whole.mismatches) if number % 3)
    coarse = tuple(
        type(rows[0])(Token(bytes.fromhex(labels(4 * n, 0)["archetype"])), *_rest(rows[n])) for n in range(10)
    )
    bundle = type(whole)(1, 0, 168, (), (*rows, *coarse), whole.hazards, None)
    checker, pages = Checker(bundle), Pages(bundle)
    for workload in range(WORKLOADS + 4):
        for context in range(CONTEXTS):
            of = labels(workload, context)
            context_token, level = (Token(bytes.fromhex(of[name])) for name in ("context", "context_level"))
            assert check_page(unpadded(pages.page(context_token, level)), of) == checker.check(of)


def _rest(entry: MismatchEntry) -> tuple[Any, ...]:
    return msgspec.structs.astuple(entry)[1:]


def test_a_page_that_is_not_padded_as_agreed_is_refused() -> None:
    bundle = a_bundle()
    page = page_of(bundle, bundle.mismatches[0].context, bundle.hazards[0].context_level)
    good = padded(page, padded_length(len(encode(page))))
    assert unpadded(good) == page
    for bad in (b"", good[:-1], good + b"\0", good[:-1] + b"\1", bytes(PAGE_UNIT), good[:4] + b"\xff" + good[5:]):
        with pytest.raises(DecodeError):
            unpadded(bad)
    with pytest.raises(ValueError, match="longer"):
        padded(page, PAGE_UNIT)


def test_a_page_about_two_contexts_is_none() -> None:
    rows = a_bundle().mismatches[:2]
    assert rows[0].context != rows[1].context
    with pytest.raises(DecodeError, match="ContextPage"):
        decode(ContextPage, _forged(rows))


def _forged(rows: tuple[object, ...]) -> bytes:
    page = ("pharoah/context-page/1", 1, rows, (), ())
    return msgspec.msgpack.encode(page, enc_hook=bytes)


# ---- one key for everybody -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Chain, SigningKey]:
    provider = Grounds.founded(tmp_path_factory.mktemp("passes"), 3).federation.provider
    return provider.members.chain, provider._signing_key


def keys(first: int, count: int, seed: bytes = SEED) -> list[Element]:
    return [week_key(seed, week).public for week in range(first, first + count)]


def with_keys(of: tuple[Chain, SigningKey], first: int, listed: list[Element], batches: int = 2) -> Chain:
    chain, key = of
    return chain.extended([key.sign(pass_keys(chain.directory, first, batches, listed))])


def test_the_directory_lists_a_key_for_each_week(chain: tuple[Chain, SigningKey]) -> None:
    longer = with_keys(chain, WEEK, keys(WEEK, 3))
    assert {week: (of.key, of.batches) for week, of in longer.directory.passes.items()} == {
        WEEK + number: (week_key(SEED, WEEK + number).public, 2) for number in range(3)
    }
    assert longer.directory.head != chain[0].directory.head  # every plan names the head: all see one list or no round


def test_members_come_and_the_keys_stay(chain: tuple[Chain, SigningKey]) -> None:
    listed = with_keys(chain, WEEK, keys(WEEK, 2))
    later = listed.extended([chain[1].sign(next_entry(listed.directory, joined=[NEWCOMER]))])
    assert later.directory.passes == listed.directory.passes
    assert later.directory.number == listed.directory.number + 1


def test_the_key_of_a_week_never_changes(chain: tuple[Chain, SigningKey]) -> None:
    listed = with_keys(chain, WEEK, keys(WEEK, 3)), chain[1]
    for first in (WEEK - 1, WEEK, WEEK + 2):
        with pytest.raises(TrustChanged, match="changes the key of passes"):
            with_keys(listed, first, keys(first, 1, b"\1" * 32))
    assert with_keys(listed, WEEK + 3, keys(WEEK + 3, 1)).directory.passes.keys() == set(range(WEEK, WEEK + 4))


def test_keys_stand_in_their_place_and_are_elements(chain: tuple[Chain, SigningKey]) -> None:
    before, key = chain
    (element,) = keys(WEEK, 1)
    entry = pass_keys(before.directory, WEEK, 2, [element])
    encoded = EncodedElement(element.encoded)
    forked = PassKeys(entry.number + 1, entry.previous, WEEK, 2, (encoded,))
    with pytest.raises(Fork):
        before.extended([key.sign(forked)])
    with pytest.raises(DecodeError):
        before.extended([key.sign(PassKeys(entry.number, entry.previous, WEEK, 2, (EncodedElement(bytes(32)),)))])
    stranger = SigningKey(b"\2" * 32)
    with pytest.raises(PeerFault):
        before.extended([stranger.sign(entry)])
    with pytest.raises(ValueError, match="key of its own"):
        pass_keys(before.directory, WEEK, 2, [element, element])


def test_a_directory_without_keys_has_none(chain: tuple[Chain, SigningKey]) -> None:
    directory: Directory = chain[0].directory
    assert not directory.passes


def test_weeks_are_counted_from_1970() -> None:
    assert week_of(0.0) == 0
    assert week_of(7 * 86_400 - 0.1) == 0
    assert week_of(7 * 86_400) == 1
    assert mul_base(KEY.secret) == KEY.public
