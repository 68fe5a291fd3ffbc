"""Which round a trustee endorsed in each window of an epoch: one for ever, whatever a round is called.

- The first plan of an epoch settles its windows; a plan with others is refused. They are disjoint and lie in the epoch,
  so no hour is in two rounds.
- A mask key serves one epoch: a plan of another under it is refused, whoever holds the key by then.
"""

from crypto.errors import PlanRefused
from crypto.ids import MaskPublicKey, RoundId
from federation.base.sqlite import Connection
from federation.protocol.plan import Plan

SCHEMA = """
CREATE TABLE IF NOT EXISTS places (
    epoch INTEGER NOT NULL, start_hour INTEGER NOT NULL, round_id BLOB NOT NULL, PRIMARY KEY (epoch, start_hour));
CREATE TABLE IF NOT EXISTS epochs (epoch INTEGER PRIMARY KEY, windows TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS served (mask_key BLOB PRIMARY KEY, epoch INTEGER NOT NULL);
"""


def take(connection: Connection, plan: Plan) -> RoundId:
    """The round that has the plan's window: the plan's own if it is the first there.

    PlanRefused where the epoch has other windows. The plan's mask keys serve its epoch from now on.
    """
    windows = _windows(connection, plan.epoch)
    if windows not in ((), plan.windows):
        raise PlanRefused(
            f"round {plan.round_id} divides epoch {plan.epoch} into other windows than the rounds before it",
            hint="the provider keeps the windows that the epoch began with, whatever its settings say now",
        )
    edges = " ".join(map(str, plan.windows))
    connection.execute("INSERT OR IGNORE INTO epochs VALUES (?, ?)", (plan.epoch, edges))
    for one in plan.trustees:
        connection.execute("INSERT OR IGNORE INTO served VALUES (?, ?)", (bytes(one.mask_key), plan.epoch))
    place = plan.epoch, plan.start_hour
    connection.execute("INSERT OR IGNORE INTO places VALUES (?, ?, ?)", (*place, bytes(plan.round_id)))
    row = connection.execute("SELECT round_id FROM places WHERE epoch = ? AND start_hour = ?", place).fetchone()
    return RoundId(row[0])


def check_mask_keys(connection: Connection, plan: Plan) -> None:
    """PlanRefused where a mask key of the plan served another epoch."""
    served = {one.index: _epoch_of(connection, one.mask_key) for one in plan.trustees}
    if old := [index for index, epoch in served.items() if epoch not in (None, plan.epoch)]:
        raise PlanRefused(
            f"round {plan.round_id} of epoch {plan.epoch} has mask keys that served another epoch, of trustees {old}",
            hint="they run `pharoah-trustee keys renew-mask-key`; then all hand over, and the provider reseats",
        )


def spent_at(connection: Connection, mask_key: MaskPublicKey) -> int | None:
    """The hour at which a mask key has nothing left to open; None for one that has served no round yet.

    The last round of an epoch is held after it: it has as much time as the last window is long.
    """
    epoch = _epoch_of(connection, mask_key)
    windows = () if epoch is None else _windows(connection, epoch)
    return 2 * windows[-1] - windows[-2] if windows else None


def _windows(connection: Connection, epoch: int) -> tuple[int, ...]:
    row = connection.execute("SELECT windows FROM epochs WHERE epoch = ?", (epoch,)).fetchone()
    return tuple(map(int, row[0].split())) if row else ()


def _epoch_of(connection: Connection, mask_key: MaskPublicKey) -> int | None:
    row = connection.execute("SELECT epoch FROM served WHERE mask_key = ?", (bytes(mask_key),)).fetchone()
    return row[0] if row else None
