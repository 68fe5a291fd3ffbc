"""Which alerts of ops/prometheus/alerts.yml were firing, and when, by a real Prometheus over what was scraped.

Scrapes of moved clocks are written into its storage afterwards, at the times of those clocks; between two of them a
metric is as it was at the first. So an alert that needs an hour is firing once a moved clock has left it an hour.
"""

import math
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests import needs

RULES = Path(__file__).resolve().parents[2] / "ops/prometheus/alerts.yml"
STEP_S = 600
HELD = "9d"  # a value stands until the next scrape, and clocks are moved by eight days at most
MOST_POINTS = 10_000  # of an answer; Prometheus refuses 11,000
UNITS_S = {"m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Fired:
    """An alert that was firing, in seconds since 1970."""

    alert: str
    from_s: float
    until_s: float


class Scrapes:
    """What a provider's metrics were, and when. A scrape of an earlier time than the last is left out."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._series: dict[str, list[str]] = {}

    def add(self, now: float, text: str | None) -> None:
        """One scrape; None where nobody answered."""
        if self.times and now <= self.times[-1]:
            return
        self.times.append(now)
        self._add("up", {}, 0.0 if text is None else 1.0, now)
        for family in text_string_to_metric_families(text or ""):
            for sample in family.samples:
                self._add(sample.name, sample.labels, sample.value, now)

    def _add(self, name: str, labels: Mapping[str, str], value: float, now: float) -> None:
        shown = ",".join(f'{key}="{of}"' for key, of in sorted({**labels, "job": "pharoah-provider"}.items()))
        self._series.setdefault(f"{name}{{{shown}}}", []).append(f"{value!r} {now:.3f}")

    def openmetrics(self) -> Iterator[str]:
        """The lines of a file for `promtool tsdb create-blocks-from openmetrics`."""
        for series in sorted(self._series):
            yield from (f"{series} {point}" for point in self._series[series])
        yield "# EOF"


def firing(scrapes: Scrapes) -> list[Fired]:
    """All alerts that were firing at some time, by name and time."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    with tempfile.TemporaryDirectory() as folder, _prometheus(scrapes, Path(folder)) as url:
        return sorted(
            (one for rule in rules for one in _fired(url, rule, scrapes.times[0], scrapes.times[-1])),
            key=lambda one: (one.from_s, one.alert),
        )


@contextmanager
def _prometheus(scrapes: Scrapes, folder: Path) -> Iterator[str]:
    written, blocks = folder / "scrapes", folder / "blocks"
    written.write_text("\n".join(scrapes.openmetrics()) + "\n")
    (folder / "none.yml").write_text("{}")
    make = [str(needs.program("promtool")), "tsdb", "create-blocks-from", "--max-block-duration=2160h", "openmetrics"]
    subprocess.run([*make, "--quiet", str(written), str(blocks)], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = f"127.0.0.1:{free.getsockname()[1]}"
    storing = [f"--storage.tsdb.path={blocks}", "--storage.tsdb.retention.time=100y", f"--query.lookback-delta={HELD}"]
    listening = [f"--config.file={folder / 'none.yml'}", f"--web.listen-address={at}", "--log.level=error"]
    with subprocess.Popen([str(needs.program("prometheus")), *storing, *listening]) as process:
        try:
            end_s = time.monotonic() + 60
            while not _is_ready(at):
                assert time.monotonic() < end_s, "Prometheus does not answer"
                assert process.poll() is None, "Prometheus has ended"
                time.sleep(0.2)
            yield f"http://{at}"
        finally:
            process.terminate()


def _is_ready(at: str) -> bool:
    try:
        return httpx.get(f"http://{at}/-/ready").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _fired(url: str, rule: Mapping[str, Any], from_s: float, until_s: float) -> Iterator[Fired]:
    """When one rule was firing: its expression held at each step for as long as the rule wants."""
    wanted_s = UNITS_S[rule["for"][-1]] * int(rule["for"][:-1]) if "for" in rule else 0
    held: dict[str, list[float]] = {}
    steps = math.ceil((until_s - from_s) / STEP_S)
    for first in range(0, steps, MOST_POINTS):
        start, end = (from_s + STEP_S * at for at in (first, min(first + MOST_POINTS, steps) - 1))
        asked = {"query": rule["expr"], "start": start, "end": end, "step": STEP_S}
        answer = httpx.post(f"{url}/api/v1/query_range", data=asked, timeout=120.0).raise_for_status().json()
        for series in answer["data"]["result"]:
            held.setdefault(str(series["metric"]), []).extend(at for at, _ in series["values"])
    for times in held.values():
        ends = [0, *(at + 1 for at, (one, next_) in enumerate(pairwise(times)) if next_ - one > STEP_S), len(times)]
        for since, until in pairwise(ends):
            if times[until - 1] - times[since] >= wanted_s:
                yield Fired(rule["alert"], times[since] + wanted_s, times[until - 1])
