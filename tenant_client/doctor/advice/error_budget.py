"""Error budgets of objectives, and how fast they burn. Pure.

The budget is what a target leaves: 1 − target of all. The burn rate within a window of time is the bad share there over
that; at 1 the budget lasts for just the window of the target. An alert needs a long window and a short one: so it comes
soon, and is over soon after the trouble. Nothing burns faster than 1 / (1 − target), so below a target of .93 the
window of an hour never alerts. With few restarts, one that is late uses up more than a budget.

Source: Beyer et al., The Site Reliability Workbook, 2018, chapter 5, table 5-8.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tenant_client.doctor.records.paces import SLICE_S

HOUR_S, DAY_S = 3600.0, 86_400.0


class Objective(StrEnum):
    """What is expected."""

    GOODPUT = "goodput"
    STEADY = "steady"
    HANG_FREE = "hang_free"
    RESTARTS = "restarts"


class Alert(StrEnum):
    """What the workbook does at such a burn rate: wake somebody, or open a ticket."""

    PAGE = "page"
    TICKET = "ticket"
    NONE = ""


@dataclass(frozen=True)
class BurnWindow:
    """Alerts if the budget burns faster than `rate` within both the long and the short time (table 5-8)."""

    name: str
    long_s: float
    short_s: float
    rate: float
    alert: Alert


# The workbook's 5 minutes are ten here: slices are no shorter.
BURN_WINDOWS = (
    BurnWindow("1h", HOUR_S, SLICE_S, 14.4, Alert.PAGE),
    BurnWindow("6h", 6 * HOUR_S, HOUR_S / 2, 6.0, Alert.PAGE),
    BurnWindow("3d", 3 * DAY_S, 6 * HOUR_S, 1.0, Alert.TICKET),
)


@dataclass(frozen=True)
class Targets:
    """Shares that are expected of each objective, the seconds allowed for a restart, and the window of the budget."""

    shares: Mapping[Objective, float]
    restart_s: float
    window_days: int


@dataclass(frozen=True)
class Cell:
    """Good and all of one objective within a slice that begins at `at_s`: seconds, or restarts."""

    at_s: float
    objective: Objective
    good: float
    all: float


@dataclass(frozen=True)
class Burn:
    """How fast the budget burns within a window; None where nothing ran. It alerts only with its short window."""

    window: str
    rate: float | None
    alert: Alert


@dataclass(frozen=True)
class Budget:
    """The error budget of an objective over the last days: its share that is used (above 1: exceeded), and burn rates.

    `share` is None, and so is `used`, where nothing is known.
    """

    objective: Objective
    target: float
    share: float | None
    used: float | None
    burns: tuple[Burn, ...]

    @property
    def alert(self) -> Alert:
        """The most urgent alert of its burn rates."""
        return min((burn.alert for burn in self.burns), key=list(Alert).index)


def share_of(cells: Iterable[Cell], objective: Objective, since_s: float = -math.inf) -> float | None:
    """The good share since then; slices that begin before are left out."""
    own = [cell for cell in cells if cell.objective is objective and cell.at_s >= since_s]
    every = math.fsum(cell.all for cell in own)
    return math.fsum(cell.good for cell in own) / every if every > 0 else None


def budget_of(objective: Objective, cells: Sequence[Cell], targets: Targets, now_s: float) -> Budget:
    """The budget of an objective over all these cells."""
    target = targets.shares[objective]
    share = share_of(cells, objective, now_s - targets.window_days * DAY_S)

    def rate(window_s: float) -> float | None:
        good = share_of(cells, objective, now_s - window_s - SLICE_S)  # with the slice in which the window begins
        return None if good is None else (1.0 - good) / (1.0 - target)

    burns = []
    for window in BURN_WINDOWS:
        long, short = rate(window.long_s), rate(window.short_s)
        burning = long is not None and short is not None and min(long, short) > window.rate
        burns.append(Burn(window.name, long, window.alert if burning else Alert.NONE))
    return Budget(objective, target, share, None if share is None else (1.0 - share) / (1.0 - target), tuple(burns))
