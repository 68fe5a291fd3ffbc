"""What rounds said of the provider's warnings, once the record of each proved its sum, by window.

A round that was answered and counts warnings is due. Trustees endorse one set for a window, so there is one sum of it.
"""

import msgspec

from federation.base.sqlite import Rows
from federation.protocol.warnings import WarnedSum


class WarnedSums(Rows):
    """Reads and writes the sums of the tenant's database."""

    def expect(self, start_hour: int) -> None:
        """Notes that the provider owes the record of a window's round."""
        self._connection.execute("INSERT OR IGNORE INTO warned_sums VALUES (?, NULL)", (start_hour,))

    def keep(self, proven: WarnedSum) -> None:
        """Keeps what a record proved."""
        text = msgspec.json.encode(proven).decode()
        self._connection.execute("INSERT OR REPLACE INTO warned_sums VALUES (?, ?)", (proven.start_hour, text))

    def sums(self) -> list[WarnedSum]:
        """All that is proven, in the order of windows."""
        rows = self._connection.execute("SELECT sum FROM warned_sums WHERE sum IS NOT NULL ORDER BY start_h")
        return [msgspec.json.decode(text, type=WarnedSum) for (text,) in rows]

    def owed(self) -> int:
        """How many records were not shown."""
        (count,) = self._connection.execute("SELECT count(*) FROM warned_sums WHERE sum IS NULL").fetchone()
        return int(count)
