"""Has the trustees anchor the chain: each signs when it saw the head (`federation.protocol.anchors`).

- It is done again and again while a node serves, and when a claim is made.
- What is asked is stored before it leaves, and asked again until it is answered: so no anchor of a line is missed.
- A trustee that is away, or refuses, is logged and asked again later. A claim needs the lines of a quorum,
  of which two have an honest trustee in common (`Directory.quorum`).
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Protocol

from crypto.errors import PeerFault, PharoahError
from crypto.ids import Digest, VerifyKey
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey, name_of, open_signed, reopened, tenant_id
from federation.base.key_files import read_key
from federation.base.meanwhile import meanwhile
from federation.base.sqlite import Connection, reporting
from federation.protocol.anchors import NOTHING_BEFORE, Anchor, AnchorRequest
from federation.protocol.directory import Directory
from federation.protocol.versions import OLDEST
from tenant_client.doctor.records.database import open_database
from tenant_client.program.anchors.chain import FactChain
from tenant_client.rounds.home import joined
from tenant_client.rounds.network.connect import trustees_of

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 3600.0
LAST_ANCHOR_S = 5.0


class AnchoringTrustee(Protocol):
    """What anchoring needs of a trustee, in process or over a network."""

    @property
    def index(self) -> int:
        """Its number in the directory, from 1."""

    def anchor(self, request: bytes) -> bytes:
        """Signed AnchorRequest in, signed Anchor out."""


class Anchoring:
    """The anchors in a tenant's database, by the key of the trustee that signed them."""

    def __init__(self, connection: Connection, signing_key: SigningKey, directory: Directory) -> None:
        self._connection = connection
        self._signing_key = signing_key
        self.tenant = tenant_id(signing_key.public)
        self._directory = directory

    def is_due(self, now_s: float, every_s: float) -> bool:
        """Whether a trustee has not anchored the chain for so long."""
        newest = [self._newest(trustee.verify_key) for trustee in self._directory.trustees]
        return any(one is None or reopened(Anchor, one).at_s + every_s <= now_s for one in newest)

    def anchor(self, trustees: Sequence[AnchoringTrustee], random_bytes: RandomBytes) -> int:
        """Seals the chain and has every trustee anchor it; how many did."""
        chain = FactChain(self._connection, self.tenant)
        length = chain.seal(random_bytes)
        return sum(self._asked(trustee, length, chain.head()) for trustee in trustees)

    def messages(self) -> list[tuple[int, bytes]]:
        """All signed anchors with the number of entries that each covers, line by line."""
        rows = self._connection.execute(
            "SELECT length, message FROM anchors WHERE message IS NOT NULL ORDER BY holder, number"
        )
        return [(length, bytes(message)) for length, message in rows]

    def _asked(self, trustee: AnchoringTrustee, length: int, head: Digest) -> bool:
        holder = self._directory.trustee(trustee.index).verify_key
        try:
            if self._waiting(holder):
                self._ask(trustee, holder)  # what was asked before may have been signed
            self._note(holder, length, head)
            self._ask(trustee, holder)
        except PharoahError as error:
            logger.warning("trustee %d did not anchor the journal: %s", trustee.index, error.what)
            return False
        return True

    def _ask(self, trustee: AnchoringTrustee, holder: VerifyKey) -> None:
        number, head = self._waiting(holder)[0]
        request = AnchorRequest(self.tenant, trustee.index, number, Digest(head))
        answer = trustee.anchor(self._signing_key.sign(request, OLDEST))
        said, newest = open_signed(Anchor, answer, holder), self._newest(holder)
        before = NOTHING_BEFORE if newest is None else name_of(newest)
        if (said.trustee, said.tenant, said.number, said.head, said.before) != (*_asked(request), before):
            raise PeerFault(f"the anchor of trustee {trustee.index} is not the one that was asked for")
        row = answer, bytes(holder), number
        self._connection.execute("UPDATE anchors SET message = ? WHERE holder = ? AND number = ?", row)

    def _waiting(self, holder: VerifyKey) -> list[tuple[int, bytes]]:
        query = "SELECT number, head FROM anchors WHERE holder = ? AND message IS NULL"
        return self._connection.execute(query, (bytes(holder),)).fetchall()

    def _newest(self, holder: VerifyKey) -> bytes | None:
        query = "SELECT message FROM anchors WHERE holder = ? AND message IS NOT NULL ORDER BY number DESC LIMIT 1"
        row = self._connection.execute(query, (bytes(holder),)).fetchone()
        return None if row is None else bytes(row[0])

    def _note(self, holder: VerifyKey, length: int, head: Digest) -> None:
        self._connection.execute(
            "INSERT INTO anchors SELECT ?, COALESCE(MAX(number), 0) + 1, ?, ?, NULL FROM anchors WHERE holder = ?",
            (bytes(holder), length, bytes(head), bytes(holder)),
        )


def _asked(request: AnchorRequest) -> tuple[object, ...]:
    return request.trustee, request.tenant, request.number, request.head


# ---- for a home ------------------------------------------------------------------------------------------------------


def anchor(home: Path, every_s: float = 0.0) -> int:
    """Has the trustees anchor the journal if one has not for so long; how many did."""
    directory = joined(home).directory
    with reporting(), trustees_of(home) as trustees, closing(open_database(home / "tenant.db")) as connection:
        anchors = Anchoring(connection, SigningKey(read_key(home / "signing.key")), directory)
        if not anchors.is_due(time.time(), every_s):
            return 0
        return anchors.anchor(trustees, os.urandom)


def anchoring(home: Path, every_s: float) -> AbstractContextManager[None]:
    """Anchors the journal meanwhile whenever it is due, in a thread."""
    over = threading.Event()
    return meanwhile(lambda: _anchor_when_due(home, every_s, over), over.set, "anchors", LAST_ANCHOR_S)


def _anchor_when_due(home: Path, every_s: float, over: threading.Event) -> None:
    while not over.is_set():
        try:
            if count := anchor(home, every_s):
                logger.info("%d trustees anchored the journal", count, extra={"event": "anchors", "trustees": count})
        except PharoahError as error:
            logger.warning("the journal was not anchored: %s", error.what, extra={"error": type(error).__name__})
        over.wait(LOOK_EVERY_S)
