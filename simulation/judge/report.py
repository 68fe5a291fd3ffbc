"""The report of a simulated run: one HTML page with pictures, which loads nothing and runs no script.

`write_report` takes the outcome of `pharoah-sim run` as plain JSON values. Missing or infinite values are shown as
"not available". Equal outcomes give equal bytes. Every picture has a description and a table with its numbers; its
colours are roles of the pages' `base.css`, so it follows the reader's light or dark scheme.

Not promised: privacy. A report shows planted truth and results without noise, which only a simulation has.

    >>> "A quiet month" in render({"title": "A quiet month", "rounds": 4})
    True
"""

import math
import os.path
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from rich.filesize import decimal

from federation.base.visible import visible
from federation.base.web.html import renderer
from federation.protocol.bundle import PairJudgement
from federation.protocol.life_table import Floats
from provider_server.program.pages.hazards import KNOWN_WITHIN, UNKNOWN

Row = Mapping[str, Any]
Draw = Callable[[Axes], None]

# ---- values for humans ---------------------------------------------------------------------------------------------

_MISSING = "not available"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TINY = 1e-3
_ERROR = "mean_abs_log_rate_error"
_SHARES = {
    "mismatch_gpu_hours_avoided_share": "avoided",
    "false_refusal_share": "false refusals",
    "warned_30min_share": "hints in time",
}


def _finite(value: object) -> float:
    """Whatever is not a finite number becomes NaN, which drawings leave out and texts call not available."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value and not _TINY <= abs(value) < 1e6:
        digits, exponent = f"{value:.2e}".split("e")
        return f"{float(digits):g} × 10{str(int(exponent)).translate(_RAISED)}".removeprefix("1 × ")
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _percent(share: float) -> str:
    return "> 99.9%" if 1 - _TINY < share < 1 else "< 0.1%" if 0 < share < _TINY else f"{100 * share:.3g}%"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


_FORMS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("probability", "hazard_interval_coverage"), _percent),
    **dict.fromkeys((f"impact_{share}" for share in _SHARES), _percent),
    **dict.fromkeys(("bytes", "bytes_per_tenant_round"), lambda size: decimal(round(size))),
    "seconds": _duration,
    # an error of logarithms is shown as the factor by which a rate is off
    **dict.fromkeys((_ERROR, f"hazard_{_ERROR}"), lambda error: f"× {_plain(math.exp(min(error, 700)))}"),
}


def _shown(row: Row, key: str) -> str:
    """The value of `key` as text."""
    value = row.get(key)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return _MISSING
    return _FORMS.get(key.removesuffix("_without_privacy"), _plain)(value)


def _counted(row: Row, key: str, noun: str) -> str:
    count, plural = _shown(row, key), "" if row.get(key) == 1 else "es" if noun.endswith("h") else "s"
    return f"{'an unknown number of' if count == _MISSING else count} {noun}{plural}"


_TABLES = {  # the columns; templates/report.html has their heads
    "mismatch": "workload_name context_name planted probability probability_without_privacy risk_ratio interval",
    "hazard": "context_name level band rate interval truth rate_without_privacy",
    "budget": "week epsilon limit",
    "group": "windows epsilon",
    "error_by_epsilon": "epsilon mean_abs_log_rate_error auroc",
    "stages": "stage seconds bytes",
}


def _rows(outcome: Row, table: str) -> list[dict[str, Any]]:
    """The rows of one table of the detail, with names and intervals; young ages and probable mismatches come first."""
    rows = [dict(row) for row in (outcome.get("detail") or {}).get(table) or ()]
    names = {kind: _names(outcome, kind) for kind in ("workload", "context")}
    for row in rows:
        row |= {f"{kind}_name": known[row[kind]] for kind, known in names.items() if kind in row}
        ends = [_shown(row, end) for end in ("low", "high")]
        row["interval"] = None if _MISSING in ends else " – ".join(ends)
        if table == "hazard" and not _is_known(row):
            row |= {"interval": UNKNOWN, "rate": UNKNOWN}
        start = re.search(r"\d+(\.\d+)?", str(row.get("band")))
        row["order"] = float(start[0]) if start else 0.0, -np.nan_to_num(_finite(row.get("probability")))
    return sorted(rows, key=lambda row: row["order"])


def _is_known(row: Row) -> bool:
    """Whether the interval of a rate is narrow enough for the rate to be shown, as on the provider's page."""
    return not _finite(row.get("high")) > KNOWN_WITHIN * _finite(row.get("low"))


