"""What `nodes recipe --missing` shows: known metrics that the Prometheus of the settings lacks, and what that costs."""

from collections.abc import Iterator, Mapping, Set
from itertools import groupby
from pathlib import Path
from typing import TypedDict

from provider_server.fleet.analysis.buildup import signals
from provider_server.fleet.analysis.fleet_events import HARDWARE_XIDS
from provider_server.fleet.telemetry import exporters
from provider_server.fleet.telemetry.catalogue import BY_CODE
from provider_server.fleet.telemetry.recipe import Ingredient, load as load_recipe
from provider_server.fleet.telemetry.samples import HOUR_S
from provider_server.program.verbs.console import nothing_yet, print_rows
from provider_server.program.verbs.feed import prometheus_of
from provider_server.rounds import home as homes


class MissingRow(TypedDict):
    """A missing metric. `failure`, `wear`: what is not seen without it; `worth`: by the recipe in the settings."""

    metric: str
    names: list[str]
    failure: str | None
    wear: str | None
    worth: str | None
    told_by: list[str]


class ExporterRow(TypedDict):
    """An exporter that was found, how many metrics it is known to tell, and those that are missing."""

    exporter: str
    version: str
    known: int
    missing: list[MissingRow]


def show(home: Path, hours: tuple[int, int], *, as_json: bool) -> None:
    """Prints what is missing by exporter in [start, end); exit 3 where no known exporter is found."""
    settings = homes.settings_of(home).telemetry
    judged = load_recipe(Path(settings.recipe)).metrics if settings.recipe else {}
    present = prometheus_of(settings).names(float(HOUR_S * hours[0]), float(HOUR_S * hours[1]))
    rows = list(exporter_rows(present, judged))
    if not rows:
        raise nothing_yet(f"no exporter that is known: {', '.join(exporters.TABLE)} (docs/nodes.md)")
    print_rows(rows, _lines, as_json=as_json)


def exporter_rows(present: Set[str], judged: Mapping[str, Ingredient]) -> Iterator[ExporterRow]:
    """Every exporter whose names are among those that are present."""
    known = exporters.known()
    lacks = {name: list(rows) for name, rows in groupby(exporters.missing(present), lambda one: one.exporter.name)}
    for name in exporters.found(present):
        missing = [_row(one, judged) for one in lacks.get(name, [])]
        yield {
            "exporter": name,
            "version": exporters.TABLE[name].version,
            "known": len(known[name]),
            "missing": sorted(missing, key=lambda row: (row["failure"] is None, row["wear"] is None, row["metric"])),
        }


def _row(one: exporters.Missing, judged: Mapping[str, Ingredient]) -> MissingRow:
    kind = one.metric.failure
    by_code = f"{len(set(HARDWARE_XIDS.values()))} kinds of failure, by Xid codes"
    signal = next((signal for signal in signals() if signal.metric == one.metric.name), None)
    worth = judged[one.metric.name].worth if one.metric.name in judged else ""
    return {
        "metric": one.metric.name,
        "names": list(one.names),
        "failure": (by_code if kind == BY_CODE else kind) or None,
        "wear": f"{signal.words}: {signal.reason} ({signal.source})" if signal else None,
        "worth": worth or None,
        "told_by": list(one.told_by),
    }


def _lines(row: ExporterRow) -> list[str]:
    missing = row["missing"]
    costly = [one for one in missing if one["failure"] or one["wear"]]
    others = [one["metric"] for one in missing if one not in costly]
    head = (
        f"{row['exporter']}: {len(missing)} of {row['known']} known metrics are missing (names as of {row['version']})"
    )
    return [head, *map(_line, costly), *([f"  for contexts only: {', '.join(others)}"] if others else [])]


def _line(row: MissingRow) -> str:
    cost = f"failures are not seen: {row['failure']}" if row["failure"] else f"wear is not seen: {row['wear']}"
    worth = f"; {row['worth']}" if row["worth"] else ""
    told = f"; told by {', '.join(row['told_by'])}" if row["told_by"] else ""
    return f"  {row['metric']} ({row['names'][0]}): {cost}{worth}{told}"
