"""Kills a process that looks at leases and keeps hints, at one of its writes; then another one goes on.

    $ python -m tests.support.deaths_of_hints   # then, line by line: the URL of an empty store, the number of a write
    sqlite:////somewhere/provider.db 3      # 0: nobody dies

Each line is answered by one JSON object: the points that were passed, whether the process died, and the hints of each
tenant in the end. It is a program of its own since it forks: it has no threads.
"""

import json
import os
import sys
from contextlib import closing

from crypto.ids import LeaseId, TenantId
from federation.protocol.service_messages import Hint, Suspicion
from provider_server.fleet.hints.episodes import Draft, Episodes, HintLimits, LeaseHazard
from provider_server.rounds.store.store import Store
from tests.support.deaths import Fate, watch_store

TENANTS = (TenantId(b"tenant of lease 0"[:16]), TenantId(b"other tenant, 1."))
LEASES = {LeaseId(bytes([number]) * 16): tenant for number, tenant in enumerate(TENANTS)}
# By lease, hour by hour: quiet, bad, worse, quiet again, and bad again.
RATIOS = ((1, 4, 4, 9, 1, 1, 1, 4), (1, 1, 4, 4, 4, 1, 1, 1))
LIMITS = HintLimits(looks=1, calm_h=1.0)


def hazards(hour: int) -> list[LeaseHazard]:
    """What the look at an hour sees."""
    return [
        LeaseHazard(
            lease=lease,
            ratio=float(ratio),
            ratio_low=0.9 * ratio,
            ratio_high=1.1 * ratio,
            probability=0.01 * ratio,
            excess=0.1 * (ratio - 1),
            surplus=ratio - 1.0,
            strain=ratio - 1,
            within_hours=24.0,
            suspicion=Suspicion.MEMORY,
        )
        for lease, ratio in zip(LEASES, (ratios[hour] for ratios in RATIOS), strict=True)
    ]


def look_at_all(store: Store) -> None:
    """Takes all looks; those that were taken before say nothing."""
    before = store.hints.state()
    episodes = Episodes.resumed(before, LIMITS) if before is not None else Episodes(LIMITS)
    for hour in range(len(RATIOS[0])):
        drafts: list[tuple[TenantId, Draft]] = [
            (LEASES[draft.lease], draft) for draft in episodes.look(float(hour), hazards(hour))
        ]
        after = episodes.state()
        if after != before:
            store.hints.append(drafts, before, after)
            before = after


def die(url: str, until: int) -> tuple[list[str], bool]:
    """Looks at everything in a process of its own; the points that it passed, if it lived, and whether it died."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        fate = Fate(path=None, until=until)  # type: ignore[arg-type]  # whichever store is opened here
        with closing(Store(url, now_s=lambda: 0.0)) as store:
            watch_store(store, fate.meet)
            look_at_all(store)
        os.write(writing, json.dumps(fate.passed).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        passed = said.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(passed or b"[]"), os.WIFSIGNALED(status)


def main() -> None:
    """Answers every line of the standard input."""
    for line in sys.stdin:
        url, until = line.split()
        Store(url, now_s=lambda: 0.0).close()
        points, died = die(url, int(until))
        with closing(Store(url, now_s=lambda: 0.0)) as store:
            survived = {str(tenant): len(store.hints.after(tenant, 0)) for tenant in TENANTS}
            look_at_all(store)
            hints = {
                str(tenant): [
                    [hint.number, hint.at_h, hint.state, hint.times]
                    for hint in store.hints.after(tenant, 0)
                    if isinstance(hint, Hint)
                ]
                for tenant in TENANTS
            }
        sys.stdout.write(json.dumps({"points": points, "died": died, "survived": survived, "hints": hints}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