def _names(outcome: Row, kind: str) -> list[str]:
    """The names of all workloads or contexts; a number for each that occurs without a name."""
    detail = outcome.get("detail") or {}
    used = [row[kind] for table in ("mismatch", "hazard") for row in detail.get(table) or () if kind in row]
    names = [visible(str(name)) for name in detail.get(f"{kind}s") or ()]
    return names + [f"{kind} {place}" for place in range(len(names), max(used, default=-1) + 1)]


def _impact(outcome: Row) -> dict[str, Any]:
    """The impact, and the same without privacy under names that end so."""
    impact = dict(outcome.get("impact") or {})
    return impact | {f"{key}_without_privacy": value for key, value in (impact.get("without_privacy") or {}).items()}


def _column(rows: Sequence[Row], key: str) -> Floats:
    return np.array([_finite(row.get(key)) for row in rows], dtype=np.float64)


def _tally(outcome: Row) -> dict[str, int]:
    """Planted pairs, those of them that are called worse, the others, and others that are: false alarms."""
    rows = _rows(outcome, "mismatch")
    planted = np.array([row.get("planted") is True for row in rows], dtype=bool)
    called = np.array([row.get("judgement") == PairJudgement.WORSE.value for row in rows], dtype=bool)
    kinds = {"planted": planted, "found": planted & called, "missed": planted & ~called, "alarms": ~planted & called}
    return {kind: int(pairs.sum()) for kind, pairs in kinds.items()}


def write_report(outcome: Row, path: Path) -> None:
    """Writes the report of `outcome` to `path`, which is replaced; OSError where that cannot be written."""
    path.write_text(render(outcome), encoding="utf-8", newline="\n")


def render(outcome: Row) -> str:
    """The page as text."""
    parts = {
        f"{part}_{key}": value for part in ("mismatch", "hazard") for key, value in (outcome.get(part) or {}).items()
    }
    parts |= {f"impact_{key}": value for key, value in _impact(outcome).items()}
    parts |= {f"{kind}s": len(_names(outcome, kind)) or None for kind in ("workload", "context")}
    shown = partial(_shown, {**outcome, **parts})
    tables = {
        table: [[_shown(row, key) for key in keys.split()] for row in _rows(outcome, table)]
        for table, keys in _TABLES.items()
    }
    with style.context(["default", _STYLE]):
        pictures = _pictures(outcome)
    levels = sorted({int(row["level"]) for row in _rows(outcome, "hazard")})
    given = {"shown": shown, "tables": tables, "pictures": pictures, "levels": levels, "tally": _tally(outcome)}
    return renderer("simulation.judge")("report", title=shown("title"), **given, **_words(outcome, parts))


def _words(outcome: Row, parts: Row) -> dict[str, str]:
    tally = _tally(outcome)
    called = f"{tally['found']} of {_counted(tally, 'planted', 'planted mismatch')} called worse"
    nothing = "no mismatch was planted" if _rows(outcome, "mismatch") else f"verdicts are {_MISSING}"
    alarms = _counted(tally, "alarms", "false alarm") if tally["alarms"] else "no false alarm"
    return {
        "dates": " · {from} to {to}".format_map(outcome) if {"from", "to"} <= outcome.keys() else "",
        "ran": f"{_counted(outcome, 'tenants', 'tenant')} ran {_counted(outcome, 'job_weeks', 'job-week')}",
        "in_rounds": _counted(outcome, "rounds", "round"),
        "verdict": f"{called if tally['planted'] else nothing}, with {alarms}",
        "kinds": _counted(parts, "contexts", "kind"),
    }


# ---- pictures ------------------------------------------------------------------------------------------------------

