"""A provider that serves its online service and has something to say all the time, until it is killed.

    $ python -m tests.support.hinting_provider HOME PORT LEASE TENANT COUNT  # HOME: *.db, *.key, tls.*

It appends hints about LEASE of TENANT, and as many about a lease of another one, until there are COUNT; started again,
it goes on from what is in the store. It prints `ready` once it serves.
"""

import os
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from crypto.ids import LeaseId, TenantId
from crypto.signing import SigningKey
from federation.protocol.service_messages import Action, HintState, Suspicion
from provider_server.fleet.hints.episodes import Draft
from provider_server.rounds.online.service import serve_online
from provider_server.rounds.online.sessions import Sessions, session_key
from provider_server.rounds.provider import Provider
from provider_server.rounds.settings import ProviderSettings
from provider_server.rounds.store.store import Store
from tests.support.federations import WEEKS

EVERY_S = 0.01


def draft(lease: LeaseId, number: int, at_h: float) -> Draft:
    """The hints of a lease alternate, so that the last of an even number clears."""
    state = HintState.RAISED if number % 2 else HintState.CLEARED
    action = Action.CONFIRM if number % 2 else Action.NOTHING
    return Draft(at_h, lease, state, Suspicion.MEMORY, 4.0, 2.0, 8.0, 0.25, 24.0, action, (number + 1) // 2)


def main(home: Path, port: str, lease: LeaseId, tenant: TenantId, count: int) -> None:
    """Serves until it is killed."""
    secret = (home / "context.key").read_bytes()
    key = SigningKey((home / "signing.key").read_bytes())
    weeks = len(WEEKS)
    settings = replace(ProviderSettings().plan.settings, weeks_per_epoch=weeks, windows=(weeks,))
    store = Store(home / "provider.db", now_s=lambda: 0.0)  # hints are 1, 2, 3
    with closing(Provider(key, secret, settings, store, os.urandom)) as provider:
        hints = provider.store.hints
        other = next(member.tenant for member in provider.directory.members if member.tenant != tenant)
        with serve_online(
            provider,
            f"127.0.0.1:{port}",
            (home / "tls.pem").read_bytes(),
            (home / "tls.key").read_bytes(),
            sessions=Sessions(session_key(secret), time.time),
            hints=hints,
            take_outcome=hints.take_outcome,
        ):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            before = hints.state()
            for number in range(int(before or 0) + 1, count + 1):
                at_h, after = time.time() / 3600.0, b"%d" % number
                both = [(tenant, draft(lease, number, at_h)), (other, draft(LeaseId(bytes(16)), number, at_h))]
                hints.append(both, before, after)
                before = after
                time.sleep(EVERY_S)
            while True:
                time.sleep(60.0)


if __name__ == "__main__":
    folder, listen, of, whose, until = sys.argv[1:]
    main(Path(folder), listen, LeaseId(bytes.fromhex(of)), TenantId(bytes.fromhex(whose)), int(until))
