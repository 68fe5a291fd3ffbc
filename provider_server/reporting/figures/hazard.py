"""How often hardware fails: one panel of curves by age for each build-up level or context, with intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from federation.protocol.life_table import PER_NODE_HOURS, Floats
from provider_server.reporting.figures.drawing import (
    LEVELS,
    MARGIN,
    NAMELESS,
    SOFT,
    WIDTH,
    Sheet,
    are_finite,
    count_of,
    left_out_note,
    limits_around,
    log_scale,
    nothing_to_show,
    plain,
    short_name,
    styled,
)

if TYPE_CHECKING:
    from provider_server.learning.findings import RateFinding

MOST_PANELS = 10


@styled()
def hazard_curves(
    rates: Sequence["RateFinding"],
    names: Mapping[str, str] = NAMELESS,
    *,
    edges_hours: Sequence[float],
    levels: Mapping[str, tuple[str, int]] | None = None,
) -> Figure:
    """A panel for each context, in it a step curve with its interval for each build-up level, the worst panel first.

    `edges_hours` are those of the plan's age bands. `levels` maps a context level to its context, which `names` names,
    and its build-up level; a context level that is not in it is a panel of its own.
    """
    bands = {str(band) for band in range(len(edges_hours) - 1)}
    kept = [each for each in rates if each.band in bands and each.rate > 0 and are_finite(each, "rate low high")]
    dropped = left_out_note(len(rates) - len(kept), "rate", "without a finite number, interval or age band")
    if not kept:
        return nothing_to_show("Failures by age", dropped)
    kept, known = sorted(kept, key=lambda each: -each.low), levels or {}  # the most that is sure comes first
    panels = _panels(kept, known)
    shown, rows = list(panels)[:MOST_PANELS], -(-min(len(panels), MOST_PANELS) // 2)
    title, most = _highest(kept[0], known, names, edges_hours)
    numbered = "The number at a curve is its build-up level: how far nodes are from healthy."
    rest = left_out_note(len(panels) - len(shown), "context", "with lower rates")
    notes = (f"{most} Shaded: 95% intervals. Both scales are logarithmic.", numbered if known else "", rest, dropped)
    sheet = Sheet.of(title, 46 + 140.0 * rows, notes, f"{count_of(len(shown), 'panel')} of rates by age.")
    sheet.write(MARGIN, 4, "failures per 1,000 node-hours", size=11, color=SOFT)
    limits = limits_around(np.array([PER_NODE_HOURS * each.rate for each in kept]), 2.5)
    for place, context in enumerate(shown):
        axes = sheet.axes(48 + 172 * (place % 2), 44 + 140 * (place // 2), 142, 104)
        axes.set_title(short_name(context, names, 120), loc="left", fontsize=12, weight="bold", pad=5)
        _age_axis(axes, edges_hours)
        log_scale(axes, "y", limits)
        axes.tick_params(labelleft=place % 2 == 0, labelsize=11)
        _draw_curves(axes, panels[context], edges_hours, numbered=bool(known))
    sheet.write(WIDTH / 2, 28 + 140 * rows, "age of the job", size=11, ha="center")
    return sheet.figure


def _panels(
    rates: Iterable["RateFinding"], levels: Mapping[str, tuple[str, int]]
) -> dict[str, dict[int, list["RateFinding"]]]:
    """The rates by context and build-up level, in the order of contexts in `rates`."""
    panels: dict[str, dict[int, list[RateFinding]]] = {}
    for each in rates:
        context, level = levels.get(each.context_level, (each.context_level, 0))
        panels.setdefault(context, {}).setdefault(level, []).append(each)
    return panels


def _highest(
    rate: "RateFinding",
    levels: Mapping[str, tuple[str, int]],
    names: Mapping[str, str],
    edges_hours: Sequence[float],
) -> tuple[str, str]:
    """What is said of the highest rate: in the title, and below the picture."""
    context, level = levels.get(rate.context_level, (rate.context_level, None))
    middle, low, high = (plain(PER_NODE_HOURS * value) for value in (rate.rate, rate.low, rate.high))
    first, last = (_age(edges_hours[int(rate.band) + end]) for end in (0, 1))
    ages = f"above {first}" if int(rate.band) == len(edges_hours) - 2 else f"{first} – {last}"
    title = f"{short_name(context, names)} fails most: {middle} times in 1,000 node-hours at age {ages}"
    return title, f"Highest rate{'' if level is None else f', at build-up level {level}'}: {middle} ({low} – {high})."


def _age(hours: float) -> str:
    return f"{plain(hours / 24)} d" if hours >= 24 else f"{plain(hours)} h" if hours else "0"


def _drawn_edges(edges_hours: Sequence[float]) -> Floats:
    """Edges for a logarithmic axis, which has no 0 and no end: the outer bands are as wide as the others at most."""
    edges = np.array(edges_hours, dtype=np.float64)
    if len(edges) > 2:
        step = float(np.exp(np.mean(np.log(edges[2:-1] / edges[1:-2])))) if len(edges) > 3 else 8.0
        edges[0], edges[-1] = max(edges[0], edges[1] / step), min(edges[-1], edges[-2] * step)
    else:
        edges[0] = max(edges[0], edges[1] / 100)
    return edges


def _age_axis(axes: Axes, edges_hours: Sequence[float]) -> None:
    edges = _drawn_edges(edges_hours)
    axes.set(xscale="log", xlim=(edges[0], edges[-1]))
    axes.set_xticks(edges[:-1], [_age(hours) for hours in edges_hours[:-1]])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="both", linewidth=0.8)


def _draw_curves(
    axes: Axes, curves: Mapping[int, Sequence["RateFinding"]], edges_hours: Sequence[float], *, numbered: bool
) -> None:
    edges, ends = _drawn_edges(edges_hours), {}
    for level, rates in sorted(curves.items()):
        middle, low, high = np.full((3, len(edges) - 1), math.nan)
        for each in rates:
            middle[int(each.band)], low[int(each.band)], high[int(each.band)] = each.rate, each.low, each.high
        colour = LEVELS[min(max(level, 0), len(LEVELS) - 1)]
        low, middle, high = (PER_NODE_HOURS * value for value in (np.maximum(low, 1e-300), middle, high))
        axes.stairs(high, edges, baseline=low, fill=True, color=colour, alpha=0.18, linewidth=0)
        axes.stairs(middle, edges, baseline=None, color=colour, linewidth=2.2)
        ends[level] = float(np.log(middle[np.isfinite(middle)][-1])), colour
    span = float(np.diff(np.log(axes.get_ylim()))[0])
    places = np.exp(_apart(np.array([end for end, _ in ends.values()]), 0.12 * span))
    for level, place in zip(ends if numbered else (), places, strict=False):
        axes.text(edges[-1] * 1.08, place, str(level), color=ends[level][1], va="center", weight="bold", size=12)


def _apart(values: Floats, gap: float) -> Floats:
    """The values (n,), moved as little as it takes to be `gap` from each other."""
    order = np.argsort(values, kind="stable")
    steps, moved = gap * np.arange(len(values)), np.empty(len(values))
    lower, upper = (np.maximum.accumulate(values[order] - steps), np.minimum.accumulate((values[order] - steps)[::-1]))
    moved[order] = (lower + upper[::-1]) / 2 + steps
    return moved
