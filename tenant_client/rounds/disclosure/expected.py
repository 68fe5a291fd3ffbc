"""A view for the owner: leases against their targets, from the journal and tenant.toml. Read only."""

import os
from contextlib import closing
from pathlib import Path

from federation.base.settings import load
from federation.base.sqlite import reporting
from tenant_client.doctor.advice.error_budget import Objective, Targets
from tenant_client.doctor.advice.expectations import Report, report
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.first_causes import FirstCauses
from tenant_client.doctor.records.paces import Paces
from tenant_client.doctor.settings import ExpectationsTable, TenantSettings


def expected(database: Path, home: Path, now_s: float, lease: str = "") -> Report:
    """Leases whose names begin with `lease`, and the budgets over them."""
    targets = targets_of(load(TenantSettings, home / "tenant.toml", os.environ).expectations)
    with reporting(), closing(open_database(database)) as connection:
        attempts = Attempts(connection)
        paces = Paces(connection)
        kept = attempts.list(), paces.all(), paces.lost(), attempts.jobs()
        return report(*kept, targets, FirstCauses(connection).days(), now_s, lease)


def targets_of(table: ExpectationsTable) -> Targets:
    """The targets of the settings."""
    shares = {
        Objective.GOODPUT: table.goodput,
        Objective.STEADY: table.steady,
        Objective.HANG_FREE: table.hang_free,
        Objective.RESTARTS: table.restarts,
    }
    return Targets(shares, table.restart_s, table.window_days)
