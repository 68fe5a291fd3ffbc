"""Hints as a provider would have given them, made of the provider's half of a two-sided case.

    kernel logs ─ gather ─▶ events ──┬─ of the job's own hosts, by organ ─▶ a HintFact for each organ
    telemetry.csv ─ rises ─▶ events ─┘

- An event of a kernel log is a hint of 10 times the usual hazard from when it happened, one of telemetry of 4 times: a
  counter of the build-up table that rose by level 1 within the window, or clocks that hardware held down.
- No hint: an Xid for which NVIDIA's catalogue sends to the application first, or that follows the end of a process; the
  out-of-memory killer within a job's own limit.
- The window of telemetry ends with the attempt, give or take some minutes. What was quiet for as many hours before that
  as end an episode was cleared. An event without a time counts half an hour before the end.

The numbers are assumed; they were chosen before the unseen half was scored.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from federation.base.clock import SECONDS_PER_HOUR
from provider_server.fleet.analysis import buildup
from provider_server.fleet.hints.episodes import HintLimits
from provider_server.fleet.hints.node_hazard import SUSPICIONS
from provider_server.fleet.telemetry.catalogue import METRICS, Metric, by_alias
from tenant_client.doctor.advice.clues import HintFact
from tenant_client.doctor.diagnosis.diagnose import gather
from tenant_client.doctor.sources import kernel_log
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.xid import XIDS

LOGGED, MEASURED = (5.0, 10.0), (2.0, 4.0)  # lower end and ratio
_UNTIMED_H = 0.5
_LEVEL_1 = 8  # units of the build-up table
_ORGANS = {
    "ecc_error": "memory",
    "device_lost": "host_link",
    "nvlink_error": "interconnect",
    "network_error": "interconnect",
    "node_failure": "host",
    "driver_mismatch": "host",
    "host_out_of_memory": "host",
    "os_error": "storage",
    "disk_full": "storage",
    "cuda_error": "compute",
    "gpu_page_fault": "compute",
}
_EVEN_AS_SYMPTOMS = ("os_error", "network_error")  # of a kernel: a server or a link is away
_LOST = 79
_OF_APPLICATIONS = ("CHECK_APP/CUDA", "WORKFLOW_XID_13", "WORKFLOW_XID_31")
_OWN_LIMIT = re.compile(r"Memory cgroup|CONSTRAINT_MEMCG")
_HELD_DOWN = 0x8 | 0x40 | 0x80  # NVML: hardware slowdown, hardware thermal slowdown, hardware power brake
_SHORT = re.compile(r"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ")  # syslog's, without a year


@dataclass(frozen=True)
class _Event:
    organ: str
    ratios: tuple[float, float]
    host: str
    at_s: float | None


def hints_of(half: Path, log: str) -> tuple[HintFact, ...]:
    """One hint for each organ of the job's hosts, by the gravest of its events; `log` is the tenant's half as one text.

    The job's hosts are those that the log names; where it names none that the provider knows, all.
    """
    rows = list(_rows(half))
    end_s = max((at_s for at_s, *_ in rows), default=None)
    events = [*_logged(half, end_s), *_measured(rows)]
    named = {host for host in {node for _, node, *_ in rows} | {event.host for event in events} if host and host in log}
    events = [event for event in events if event.host in named or not named]
    organs = dict.fromkeys(event.organ for event in events)
    return tuple(_hint([event for event in events if event.organ == organ], end_s) for organ in organs)


def _hint(events: Iterable[_Event], end_s: float | None) -> HintFact:
    before_h = [(event, _hours_before(event, end_s)) for event in events]
    low, ratio = max(event.ratios for event, _ in before_h)
    began = max(hours for event, hours in before_h if event.ratios == (low, ratio))
    latest = min(hours for _, hours in before_h)
    return HintFact(before_h[0][0].organ, low, ratio, began, is_cleared=latest > HintLimits().calm_h)


def _hours_before(event: _Event, end_s: float | None) -> float:
    return _UNTIMED_H if event.at_s is None or end_s is None else (end_s - event.at_s) / SECONDS_PER_HOUR


# ---- kernel logs -----------------------------------------------------------------------------------------------------


def _logged(half: Path, end_s: float | None) -> Iterator[_Event]:
    for seen in gather([half]).evidence:
        organ = _organ(seen) if seen.source == kernel_log.SOURCE else ""
        if organ:
            yield _Event(organ, LOGGED, seen.host, seen.at_s if seen.at_s is not None else _of_year(seen.text, end_s))


def _organ(seen: Evidence) -> str:
    code = kernel_log.code_of(seen)
    if code is not None:
        return _organ_of_xid(code, seen)
    if _OWN_LIMIT.search(seen.text) or not (seen.role is Role.ROOT or seen.reason in _EVEN_AS_SYMPTOMS):
        return ""
    return _ORGANS.get(seen.reason, "")


def _organ_of_xid(code: int, seen: Evidence) -> str:
    known = XIDS.get(code)
    if known is None or seen.role is not Role.ROOT or known.investigate in _OF_APPLICATIONS:
        return ""
    return "host_link" if code == _LOST else _ORGANS.get(seen.reason, "")


def _of_year(text: str, end_s: float | None) -> float | None:
    """The time of a line of syslog, in the year of the end."""
    if end_s is None or not _SHORT.match(text):
        return None
    year = datetime.fromtimestamp(end_s, UTC).year
    return datetime.strptime(f"{year} {text[:15]}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC).timestamp()


# ---- telemetry -------------------------------------------------------------------------------------------------------

_Row = tuple[float, str, str, str, float]  # time, node, GPU, name, value


def _rows(half: Path) -> Iterator[_Row]:
    for file in sorted(half.rglob("*.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                yield _time(row["time"]), row["node"], row["gpu"], row["metric"], _number(row["value"])


def _time(text: str) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # a driver's version
        return float("nan")


def _measured(rows: Iterable[_Row]) -> Iterator[_Event]:
    owners, units = by_alias(METRICS), {signal.metric: signal.unit for signal in buildup.signals()}
    series: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for at_s, node, gpu, name, value in rows:
        series.setdefault((node, gpu, name), []).append((at_s, value))
    for (node, _, name), values in series.items():
        metric = owners.get(re.split(r"[\[{]", name, maxsplit=1)[0])
        found = _risen(metric, values, units) if metric else None
        if metric and found:
            organ = "compute" if metric.name not in SUSPICIONS else SUSPICIONS[metric.name].value
            yield _Event(organ, MEASURED, node, found)


def _risen(metric: Metric, values: list[tuple[float, float]], units: dict[str, float]) -> float | None:
    """When a counter had risen by level 1, or a clock was held down; None where neither is."""
    if metric.name == "clock_event_reasons":
        return next((at_s for at_s, value in values if value == value and int(value) & _HELD_DOWN), None)
    if metric.name not in SUSPICIONS or metric.kind.value != "counter":
        return None
    (_, first), factor = values[0], next(iter(metric.names.values()))
    return next((at_s for at_s, value in values if (value - first) * factor >= _LEVEL_1 * units[metric.name]), None)
