"""Trustees as a provider reaches them, for tests in which something happens on the way."""

from dataclasses import dataclass

from crypto.errors import Unreachable
from provider_server.rounds.week import MaskHolder


@dataclass
class Reached:
    """A trustee; a test's own one says what is different about it."""

    inner: MaskHolder

    @property
    def index(self) -> int:
        return self.inner.index

    def follow(self, update: bytes) -> bytes:
        return self.inner.follow(update)

    def endorse(self, request: bytes) -> bytes:
        return self.inner.endorse(request)

    def unmask(self, call: bytes) -> bytes:
        return self.inner.unmask(call)


class Gone(Reached):
    """It endorses, and is away when it is asked for masks."""

    def unmask(self, call: bytes) -> bytes:
        raise Unreachable(f"trustee {self.index} is away")
