"""What the provider's own telemetry advises: nodes for long and for short jobs, tests to run next, spares.

The figures are those of `nodes placement`, `probes` and `spares`; whoever serves the page hands them in. No tenant is
named.
"""

from dataclasses import dataclass

SHORT = "short"


@dataclass(frozen=True)
class PlacedView:
    """A node, which jobs it is for, and its failures per 1,000 node-hours, None if it sends nothing."""

    node: str
    jobs: str
    rate: float | None
    times_usual: float | None
    reason: str


@dataclass(frozen=True)
class VisitView:
    """A test of a node: in how many hours, for how many minutes, and what a minute is worth, 1 at the budget's edge."""

    node: str
    test: str
    in_hours: int
    minutes: float
    worth: float
    reason: str


@dataclass(frozen=True)
class PlansView:
    """For which hour; nodes, the riskiest first; tests, the most urgent first; spares that keep `availability`.

    `budget` is the share of node-hours for tests in the next `hours`, `repair_hours` what a repair is taken to last.
    """

    hour: int
    nodes: tuple[PlacedView, ...]
    short: int
    tests: tuple[VisitView, ...]
    budget: float
    hours: int
    spares: int
    mean_down: float
    availability: float
    repair_hours: float
