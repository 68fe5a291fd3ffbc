"""A trustee keeps the sums of its masks of counts, one per week of a series and group, for the weeks that follow.

The opening of week t holds the counts of all weeks so far. Without kept sums its trustees would make the masks of
every earlier week again, so that the work of week t would be t times that of the first. With them it is one week's
masks, and one multiplication and addition per earlier week and cell.

- A kept sum is nothing new: mask key and request give it again. One that is missing or damaged is made again.
- On disk it is sealed (ChaCha20-Poly1305, RFC 8439) under a key that only the mask key gives, and bound to its
  round, its group and their number. A copy of the database alone tells nothing of it, and nobody can put another sum in
  its place, or take one away.
- The sums of a series are erased when the next series begins.
"""

import struct
from collections.abc import Callable, Collection, Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from crypto.ids import RoundId
from crypto.masking import MaskKey, Words, words_from_bytes, words_to_bytes
from crypto.ristretto import RandomBytes
from federation.runtime.sqlite import Connection, transaction

SCHEMA = """
CREATE TABLE IF NOT EXISTS kept_sums (
    round_id BLOB NOT NULL REFERENCES endorsed, part INTEGER NOT NULL, sealed BLOB NOT NULL,
    PRIMARY KEY (round_id, part));
"""
_PURPOSE = b"pharoah/kept-sums/1"
_NONCE_BYTES = 12


class KeptSums:
    """The kept sums in a trustee's database; `part` is the number of a group in its round."""

    def __init__(self, connection: Connection, mask_key: MaskKey, random_bytes: RandomBytes) -> None:
        self._connection = connection
        self._cipher = ChaCha20Poly1305(mask_key.storage_key(_PURPOSE))
        self._random_bytes = random_bytes

    def keep(self, round_id: RoundId, sums: Sequence[Words]) -> None:
        """Stores the sums of all groups of a round, in place of earlier ones."""
        with transaction(self._connection):
            for part, words in enumerate(sums):
                nonce = self._random_bytes(_NONCE_BYTES)
                sealed = nonce + self._cipher.encrypt(nonce, words_to_bytes(words), _place(round_id, part, len(sums)))
                row = bytes(round_id), part, sealed
                self._connection.execute("INSERT OR REPLACE INTO kept_sums VALUES (?, ?, ?)", row)

    def total(self, round_id: RoundId, left_out: Collection[int], make: Callable[[], Sequence[Words]]) -> Words:
        """The sum over all groups of a round but those left out; `make` gives the sums if they are not kept."""
        sums: Sequence[Words] = self._opened(round_id)
        if not sums:
            sums = make()
            self.keep(round_id, sums)
        total = np.zeros_like(sums[0])
        for part, words in enumerate(sums):
            if part not in left_out:
                total += words
        return total

    def _opened(self, round_id: RoundId) -> list[Words]:
        """The sums by group; none if none were kept, if one is missing, or if one does not open."""
        rows = self._connection.execute(
            "SELECT part, sealed FROM kept_sums WHERE round_id = ? ORDER BY part", (bytes(round_id),)
        ).fetchall()
        try:
            return [self._unsealed(sealed, _place(round_id, part, len(rows))) for part, sealed in rows]
        except (InvalidTag, ValueError):  # ValueError: so little is left of it that there is no nonce
            return []

    def _unsealed(self, sealed: bytes, place: bytes) -> Words:
        return words_from_bytes(self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place))

    def erase_other_series(self, series: RoundId) -> None:
        """Erases what is kept for rounds of any other series."""
        self._connection.execute(
            "DELETE FROM kept_sums WHERE round_id NOT IN (SELECT round_id FROM endorsed WHERE series = ?)",
            (bytes(series),),
        )


def _place(round_id: RoundId, part: int, parts: int) -> bytes:
    return bytes(round_id) + struct.pack("<QQ", part, parts)
