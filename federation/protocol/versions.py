"""The versions of the protocol that this program speaks and reads, and how two sides find out.

`PROTOCOL` counts up with a release that changes the shape of a message (`crypto.codec`). A program reads what its own
and the version before write, so neighbours work together, whichever side is upgraded first.

- Each question and each answer, on all three links, comes with a hello: the version that the sender speaks, and the
  oldest that it reads. Over gRPC it is in the metadata, over Flower before the blob. Sides that are two apart refuse
  with VersionsApart, which names who must upgrade.
- What is written for one reader has the shape that its hello asks for: an answer that of `asked_in`, a question that of
  `Peer.protocol`. A round has one version, which the plan names: the least that tenants and trustees were heard to
  speak, so all parties of a round sign and hash the same bytes.
- What is written for somebody who was not heard yet, or for everybody (entries of the directory, files that people
  carry), has the shape of `OLDEST`. So an earlier shape goes one version after nobody speaks it, and that of a message
  that is kept (plans, reports, entries of the directory) only when no store that is opened can hold it.

Why the hello is no way to weaken anything: see docs/privacy.md. It is not signed; TLS protects it, and a side that lies
can only ask for an older shape of what it may read anyway, or be refused.
"""

from contextvars import ContextVar
from threading import Lock
from typing import NamedTuple, Self

from crypto.errors import DecodeError, VersionsApart

PROTOCOL = 1
OLDEST = max(1, PROTOCOL - 1)
RELEASES = {1: "0.1.0"}  # the first release that spoke each version
HELLO_BYTES = 4
METADATA_KEY = "pharoah-hello-bin"

asked_in: ContextVar[int] = ContextVar("asked_in", default=OLDEST)  # what whoever asked now speaks


class Hello(NamedTuple):
    """The version that a side speaks, and the oldest that it reads."""

    speaks: int = PROTOCOL
    oldest: int = OLDEST

    def to_bytes(self) -> bytes:
        """As it is sent."""
        return self.speaks.to_bytes(2) + self.oldest.to_bytes(2)

    @classmethod
    def from_bytes(cls, sent: bytes) -> Self:
        """As it came; DecodeError for what is none."""
        hello = cls(int.from_bytes(sent[:2]), int.from_bytes(sent[2:]))
        if len(sent) != HELLO_BYTES or not 1 <= hello.oldest <= hello.speaks:
            raise DecodeError("not a valid hello: two versions of the protocol were expected")
        return hello

    def spoken_with(self, them: str, us: str) -> int:
        """The version to write to whoever sent this; VersionsApart where there is none."""
        if self.speaks < OLDEST:
            raise VersionsApart(
                f"{them} speaks protocol {self.speaks}, {us} reads {_reads(OLDEST, PROTOCOL)}",
                hint=f"upgrade {them} to pharoah {RELEASES[OLDEST]} or later",
            )
        if self.oldest > PROTOCOL:
            raise VersionsApart(
                f"{us} speaks protocol {PROTOCOL}, {them} reads {_reads(self.oldest, self.speaks)}",
                hint=f"upgrade {us} to a release of pharoah that speaks protocol {self.oldest} or later",
            )
        return min(PROTOCOL, self.speaks)


OWN = Hello()


def _reads(oldest: int, newest: int) -> str:
    return f"{oldest} to {newest}" if oldest < newest else str(newest)


def who_upgrades(theirs: int) -> str:
    """What a provider says of tenants that refuse since they speak `theirs`."""
    if theirs < PROTOCOL:
        needed = f"upgrade them to pharoah {RELEASES[OLDEST]} or later"
        return f"they speak protocol {theirs}, this provider reads {_reads(OLDEST, PROTOCOL)}: {needed}"
    return f"they speak protocol {theirs}, this provider {PROTOCOL}, which they do not read: upgrade this provider"


class Heard:
    """What the others were last heard to speak, by any name. Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_name: dict[object, int] = {}

    def note(self, name: object, protocol: int) -> None:
        """One of them speaks this now."""
        with self._lock:
            self._by_name[name] = protocol

    @property
    def least(self) -> int:
        """What all of them read."""
        with self._lock:
            return min([PROTOCOL, *self._by_name.values()])
