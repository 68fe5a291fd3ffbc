"""Checks without a name: passes are bought a week ahead, by name; a check shows one on a connection of its own.

- Every member buys all that it may, in whole batches, at a moment of the week before that its own key decides: neither
  the time nor the amount depends on what it will ask, or on whether it will.
- A check uses none of the connections, sessions or keys that name the tenant, and keeps no connection for a second
  check. It names a context and no workload. A pass is gone from the database before it is shown, so none is shown
  twice, also where no answer came.
- Passes are taken only under the key that the pinned directory lists for the week, which is one for everybody.

Not promised: a hidden address, or that nobody guesses from the moment of a check whose lease begins (docs/privacy.md).
"""

import hashlib
import hmac
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

from crypto.codec import encode
from crypto.errors import PeerFault, PharoahError
from crypto.ristretto import RandomBytes
from federation.base.key_files import read, read_key
from federation.base.meanwhile import meanwhile
from federation.base.settings import load
from federation.base.sqlite import Connection, reporting as reporting_storage, transaction
from federation.protocol.check import Check, check_page
from federation.protocol.directory import Directory
from federation.protocol.pass_messages import BATCH, AnonymousCheck, Pass, unpadded
from federation.protocol.passes import SECONDS_PER_WEEK, order, passes_of, week_of
from federation.protocol.services import ProviderMethod
from federation.protocol.versions import OLDEST
from federation.transport.client import Peer
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.questions import noting
from tenant_client.doctor.settings import TenantSettings
from tenant_client.rounds.home import joined
from tenant_client.rounds.network.connect import connected
from tenant_client.rounds.network.provider_service import Online, context_tokens

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 600.0
LAST_ORDER_S = 5.0
SPREAD_S = SECONDS_PER_WEEK - 24 * 3600  # the last day of a week is left for a node that was away


class NoPass(PharoahError):
    """There is no pass for an anonymous check in this week."""

    default_hint = (
        "with `anonymous = true` under [checks] of tenant.toml, `pharoah-tenant serve` buys them in the week before;"
        " without --online, `check` tells the provider nothing and needs none"
    )


def order_moment(secret: bytes, week: int) -> float:
    """Seconds since 1970, within `week`, from when on the passes of the next one are bought."""
    drawn = hmac.digest(secret, b"pharoah/pass-order/1\0" + week.to_bytes(8), hashlib.sha256)
    return week * SECONDS_PER_WEEK + SPREAD_S * int.from_bytes(drawn[:8]) / 2**64


def buy(
    online: Online, connection: Connection, directory: Directory, week: int, random_bytes: RandomBytes = os.urandom
) -> int:
    """Buys what is missing of all passes of a week, and returns how many; none where the directory lists no key."""
    listed = directory.passes.get(week)
    missing = 0 if listed is None else listed.batches - kept(connection, week) // BATCH
    for _ in range(missing):
        asked = order(directory.provider, week, directory.passes[week].key, random_bytes)
        keep(connection, week, passes_of(asked, online.order_passes(week, asked.elements)))
    return missing * BATCH


def ask(peer: Peer, connection: Connection, labels: Mapping[str, str], at_s: float) -> Check:
    """The verdict for a lease, by its labels; NoPass, and nothing is sent, without a pass of this week."""
    context, level = context_tokens(labels)
    week = week_of(at_s)
    shown = take(connection, week)
    if shown is None:
        raise NoPass("no pass for an anonymous check is left for this week")
    answer = peer.call(ProviderMethod.ANONYMOUS_CHECK, encode(AnonymousCheck(week, shown, context, level), OLDEST))
    page = unpadded(answer)
    if any(entry.context != context for entry in page.mismatches):
        raise PeerFault("the provider's page is about another context", hint="compare the versions of both sides")
    return check_page(page, labels)


def anonymous_check(home: Path, labels: Mapping[str, str]) -> Check:
    """The same for the tenant in `home`, on a new connection that is closed with the answer."""
    settings = load(TenantSettings, home / "tenant.toml", os.environ)
    at = settings.provider.online
    note = noting(home / "tenant.db", at)
    with (
        reporting_storage(),
        closing(open_database(home / "tenant.db")) as connection,
        Peer(at, read(home / "provider.pem"), retries=0, note=note) as peer,
    ):
        hurry(connection)
        return ask(peer, connection, labels, time.time())


def buy_when_due(home: Path, at_s: float) -> int:
    """Buys the passes of the week to come, if their moment has come; how many were bought."""
    week = week_of(at_s)
    if at_s < order_moment(read_key(home / "signing.key"), week):
        return 0
    directory = joined(home).directory
    with reporting_storage(), closing(open_database(home / "tenant.db")) as connection, connected(home) as online:
        return buy(online, connection, directory, week + 1)


def buying(home: Path, now_s: Callable[[], float] = time.time) -> AbstractContextManager[None]:
    """Buys meanwhile whatever is due, in a thread."""
    over = threading.Event()
    return meanwhile(lambda: _buy_until(home, now_s, over), over.set, "passes", LAST_ORDER_S)


def _buy_until(home: Path, now_s: Callable[[], float], over: threading.Event) -> None:
    while not over.is_set():
        try:
            if count := buy_when_due(home, now_s()):
                logger.info("%d passes for anonymous checks", count, extra={"event": "passes", "passes": count})
        except PharoahError as error:
            logger.warning("no passes were bought: %s", error.what, extra={"error": type(error).__name__})
        over.wait(LOOK_EVERY_S)


# ---- passes in the database ------------------------------------------------------------------------------------------


_TAKE = (
    "DELETE FROM passes WHERE (week, pass) ="
    " (SELECT week, pass FROM passes WHERE week = ? ORDER BY random() LIMIT 1) RETURNING pass"
)


def keep(connection: Connection, week: int, passes: Sequence[Pass]) -> None:
    """Keeps passes of a week, and lets those of weeks before the last one go."""
    with transaction(connection):
        connection.execute("DELETE FROM passes WHERE week < ?", (week - 1,))
        connection.executemany("INSERT INTO passes VALUES (?, ?)", [(week, bytes(each)) for each in passes])


def kept(connection: Connection, week: int) -> int:
    """How many passes of a week are left."""
    (count,) = connection.execute("SELECT count(*) FROM passes WHERE week = ?", (week,)).fetchone()
    return int(count)


def take(connection: Connection, week: int) -> Pass | None:
    """One pass of a week, at random, which is no longer here then; None if there is none.

    At random, since the order in which they were issued is known to the issuer by blinded elements alone, and is to
    stay nobody's business.
    """
    with connection.lock:
        rows = connection.execute(_TAKE, (week,)).fetchall()  # to its end, which commits
    return Pass(rows[0][0]) if rows else None


def hurry(connection: Connection) -> None:
    """Lets this connection's writes not wait for the disk.

    After a power cut in that moment a pass that was taken may be here again; shown again, it is refused.
    """
    connection.execute("PRAGMA synchronous=NORMAL")
