"""The newest bundle in memory: as it is handed out, and laid out so that a check is a few look-ups.

A bundle is laid out aside and takes the place of the one before in one step, so that whoever has begun with one ends
with it. Answers are encoded once and kept, so many of them and no more.
"""

import logging
from collections.abc import Callable, Mapping
from threading import Lock

from msgspec.structs import replace

from crypto.codec import digest, encode
from crypto.errors import NothingPublished
from crypto.ids import Token, VerifyKey
from crypto.signing import open_signed
from federation.protocol.bundle import Bundle, Catalogue
from federation.protocol.check import Checker
from federation.protocol.pass_messages import padded, padded_length, page_of
from federation.protocol.service_messages import CheckAnswer
from federation.protocol.versions import OLDEST, asked_in

logger = logging.getLogger(__name__)

_NOWHERE = Token(bytes(Token.length))  # the token of no context
ANSWERS_KEPT = 16_384  # some hundred bytes each


class Published:
    """A bundle as it is handed out and laid out for checks."""

    def __init__(self, signed: bytes, bundle: Bundle) -> None:
        self.signed = signed
        self.etag = digest(signed)
        self.catalogue = encode(Catalogue(tuple(sorted(bundle.catalogue, key=lambda entry: entry.name))), OLDEST)
        self._checker = Checker(bundle)
        self._answers: dict[tuple[int, int, int], bytes] = {}
        self._pages = Pages(bundle)

    @property
    def number(self) -> int:
        """The number of the bundle."""
        return self._checker.bundle.number

    def answer(self, labels: Mapping[str, str]) -> bytes:
        """An encoded CheckAnswer. Used on the loop alone."""
        found = self._checker.check(labels)
        # The first two are the bundle's own and live as long as it does.
        same = id(found.evidence), id(found.hazards), asked_in.get()
        answer = self._answers.get(same)
        if answer is None:
            said = CheckAnswer(self.number, int(found.verdict), found.evidence, found.hazards)
            answer = encode(said, asked_in.get())
            if len(self._answers) >= ANSWERS_KEPT:
                self._answers.clear()
            self._answers[same] = answer
        return answer

    def page(self, context: Token, level: Token) -> bytes:
        """A padded ContextPage. Used on the loop alone."""
        return self._pages.page(context, level)


class Pages:
    """What a bundle says of each context, in pages of one length."""

    def __init__(self, bundle: Bundle) -> None:
        nothing = page_of(bundle, _NOWHERE, _NOWHERE)
        contexts = {entry.context for entry in bundle.mismatches}
        levels = {entry.context_level for entry in bundle.hazards}
        self._nothing = nothing
        self._by_context = {context: page_of(bundle, context, _NOWHERE) for context in contexts}
        self._by_level = {level: page_of(bundle, _NOWHERE, level).hazards for level in levels}
        longest = max(len(encode(page, OLDEST)) for page in (nothing, *self._by_context.values()))
        hazards = max((len(encode(replace(nothing, hazards=h), OLDEST)) for h in self._by_level.values()), default=0)
        self._length = padded_length(longest + hazards)
        self._answers: dict[tuple[Token, Token], bytes] = {}

    def page(self, context: Token, level: Token) -> bytes:
        """The page of a context at a level; one without rows for a context that the bundle does not know."""
        known = context in self._by_context, level in self._by_level
        asked = context if known[0] else _NOWHERE, level if known[1] else _NOWHERE
        answer = self._answers.get(asked)
        if answer is None:
            page = self._by_context.get(context, self._nothing)
            answer = padded(replace(page, hazards=self._by_level.get(level, ())), self._length)
            self._answers[asked] = answer
        return answer


class Shelf:
    """The newest bundle. `current` changes in one step, so that a check reads one bundle from beginning to end."""

    def __init__(self, newest: Callable[[], bytes | None], provider_key: Callable[[], VerifyKey]) -> None:
        self.current: Published | None = None
        self._newest = newest
        self._provider_key = provider_key
        self._one = Lock()

    def refresh(self) -> Published:
        """Looks for a newer bundle and lays it out; NothingPublished before the first."""
        with self._one:
            signed = self._newest()
            if signed is None:
                raise NothingPublished("no bundle has been published yet")
            if self.current is None or self.current.signed != signed:
                self.current = Published(signed, open_signed(Bundle, signed, self._provider_key()))
                logger.info("checks are answered from bundle %d", self.current.number)
            return self.current