# Matplotlib wants colours where the page has roles: each stand-in becomes its role when a drawing enters the page.
_ROLES = ("currentColor", "var(--rule)", "var(--band)", "var(--accent)", *(f"var(--level-{n})" for n in range(5)))
_INK, _RULE, _BAND, _ACCENT, *_LEVELS = _STAND_INS = [f"#01010{n}" for n in range(len(_ROLES))]
_WIDTH = 380.0  # of every drawing; its letters are 12 high
_STYLE: dict[str, Any] = {
    "font.size": 12,
    "text.parse_math": False,  # a name with dollar signs is a name
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _INK),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size", "xtick.minor.size"), 0),
    "grid.color": _RULE,
    "axes.axisbelow": True,
    "axes.labelpad": 7,
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "svg.hashsalt": "pharoah",
}


def _pictures(outcome: Row) -> "dict[str, list[_Picture]]":
    """The figures of each section."""
    errors, hazards = _rows(outcome, "error_by_epsilon"), _rows(outcome, "hazard")
    for row in (plain := dict(outcome.get("hazard") or {}), *errors):
        row |= {f"off{end}": math.exp(min(_finite(row.get(_ERROR + end)), 700)) for end in ("", "_without_privacy")}
    private = f"With privacy, ε = {_shown(outcome, 'epsilon')}"
    panels = [_hazard_panel(outcome, hazards, band) for band in dict.fromkeys(row["band"] for row in hazards)]
    return {
        "mismatch": [
            _heat_map(outcome, "probability", private),
            _heat_map(outcome, "probability_without_privacy", "Without privacy"),
        ],
        "hazard": panels or [_picture("hazard", "Failure rates", "", None)],
        "budget": [
            _curve("budget", "ε spent per week", _rows(outcome, "budget"), "week epsilon", 0),
            _curve("group", "ε of a job that runs for several windows", _rows(outcome, "group"), "windows epsilon", 0),
        ],
        "trade": [
            _curve("error", "Mean error of rates, as a factor", errors, "epsilon off", 1, plain),
            _curve("ranking", "AUROC of the mismatches", errors, "epsilon auroc", 0.5, outcome.get("mismatch")),
        ],
        "impact": [_share_bars(_impact(outcome))],
        "cost": [_stage_bars(outcome, "seconds", "Time by stage"), _stage_bars(outcome, "bytes", "Bytes by stage")],
    }


@dataclass(frozen=True)
class _Picture:
    """A figure of the page, described by `alt`; no drawing means no data."""

    key: str
    caption: str
    alt: str
    height: int
    drawing: str | None
    width: int = int(_WIDTH)


def _picture(
    key: str, caption: str, alt: str, draw: Draw | None, height: int = 230, left: int = 46, base: int = 44
) -> _Picture:
    """`left` and `base` are the room for labels."""
    if draw is None:
        return _Picture(key, caption, alt, height, None)
    figure = Figure((_WIDTH / 72, height / 72))
    axes = figure.add_axes((left / _WIDTH, base / height, 1 - (left + 14) / _WIDTH, 1 - (base + 10) / height))
    axes.spines[:].set_visible(False)
    draw(axes)
    return _Picture(key, caption, alt, height, _drawing(figure, key))


def _drawing(figure: Figure, key: str) -> str:
    """What is inside the SVG element, with roles for colours and ids of its own, since a page holds many drawings."""
    figure.savefig(buffer := StringIO(), format="svg", transparent=True, metadata={"Date": None})
    inside = buffer.getvalue().partition("</metadata>")[2].rpartition("</svg>")[0]
    for colour, role in zip(_STAND_INS, _ROLES, strict=True):
        inside = inside.replace(f": {colour}", f": {role}")
    inside = re.sub(r'( id="|xlink:href="#|url\(#)', rf"\g<1>{key}-", inside).replace("xlink:href", "href")
    return re.sub(r"<!--.*?-->|\n\s*(?=<)", "", inside, flags=re.DOTALL)


