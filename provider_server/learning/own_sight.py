"""What of its own failures the provider may put into a bundle that all tenants read (docs/privacy.md).

*Exact*, in rows with enough owners. A row's own failures enter in batches. At an opening a row's batch is what was seen
in its job-weeks that entered no batch before; it enters as a whole if `enough(K)` owners had a failure in it and none
of them more than half. Otherwise nothing of it enters, but that it was so. So what two bundles tell apart is a batch,
and whichever K − 1 owners know their own part of it, K others are left. Rows are those that counted at the time.

*Noisy*: counts under the cap, each cell under noise that is never taken off (`learning.own_noise`). All rows enter.

Not promised: that exact counts hide an owner from all others of its batch together. Noise does.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import Floats, LifeTable
from provider_server.fleet.own_failures import OwnRecord

Places = NDArray[np.intp]
Mask = NDArray[np.bool_]

MOST_OF_ONE = 0.5  # of a batch


@dataclass(frozen=True)
class Exact:
    """Own failures as they are: in rows with enough owners, if K is given, or, for the provider's own eyes, in all."""

    record: OwnRecord
    owners_minimum: int | None = None


@dataclass(frozen=True)
class Noisy:
    """Own failures under noise, over (workload, context); `record` says where the provider looked."""

    record: OwnRecord
    table: LifeTable


OwnSight = Exact | Noisy


def enough(owners_minimum: int) -> int:
    """How many owners a batch needs, so that K are left whichever K − 1 of them compare what they know."""
    return 2 * owners_minimum - 1


@dataclass(frozen=True, eq=False)
class Batches:
    """Of J job-weeks, those `entered` (J,) with what was seen in them, and those of which only `few` owners failed."""

    entered: Mask
    few: Mask

    @classmethod
    def of(cls, row: Places, owner: Places, opening: Places, failures: Floats, owners_minimum: int | None) -> "Batches":
        """All arguments (J,): the job-weeks' rows (-1: none, nothing enters), owners, openings and own failures."""
        known, entered = row >= 0, np.zeros(len(row), np.bool_)
        if owners_minimum is None:
            return cls(known, entered)
        failing = np.zeros(0, np.intp)
        for now in np.unique(opening):
            waiting = known & ~entered & (opening <= now)
            failing, most = _by_row(row[waiting], owner[waiting], failures[waiting], int(row.max()) + 1)
            fit = (failing >= enough(owners_minimum)) & (most <= MOST_OF_ONE)
            entered |= waiting & fit[row]
        few = failing < enough(owners_minimum)
        return cls(entered, known & ~entered & few[row]) if len(few) else cls(entered, entered)


def _by_row(row: Places, owner: Places, failures: Floats, rows: int) -> tuple[Places, Floats]:
    """By row (rows,): how many owners had a failure, and the largest share that one of them had."""
    owners = int(owner.max(initial=0)) + 1
    pair, of = np.unique(row * owners + owner, return_inverse=True)
    count = np.bincount(of, failures, len(pair))
    total = np.bincount(pair // owners, count, rows)
    most = np.zeros(rows)
    np.maximum.at(most, pair // owners, count)
    failing = np.bincount(pair // owners, count > 0, rows).astype(np.intp)
    return failing, most / np.maximum(total, 1.0)
