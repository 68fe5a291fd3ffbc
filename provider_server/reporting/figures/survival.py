"""Nodes without a failure, and what a node has to expect at each build-up level: two panels of curves over a window.

Steps are where nodes fail; shades are 95% intervals of each hour by itself. Curves begin where the window does, at all
nodes and no failure, and go on to its end.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from federation.protocol.life_table import Floats
from provider_server.reporting.figures.drawing import (
    LEVELS,
    LIGHT,
    MARGIN,
    SOFT,
    WIDTH,
    Sheet,
    count_of,
    left_out_note,
    nothing_to_show,
    plain,
    styled,
)

if TYPE_CHECKING:
    from provider_server.analysis.fleet_curves import Curve

_LEFT, _BREADTH, _HEIGHT = 48.0, WIDTH - 48.0 - 30.0, 120.0
_GAP = 0.09  # of the panel's height: as near as the numbers of two levels may be


@styled()
def survival_curves(survival: "Curve", by_level: Mapping[int, "Curve"], hours: float) -> Figure:
    """Kaplan–Meier above, Nelson–Aalen for each level below, over a window of so many hours."""
    drawn = {level: curve for level, curve in by_level.items() if _is_finite(curve)}
    dropped = left_out_note(len(by_level) - len(drawn), "level", "without finite numbers")
    if not (len(survival.times) and _is_finite(survival)):
        return nothing_to_show("Nodes without a failure", dropped)
    value, low, high = (f"{100 * curve[-1]:.1f}%" for curve in (survival.value, survival.low, survival.high))
    title = f"{value} of nodes had no hardware failure in {plain(hours, 3)} hours"
    notes = (
        f"At the end {value} ({low} – {high}). Shaded: 95% intervals, for each hour separately.",
        "Below: for a node that stays at a level all the time. The number at a curve is its build-up level: how far a"
        " node is from healthy; the steeper, the more often it fails.",
        dropped,
    )
    told = f"{count_of(len(survival.times), 'hour')} in which nodes failed, {count_of(len(drawn), 'curve')} by level."
    sheet = Sheet.of(title, 2 * _HEIGHT + 104, notes, told)
    sheet.write(MARGIN, 4, "share of nodes without a failure", size=11, color=SOFT)
    upper = _panel(sheet, 24, hours)
    _step(upper, _whole(survival, 1.0, hours), LIGHT["kind-0"])
    upper.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    sheet.write(MARGIN, _HEIGHT + 50, "expected failures so far, by build-up level", size=11, color=SOFT)
    _levels(_panel(sheet, _HEIGHT + 70, hours), drawn, hours)
    sheet.write(_LEFT + _BREADTH / 2, 2 * _HEIGHT + 90, "hours since the window began", size=11, ha="center")
    return sheet.figure


def _is_finite(curve: "Curve") -> bool:
    return bool(np.isfinite([curve.times, curve.value, curve.low, curve.high]).all())


def _panel(sheet: Sheet, down: float, hours: float) -> Axes:
    axes = sheet.axes(_LEFT, down, _BREADTH, _HEIGHT)
    axes.set_xlim(0, hours)
    axes.locator_params(nbins=5)
    axes.tick_params(labelsize=11)
    axes.grid(axis="both", linewidth=0.8)
    return axes


def _whole(curve: "Curve", first: float, hours: float) -> Floats:
    """Times, values and bounds (4, points) from the window's beginning to its end."""
    points = np.stack([curve.times, curve.value, curve.low, curve.high])
    begin, end = np.array([[0.0], [first], [first], [first]]), points[:, -1:].copy()
    end[0] = max(hours, float(end[0, 0]))
    return np.concatenate([begin, points, end], axis=1)


def _step(axes: Axes, points: Floats, colour: str) -> None:
    times, value, low, high = points
    axes.fill_between(times, low, high, step="post", color=colour, alpha=0.18, linewidth=0)
    axes.step(times, value, where="post", color=colour, linewidth=2.2)


def _levels(axes: Axes, curves: Mapping[int, "Curve"], hours: float) -> None:
    """Curves up to twice the highest of them: an interval that goes on beyond hides no other curve."""
    highest = max((float(curve.value[-1]) for curve in curves.values()), default=0.5)
    axes.set_ylim(0, 2 * highest)
    lowest = 0.0
    for level, curve in sorted(curves.items(), key=lambda each: float(each[1].value[-1])):
        colour = LEVELS[min(max(level, 0), len(LEVELS) - 1)]
        _step(axes, _whole(curve, 0.0, hours), colour)
        place = max(float(curve.value[-1]), lowest)
        axes.text(1.02 * hours, place, str(level), color=colour, va="center", weight="bold", size=12)
        lowest = place + _GAP * 2 * highest
