"""Kinds of cloud for `study field`: one factor at a time away from the standard cloud, corners, and sizes by epsilon.

Every cloud has the windows that provider.toml has as shipped. Corners change seven factors at once, by the
design of Plackett and Burman (1946) in 12 runs: each factor is changed in six of them, each two together in three.
Sizes are clouds with failures as rare as Meta reports, at several epsilons. Priced cells are what optional marginals
leave of an epsilon of 1, such as votes. Early cells are looked at before the year is over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

import msgspec
import numpy as np

from federation.protocol.causes import CAUSES, Domain
from provider_server.rounds.settings import PlanTable
from simulation.cloud.scenario import Scenario, load
from simulation.studies import learning
from simulation.studies.learning import Telling

NODE_DAYS = 12_577  # a week in the standard cloud
UNCOMMON, RARE = 20 / 1000, 6.5 / 1000  # failures per node-day; the second is what Meta reports
MISREPORTED, SELDOM = 0.2, 0.12
CARELESS = 3  # the tenant that runs on one context alone
POOR_LOGS, LOST = 0, 0.6  # the workload whose failures have no known reason, and how many of them
FEW_ANSWER = 0.6
EPSILONS = (0.5, 1.0, 2.0, 4.0, None)


@dataclass(frozen=True)
class Cell:
    """A kind of cloud: what its scenario changes, who answers and tells what, how much is seen, at which epsilon.

    It is looked at after a year, or after the rounds of so many `weeks`. With `half_twice`, every other tenant
    misreports twice as much as the others; with `poor_logs`, most reasons are unknown of one workload; with
    `unevenly_visible`, every third workload is seen twice as often. Pairs borrow from others that may share their
    defect, unless not `shared`.
    """

    changes: Mapping[str, object]
    scenario: str = "standard"
    epsilon: float | None = 1.0
    visible: float = 0.5
    answering: float = 1.0
    misreported: float = 0.0
    half_twice: bool = False
    careless: bool = False
    poor_logs: bool = False
    unevenly_visible: bool = False
    shared: bool = True
    weeks: int | None = None

    def played(self, *, quick: bool) -> Scenario:
        """Its scenario, small if `quick`."""
        changed = msgspec.structs.replace(load(self.scenario), windows=PlanTable().windows, **self.changes)
        return learning.small(changed) if quick else changed

    @property
    def is_foreseen(self) -> bool:
        """Whether releases tell all there is, and whoever knows rates and noise knows how they come about."""
        frail = "lease_frailty" in self.changes or "mismatch_blocks" in self.changes
        misled = bool(self.misreported or self.careless or self.poor_logs)
        return self.visible == 0.0 and self.epsilon is not None and self.answering == 1.0 and not (frail or misled)

    def telling(self, seed: int) -> Telling | None:
        """What a tenant writes down as the reason of a failure; None where each knows it."""
        if not (self.misreported or self.careless or self.poor_logs):
            return None
        rng = np.random.default_rng((seed, 1))
        script = next(slug for slug, cause in CAUSES.items() if cause.domain is Domain.SCRIPT)

        def told(tenant: int, workload: int, reason: str) -> str:
            own = CAUSES[reason].domain is Domain.INFRASTRUCTURE
            share = self.misreported * (2 if self.half_twice and tenant % 2 else 1)
            if share and own and rng.random() < share:
                return script
            if self.poor_logs and workload == POOR_LOGS and rng.random() < LOST:
                return "unknown"
            return "connection_error" if self.careless and tenant == CARELESS and not own else reason

        return told


def _at_rate(scenario: str, per_node_day: float) -> Mapping[str, object]:
    rates = load(scenario).failures_per_week
    return {"failures_per_week": MappingProxyType({**rates, Domain.INFRASTRUCTURE: NODE_DAYS * per_node_day})}


X3: Mapping[str, object] = MappingProxyType({"mismatch_factor": 3.0})
EFFECTS: Mapping[str, Mapping[str, object]] = MappingProxyType({"x8": MappingProxyType({}), "x3": X3})
ANYWHERE: Mapping[str, object] = MappingProxyType({"mismatch_exposure": (0.0, 1e9)})
BLOCKS: Mapping[str, object] = MappingProxyType({**X3, "mismatch_blocks": 6, "mismatch_share": 0.005})
SAME: Mapping[str, object] = MappingProxyType({"versions_as_before": 1.0})
FRAIL: Mapping[str, object] = MappingProxyType({"lease_frailty": 1 / 0.3})

CELLS: Mapping[str, Callable[[], Cell]] = MappingProxyType(
    {
        "standard": lambda: Cell({}),
        "x3": lambda: Cell(X3),
        "x1_5": lambda: Cell({"mismatch_factor": 1.5}),
        "any_exposure": lambda: Cell(ANYWHERE),
        "frailty": lambda: Cell(FRAIL),
        "rate_20": lambda: Cell(_at_rate("standard", UNCOMMON)),
        "rate_6_5": lambda: Cell(_at_rate("standard", RARE)),
        "rate_6_5_visible_0": lambda: Cell(_at_rate("standard", RARE), visible=0.0),
        "attendance_60": lambda: Cell({}, answering=FEW_ANSWER),
        "misreported_20": lambda: Cell({}, epsilon=None, misreported=MISREPORTED),
        "misreported_by_tenant": lambda: Cell({}, epsilon=None, misreported=SELDOM, half_twice=True),
        "poor_logs": lambda: Cell({}, epsilon=None, poor_logs=True),
        "careless_tenant": lambda: Cell({"pinned_tenants": 1}, epsilon=None, careless=True),
        "visibility_by_workload": lambda: Cell({}, unevenly_visible=True),
        "visible_0": lambda: Cell({}, visible=0.0),
        "visible_30": lambda: Cell({}, visible=0.3),
        "x3_visible_0": lambda: Cell(X3, visible=0.0),
        "null": lambda: Cell({"mismatch_share": 0.0, "mismatch_minimum": 0}),
        "blocks": lambda: Cell(BLOCKS, visible=0.0),
        "blocks_alone": lambda: Cell(BLOCKS, visible=0.0, shared=False),
        "regional": lambda: Cell({}, "regional"),
        "regional_visible_0": lambda: Cell({}, "regional", visible=0.0),
        "regional_visible_0_honest_90": lambda: Cell({"colluding_share": 0.1}, "regional", visible=0.0),
        "same_versions": lambda: Cell(SAME),
        "same_versions_visible_0": lambda: Cell(SAME, visible=0.0),
        "same_versions_visible_30": lambda: Cell(SAME, visible=0.3),
        "same_versions_uneven": lambda: Cell(SAME, unevenly_visible=True),
        "same_versions_frailty": lambda: Cell({**SAME, **FRAIL}),
        "exact_counts": lambda: Cell({}, epsilon=None, visible=0.0),
        "hyperscale": lambda: Cell({}, "hyperscale"),
        "hyperscale_x3": lambda: Cell(X3, "hyperscale"),
    }
)


def _corner(run: int) -> Cell:
    """A run of the design: the last has no factor changed, the others are turns of one row."""
    row = "++-+++---+-"
    changed = [run < len(row) and row[(factor - run) % len(row)] == "+" for factor in range(7)]
    small, rare, anywhere, frail, away, mistaken, unseen = changed
    changes = {
        **(X3 if small else {}),
        **(_at_rate("standard", RARE) if rare else {}),
        **(ANYWHERE if anywhere else {}),
        **(FRAIL if frail else {}),
    }
    return Cell(
        changes,
        visible=0.0 if unseen else 0.5,
        answering=FEW_ANSWER if away else 1.0,
        misreported=MISREPORTED if mistaken else 0.0,
    )


CORNERS: Mapping[str, Callable[[], Cell]] = MappingProxyType(
    {f"corner_{run + 1}": partial(_corner, run) for run in range(12)}
)


def size_name(scenario: str, effect: str, epsilon: float | None) -> str:
    """What a cloud of that size, effect and epsilon is called."""
    return f"{scenario}_{effect}_{'exact' if epsilon is None else f'epsilon_{epsilon:g}'}"


def _sized(scenario: str, changes: Mapping[str, object], epsilon: float | None) -> Cell:
    rare = _at_rate(scenario, RARE) if scenario == "standard" else {}
    return Cell({**rare, **changes}, scenario, epsilon)


SIZED: Mapping[str, Callable[[], Cell]] = MappingProxyType(
    {
        size_name(scenario, effect, epsilon): partial(_sized, scenario, changes, epsilon)
        for scenario in ("regional", "standard", "hyperscale")
        for effect, changes in EFFECTS.items()
        for epsilon in EPSILONS
    }
)


def _priced(name: str, share: float) -> Cell:
    """What is left for the tables of failures where optional marginals get a share of the budget."""
    return replace(CELLS[name](), epsilon=1 - share)


PRICED: Mapping[str, Callable[[], Cell]] = MappingProxyType(
    {
        f"{name}_less_{percent}": partial(_priced, name, percent / 100)
        for name in ("standard", "x3", "x3_visible_0", "regional_visible_0")
        for percent in (10, 20, 50)
    }
)


def _early(name: str, weeks: int) -> Cell:
    return replace(CELLS[name](), weeks=weeks)


EARLY: Mapping[str, Callable[[], Cell]] = MappingProxyType(
    {
        f"{name}_week_{weeks}": partial(_early, name, weeks)
        for name in ("standard", "visible_0", "regional", "regional_visible_0")
        for weeks in PlanTable().windows[:-1]
    }
)
EVERY: Mapping[str, Callable[[], Cell]] = MappingProxyType({**CELLS, **CORNERS, **SIZED, **PRICED, **EARLY})