def _short(names: Sequence[str], kind: str) -> tuple[str, list[str]]:
    """What all names begin with, and the names without it: "context" and 0, 1, 2; else `kind` and the names."""
    shared = re.sub(r"[^\s_/:-]*$", "", os.path.commonprefix(names))  # noqa: RUF071  # then cut to words
    rest = [name[len(shared) :] for name in names]
    return shared.strip(" _/:-") or kind, [name if len(name) <= 24 else f"{name[:11]}…{name[-12:]}" for name in rest]


def _log_axis(axes: Axes, values: Floats) -> None:
    values = values[values > 0]  # which NaN is not
    axes.set_xscale("log")
    low, high = (values.min() / 2.5, values.max() * 2.5) if values.size else (0.3, 3.0)
    axes.set_xlim(low, high)
    major = LogLocator(subs=(1.0, 3.0) if high < 500 * low else (1.0,))
    axes.xaxis.set(major_locator=major, minor_locator=NullLocator(), major_formatter="{x:g}")


def _heat_map(outcome: Row, key: str, caption: str) -> _Picture:
    rows = [row for row in _rows(outcome, "mismatch") if not math.isnan(_finite(row.get(key)))]
    (down, workloads), (across, contexts) = (_short(_names(outcome, kind), kind) for kind in ("workload", "context"))
    longest = max(map(len, contexts), default=0)
    turned = 7 * longest * len(contexts) > 290

    def draw(axes: Axes) -> None:
        centres = np.column_stack([_column(rows, "context"), _column(rows, "workload")])
        boxes = centres[:, None, :] + 0.46 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
        colours = [(_ACCENT, 0.09 + 0.91 * share) for share in _column(rows, key).clip(0, 1)]
        planted = [box for box, row in zip(boxes, rows, strict=True) if row.get("planted") is True]
        axes.add_collection(PolyCollection(list(boxes), facecolors=colours, linewidths=0))
        axes.add_collection(PolyCollection(planted, facecolors="none", edgecolors=_INK, linewidths=1.8))
        axes.set_xticks(range(len(contexts)), contexts, rotation=90 if turned else 0)
        axes.set_yticks(range(len(workloads)), workloads)
        axes.set(xlim=(-0.5, len(contexts) - 0.5), ylim=(len(workloads) - 0.5, -0.5), xlabel=across, ylabel=down)

    first = (f"{row['workload_name']} on {row['context_name']} ({_percent(row[key])})" for row in rows[:5])
    alt = f"Grid of {len(workloads)} workloads and {len(contexts)} contexts. Most probable: {'; '.join(first)}."
    left, base = 7 * max(map(len, workloads), default=0) + 30, 30 + 7 * longest if turned else 44
    return _picture(key, caption, alt, draw if rows else None, base + 10 + 16 * len(workloads), left, base)


def _hazard_panel(outcome: Row, every: Sequence[Row], band: str) -> _Picture:
    rows, levels = [row for row in every if row["band"] == band], sorted({row["level"] for row in every})
    kind, contexts = _short(_names(outcome, "context"), "context")

    def draw(axes: Axes) -> None:
        for place in range(0, len(contexts), 2):
            axes.axhspan(place - 0.5, place + 0.5, color=_BAND, linewidth=0)
        for place, level in enumerate(levels):
            _whiskers(axes, [row for row in rows if row["level"] == level], place, len(levels))
        _log_axis(axes, np.concatenate([_column(every, key) for key in ("rate", "truth", "rate_without_privacy")]))
        axes.grid(axis="x")
        axes.set_yticks(range(len(contexts)), contexts)
        axes.set(ylim=(len(contexts) - 0.5, -0.5), xlabel="failures per 1,000 node-hours", ylabel=kind)

    alt = f"{len(rows)} rates by context and build-up level; the table below has each with its interval and the truth."
    height, left = 58 + 14 * max(9, len(levels) * len(contexts)), 7 * max(map(len, contexts)) + 38
    return _picture(f"hazard-{every.index(rows[0])}", f"Age of the job: {band}", alt, draw, height, left)


