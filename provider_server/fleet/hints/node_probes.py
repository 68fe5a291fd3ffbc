"""Which of the provider's nodes to test, by what and when, within a budget of node-hours: for its scheduler.

    nodes.json, repairs ─ node_risk ─▶ hazards ─────┐
    suspicions, tests that ran, leases ─────────────┴─ probes ─▶ probe_plan.plan ─▶ ProbeVisit × n

Tests are those of `pharoah-tenant confirm test` for one kind of hardware, and `all` for every kind. A test finds the
share of defects that is of its kind (`SHARES`, as `confirm` assumes them); where telemetry suspects a kind, that kind
is `SUSPECTED` times likelier. Pure. It names no tenant.

Not promised: shares and minutes are assumed, and no test finds every defect of its kind.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

import numpy as np

from crypto.errors import PharoahError
from federation.base.clock import SECONDS_PER_HOUR
from provider_server.fleet.analysis.probe_plan import Probe, ProbeState, plan
from provider_server.fleet.hints.node_risk import NodeRisk

PROBES = (
    Probe("all", 15.0),
    Probe("compute", 0.5),
    Probe("memory", 0.5),
    Probe("host_link", 0.5),
    Probe("interconnect", 1.0),
    Probe("storage", 1.0),
    Probe("host", 0.5),
)
SHARES = {"compute": 0.24, "memory": 0.18, "host_link": 0.10, "interconnect": 0.20, "storage": 0.06, "host": 0.07}
SUSPECTED = 12.0
BUDGET, HOURS = 0.01, 6  # share of node-hours for tests, and hours of a plan, where nobody says others
PER_NODE_HOURS = 1000.0


class ProbeVisit(TypedDict):
    """A test of a node, to begin in this hour; `worth` is that of its minutes, 1 for the last that the budget pays."""

    node: str
    test: str
    in_hours: int
    minutes: float
    worth: float
    reason: str


def probes(
    nodes: Sequence[NodeRisk],
    suspicions: Mapping[str, str],
    tested_h: Mapping[tuple[str, str], float],
    busy_until_h: Mapping[str, float],
    now_h: float,
    hours: int,
    budget: float,
) -> list[ProbeVisit]:
    """The plan for the next hours, most urgent first. A node is left alone until its lease ends, or while silent."""
    rate = np.array([one.failures_per_1000_node_hours / PER_NODE_HOURS if one.is_heard else 0.0 for one in nodes])
    ends = np.array([busy_until_h.get(one.node, 0.0) for one in nodes])
    state = ProbeState(
        rate=np.repeat(rate[:, None], hours, axis=1),
        share=np.array([_shares(suspicions.get(one.node, "")) for one in nodes]).reshape(-1, len(PROBES)),
        since_h=np.array([_since(one.node, tested_h, now_h) for one in nodes]).reshape(-1, len(PROBES)),
        cost=np.ones(len(nodes)),
        idle=(now_h + np.arange(hours) >= ends[:, None]).astype(np.float64),
    )
    return [
        ProbeVisit(
            node=nodes[visit.node].node,
            test=PROBES[visit.test].name,
            in_hours=visit.hour,
            minutes=visit.minutes,
            worth=round(visit.worth, 2),
            reason=nodes[visit.node].reason,
        )
        for visit in plan(state, PROBES, budget)
    ]


def _shares(suspicion: str) -> list[float]:
    """What each test finds of a node's defects; `all` finds what any of them does."""
    weights = {kind: share * (SUSPECTED if kind == suspicion else 1.0) for kind, share in SHARES.items()}
    nothing_finds = 1.0 - sum(SHARES.values())
    total = sum(weights.values()) + nothing_finds
    shares = {kind: weight / total for kind, weight in weights.items()}
    return [sum(shares.values()) if probe.name == "all" else shares[probe.name] for probe in PROBES]


def _since(node: str, tested_h: Mapping[tuple[str, str], float], now_h: float) -> Iterable[float]:
    """Hours since each test; `all` counts as each of them."""
    everything = tested_h.get((node, "all"), -np.inf)
    return [now_h - max(everything, tested_h.get((node, probe.name), -np.inf)) for probe in PROBES]


# ---- files of tests --------------------------------------------------------------------------------------------------
#
#     node,test,at
#     n042,memory,2026-11-24T03:10:00Z
#
# Guarantee: a row that cannot be read is an error that names it; rows may come in any order, and other columns too.


COLUMNS = ("node", "test", "at")


class UnusableTests(PharoahError):
    """A file of tests that ran cannot be read."""

    default_hint = "write a CSV file with a header and the columns node, test and at, as 2026-11-24T03:10:00Z"


def read_tests(path: Path) -> dict[tuple[str, str], float]:
    """The hour since 1970 at which each test of each node ran last."""
    newest: dict[tuple[str, str], float] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
                raise UnusableTests(f"{path} has no column {', '.join(missing)}")
            for number, row in enumerate(rows, start=2):
                key = row["node"] or "", row["test"] or ""
                newest[key] = max(newest.get(key, 0.0), _hour(row["at"] or "", path, number))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UnusableTests(f"{path} cannot be read: {error}") from error
    return newest


def _hour(text: str, path: Path, number: int) -> float:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UnusableTests(f"{path}, line {number}: no time: {text[:40]!r}") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() / SECONDS_PER_HOUR
