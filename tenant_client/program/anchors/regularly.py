"""Anchors the journal of a home: again and again while its node serves, or when a claim is made."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from crypto.errors import PharoahError
from crypto.signing import SigningKey
from federation.base.key_files import read_key
from federation.base.sqlite import reporting
from tenant_client.doctor.records.database import open_database
from tenant_client.program.anchors.anchoring import Anchoring
from tenant_client.rounds.home import joined
from tenant_client.rounds.network.connect import trustees_of

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 3600.0
LAST_ANCHOR_S = 5.0


def anchor(home: Path, every_s: float = 0.0) -> int:
    """Has the trustees anchor the journal if one has not for so long; how many did."""
    directory = joined(home).directory
    with reporting(), trustees_of(home) as trustees, closing(open_database(home / "tenant.db")) as connection:
        anchoring = Anchoring(connection, SigningKey(read_key(home / "signing.key")), directory)
        if not anchoring.is_due(time.time(), every_s):
            return 0
        return anchoring.anchor(trustees, os.urandom)


@contextmanager
def anchoring(home: Path, every_s: float) -> Iterator[None]:
    """Anchors the journal meanwhile whenever it is due, in a thread."""
    over = threading.Event()
    thread = threading.Thread(target=_anchor_when_due, args=(home, every_s, over), name="anchors", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LAST_ANCHOR_S)


def _anchor_when_due(home: Path, every_s: float, over: threading.Event) -> None:
    while not over.is_set():
        try:
            if count := anchor(home, every_s):
                logger.info("%d trustees anchored the journal", count, extra={"event": "anchors", "trustees": count})
        except PharoahError as error:
            logger.warning("the journal was not anchored: %s", error.what, extra={"error": type(error).__name__})
        over.wait(LOOK_EVERY_S)
