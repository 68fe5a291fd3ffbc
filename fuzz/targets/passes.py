"""Anonymous checks: what a provider takes of strangers; what a tenant takes of its answer."""

import os
from collections.abc import Iterator
from contextlib import suppress

from crypto.codec import decode, encode
from crypto.errors import DecodeError, PassRefused
from crypto.ids import Token
from federation.protocol import pass_messages, passes
from fuzz.targets.target import require, target
from fuzz.targets.wire import KEY, some_messages


def some_pages() -> Iterator[bytes]:
    """One with a row, one with nothing."""
    for message in some_messages():
        if isinstance(message, pass_messages.ContextPage):
            yield pass_messages.padded(message, pass_messages.PAGE_UNIT)
    yield pass_messages.padded(pass_messages.ContextPage(1, (), (), ()), 2 * pass_messages.PAGE_UNIT)


@target("page", "any bytes are a page, padded as agreed, or DecodeError", some_pages)
def check_page(data: bytes) -> None:
    """As a tenant takes the answer to an anonymous check."""
    with suppress(DecodeError):
        page = pass_messages.unpadded(data)
        require("one form", holds=pass_messages.padded(page, len(data)) == data)


def some_passes() -> Iterator[bytes]:
    """A good one, and one that nobody issued."""
    key = passes.week_key(bytes(32), 2965)
    asked = passes.order(KEY.public, 2965, key.public, os.urandom)
    yield passes.passes_of(asked, passes.issue(key.secret, asked.elements, os.urandom))[0]
    yield asked.blinding.inputs[0] + bytes(64)


@target("pass", "any bytes are a pass that the issuer knows, or DecodeError, or PassRefused", some_passes)
def check_pass(data: bytes) -> None:
    """As the provider takes it, in a question."""
    key, token = passes.week_key(bytes(32), 2965), Token(bytes(16))
    with suppress(DecodeError, PassRefused, ValueError):
        question = encode(pass_messages.AnonymousCheck(2965, pass_messages.Pass(data), token, token))
        shown = decode(pass_messages.AnonymousCheck, question).shown
        nonce = passes.check_pass(shown, KEY.public, 2965, key)
        require("its own nonce", holds=nonce == data[2:34] and len(data) == pass_messages.Pass.length)
