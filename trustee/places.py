"""Which round a trustee endorsed at each place of a series: one for ever, whatever a round is called."""

from crypto.ids import RoundId
from federation.protocol.plan import Plan
from federation.runtime.sqlite import Connection

SCHEMA = """
CREATE TABLE IF NOT EXISTS places (
    series BLOB NOT NULL, position INTEGER NOT NULL, round_id BLOB NOT NULL, PRIMARY KEY (series, position));
"""


def take(connection: Connection, plan: Plan) -> RoundId:
    """The round that has the plan's place in its series: the plan's own if it is the first there, or has no series."""
    if plan.series is None:
        return plan.round_id
    place = bytes(plan.series.name), plan.position
    connection.execute("INSERT OR IGNORE INTO places VALUES (?, ?, ?)", (*place, bytes(plan.round_id)))
    row = connection.execute("SELECT round_id FROM places WHERE series = ? AND position = ?", place).fetchone()
    return RoundId(row[0])
