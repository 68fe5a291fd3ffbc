"""What the provider's own telemetry advises: nodes for long and for short jobs, tests to run next, spares.

The figures are those of `nodes risk`, `probes` and `spares`; whoever serves the page hands them in. No tenant is named.
"""

from dataclasses import dataclass

from provider_server.fleet.analysis.risk_calibration import Calibration, Reliability

SHORT = "short"
PICTURED_H = 24


@dataclass(frozen=True)
class PlacedView:
    """A node, which jobs it is for, its probability of failing within 1, 24 and 168 hours, and its bucket."""

    node: str
    jobs: str
    probabilities: tuple[float, ...]
    times_usual: float
    bucket: str
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
    `reliability` and `calibration` say how probabilities of a day fared so far; empty and None before they were kept.
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
    reliability: tuple[Reliability, ...]
    calibration: Calibration | None
