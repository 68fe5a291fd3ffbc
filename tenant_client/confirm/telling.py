"""Which hint a test is about, read from the tenant's own log, and what its outcome tells the provider with `--tell`.

An outcome says which suspicion was tested, whether it was confirmed, and how far from normal the rate was: no samples,
no device, no name of a machine. Nothing is told of a test that stayed unknown, and nothing at all without `--tell`.
What is told is noted in `tenant.db` before it leaves, and `sent` lists it from there, also when the call failed.
"""

import time
from contextlib import closing
from pathlib import Path

from crypto.errors import PharoahError
from federation.protocol.service_messages import CheckVerdict, Hint
from federation.runtime.sqlite import reporting
from tenant_client.advice.hints import HintLog
from tenant_client.confirm.assess import BenchmarkFinding
from tenant_client.network.connect import connected
from tenant_client.records.database import open_database
from tenant_client.records.outcomes import SentOutcome, note


class NoSuchHint(PharoahError):
    """The tenant's log has no hint of this number, or none of this lease."""

    default_hint = "take hints with `pharoah-tenant watch --once`, and name one that it shows"


def hint(home: Path, number: int = 0, lease: str | None = None) -> Hint:
    """Hint `number`, or without a number the newest of `lease`, as the home keeps it; NoSuchHint if it does not.

    A lease may be named by its first digits, and is the newest one of the journal where it is empty.
    """
    found: list[Hint] = []
    if (home / "tenant.db").exists():
        with reporting(), closing(open_database(home / "tenant.db")) as connection:
            log = HintLog(connection)
            lease = None if lease is None else log.find(lease)
            found = log.hints(lease or "")
    matching = [one for one in found if number in (0, one.number)]
    if not matching:
        raise NoSuchHint(f"{home} keeps no hint {number or f'of lease {lease}'}")
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
