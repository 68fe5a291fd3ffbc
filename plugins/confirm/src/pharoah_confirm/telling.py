"""Finds the hint of a test in the tenant's log, and sends the outcome to the provider with `--tell`.

- An outcome has the suspicion, whether it was confirmed, and the loss of speed: no samples, no device, no machine name.
- Nothing is sent without `--tell`, nor if the verdict is unknown.
- The outcome is written to `tenant.db` before it is sent, so `privacy sent` lists it even if the call failed.
"""

import time
from contextlib import closing
from pathlib import Path

from crypto.errors import PharoahError
from federation.base.sqlite import reporting
from federation.protocol.service_messages import CheckVerdict, Hint
from pharoah_confirm.assess import BenchmarkFinding
from tenant_client.doctor.advice.hints import HintLog
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.outcomes import SentOutcome, note
from tenant_client.rounds.network.connect import connected


class NoSuchHint(PharoahError):
    """The tenant's log has no hint of this number, or none of this lease."""

    default_hint = "get hints with `pharoah-tenant watch --once`, and pass one of them"


def hint(home: Path, number: int = 0, lease: str | None = None) -> Hint:
    """Hint `number`, or without a number the newest of `lease`, as the home keeps it; NoSuchHint if it does not.

    `lease` may be the start of a name; empty means the newest lease of the journal.
    """
    found: list[Hint] = []
    if (home / "tenant.db").exists():
        with reporting(), closing(open_database(home / "tenant.db")) as connection:
            log = HintLog(connection)
            lease = None if lease is None else log.find(lease)
            found = log.hints(lease or "")
    matching = [one for one in found if number in (0, one.number)]
    if not matching:
        raise NoSuchHint(f"no hint {number or f'of lease {lease}'} in {home}")
    return matching[-1]


def tell(home: Path, about: Hint, finding: BenchmarkFinding) -> bool:
    """Notes the outcome and sends it, if the finding says anything; whether it did."""
    if finding.verdict is CheckVerdict.UNKNOWN:
        return False
    confirmed, shortfall = finding.verdict is CheckVerdict.MISMATCH, finding.shortfall_percent
    told = SentOutcome(time.time(), about.number, str(about.lease), finding.suspicion, confirmed, shortfall)
    with connected(home) as online:
        with reporting(), closing(open_database(home / "tenant.db")) as connection:
            note(connection, told)
        online.outcome(about, finding.suspicion, confirmed=confirmed, shortfall_percent=shortfall)
    return True
