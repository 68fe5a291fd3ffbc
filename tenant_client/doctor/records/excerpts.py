"""The lines of the logs that tell each failed attempt, as they stand there. They stay in the tenant's home."""

import msgspec

from federation.base.sqlite import Rows
from tenant_client.doctor.diagnosis.excerpts import Excerpt


class Excerpts(Rows):
    """Reads and writes them in a tenant's database."""

    def keep(self, unit: str, attempt: int, excerpt: Excerpt) -> None:
        """Keeps what tells an attempt, in place of what was kept before."""
        row = unit, attempt, msgspec.json.encode(excerpt).decode()
        self._connection.execute("INSERT OR REPLACE INTO excerpts VALUES (?, ?, ?)", row)

    def of(self, unit: str, attempt: int) -> Excerpt:
        """What tells an attempt; empty where an older program kept none."""
        query = "SELECT excerpt FROM excerpts WHERE unit = ? AND attempt = ?"
        row = self._connection.execute(query, (unit, attempt)).fetchone()
        return msgspec.json.decode(row[0], type=Excerpt) if row else Excerpt()
