"""Answers a plan in a process of its own, which ends where a test says; the answer, if it comes to one, goes to stdout.

    python tests/support/contribute_and_die.py HOME PLAN MOMENT

HOME is a tenant's home, PLAN a file with a signed plan, MOMENT one of `Moment`.
"""

import os
import signal
import sys
import time
from enum import StrEnum
from fractions import Fraction
from pathlib import Path

from federation.protocol.noise import Integers, SystemSampler
from tenant_client.rounds.home import open_tenant
from tests.support.waiting import PATIENCE_S


class Moment(StrEnum):
    """When the process is killed; the last two end well."""

    CHARGING = "charging"  # the charge is written and not committed
    CHARGED = "charged"  # the charge is committed, no noise is drawn
    KEEPING = "keeping"  # noise is drawn, the message is written and not committed
    KEPT = "kept"  # the message is committed, nothing is sent
    NEVER = "never"
    TOGETHER = "together"  # noise is drawn only when two processes have charged


class Sampler(SystemSampler):
    def __init__(self, moment: Moment, meeting: Path) -> None:
        super().__init__()
        self._moment = moment
        self._meeting = meeting

    def laplace_share(self, scale: float, shares: Fraction | int, size: int) -> Integers:
        if self._moment is Moment.CHARGED:
            die()
        if self._moment is Moment.TOGETHER:
            self._wait_for_another()
        return super().laplace_share(scale, shares, size)

    def _wait_for_another(self) -> None:
        (self._meeting / str(os.getpid())).touch()
        give_up = time.monotonic() + PATIENCE_S
        while len(list(self._meeting.iterdir())) < 2:
            if time.monotonic() > give_up:
                raise TimeoutError("nobody else came")
            time.sleep(0.01)


class Executioner:
    """Sees every SQL statement before it runs, and lets a transaction into one table not come to its end."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._written = False

    def __call__(self, statement: str) -> None:
        self._written |= statement.startswith("INSERT") and f"INTO {self._table} " in statement
        if self._written and statement == "COMMIT":
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(home: Path, plan: Path, moment: Moment) -> None:
    meeting = home / "meeting"
    meeting.mkdir(exist_ok=True)
    tenant = open_tenant(home, (), os.urandom, Sampler(moment, meeting))
    if moment in (Moment.CHARGING, Moment.KEEPING):
        tenant._connection.set_trace_callback(Executioner("charges" if moment is Moment.CHARGING else "outbox"))
    message = tenant.contribute(plan.read_bytes())
    if moment is Moment.KEPT:
        die()
    sys.stdout.buffer.write(message)
    tenant.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Moment(sys.argv[3]))