def _whiskers(axes: Axes, rows: Sequence[Row], place: int, places: int) -> None:
    """One build-up level: the estimates with their intervals, the truth, and the estimates without privacy."""
    hue, y = _LEVELS[place % len(_LEVELS)], _column(rows, "context") + 0.9 * (place + 0.5) / places - 0.45
    known = np.array([_is_known(row) for row in rows], dtype=bool)
    axes.hlines(y[known], _column(rows, "low")[known], _column(rows, "high")[known], color=hue, linewidth=2)
    axes.plot(_column(rows, "rate_without_privacy"), y, "D", color=hue, markerfacecolor="none", markersize=6.5)
    axes.plot(_column(rows, "truth"), y, "|", color=_INK, markersize=11, markeredgewidth=2)
    axes.plot(_column(rows, "rate"), y, "o", color=hue, markersize=5)


def _curve(
    key: str, caption: str, rows: Sequence[Row], columns: str, floor: float, plain: Row | None = None
) -> _Picture:
    """The second of the `columns` over the first, with its limit; `plain` holds its level without privacy."""
    x, y = columns.split()
    known = [row for row in rows if math.isfinite(_finite(row.get(x)) + _finite(row.get(y)))]

    def draw(axes: Axes) -> None:
        across, up, limit = (_column(known, column) for column in (x, y, "limit"))
        axes.xaxis.set(major_locator=MaxNLocator(9, integer=True))
        axes.yaxis.set(major_locator=MaxNLocator(5, steps=[1, 2, 5, 10]), major_formatter="{x:g}")
        axes.grid(axis="y")
        if x == "week":
            axes.bar(across, up, color=_ACCENT, width=0.7)
        else:
            axes.plot(across, up, "o-", color=_ACCENT, linewidth=2, markersize=6)
        axes.hlines(limit, across - 0.5, across + 0.5, color=_INK, linewidth=2)
        axes.axhline(_finite((plain or {}).get(f"{y}_without_privacy")), color=_INK, linestyle=(0, (5, 4)))
        if x == "epsilon":
            _log_axis(axes, across)
            axes.set_xticks(across)
        axes.set(ylim=(min(floor, up.min()), None), xlabel="ε" if x == "epsilon" else x)

    alt = "; ".join(f"{_shown(row, y)} at {_shown(row, x)}" for row in known)
    return _picture(key, caption, alt, draw if known else None)


def _stage_bars(outcome: Row, key: str, caption: str) -> _Picture:
    rows = [row for row in _rows(outcome, "stages") if not math.isnan(_finite(row.get(key)))]

    def draw(axes: Axes) -> None:
        bars = axes.barh(range(len(rows)), _column(rows, key), color=_ACCENT, height=0.6)
        axes.bar_label(bars, [_shown(row, key) for row in rows], padding=6)
        axes.set_yticks(range(len(rows)), [str(row["stage"])[:14] for row in rows])
        axes.set(xlim=(0, 1.35 * max(_column(rows, key).max(), _TINY)), ylim=(len(rows) - 0.5, -0.5), xticks=[])

    alt = "; ".join(f"{row['stage']} {_shown(row, key)}" for row in rows)
    return _picture(key, caption, alt, draw if rows else None, height=30 + 27 * len(rows), left=86, base=10)


def _share_bars(impact: Row) -> _Picture:
    """What checks and hints did, with privacy as bars and without as marks; left out where nothing is known."""
    private, exact = (
        np.array([_finite(impact.get(f"{key}{end}")) for key in _SHARES]) for end in ("", "_without_privacy")
    )

    def draw(axes: Axes) -> None:
        axes.barh(range(len(private)), private, color=_ACCENT, height=0.6)
        axes.plot(exact, range(len(exact)), "D", color=_INK, markerfacecolor="none", markersize=8)
        axes.set_yticks(range(len(private)), list(_SHARES.values()))
        axes.grid(axis="x")
        axes.set(xlim=(-0.03, 1.03), ylim=(len(private) - 0.5, -0.5), xlabel="share")

    known = [f"{name} {_percent(share)}" for name, share in zip(_SHARES.values(), private, strict=True) if share >= 0]
    return _picture("impact", "Checks and hints", "; ".join(known), draw if known else None, height=150, left=118)
