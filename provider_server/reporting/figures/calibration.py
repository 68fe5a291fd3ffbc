"""Calibration: observed over predicted failures, by groups of predicted risk."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from federation.protocol.life_table import Floats
from provider_server.reporting.figures.drawing import (
    CARD,
    ERASER,
    HUGE,
    INK,
    LIGHT,
    MARGIN,
    NAMELESS,
    NOTE,
    SOFT,
    WIDTH,
    Sheet,
    count_of,
    left_out_note,
    nothing_to_show,
    plain,
    short_name,
    styled,
)

if TYPE_CHECKING:
    from provider_server.analysis.calibration import Calibration


@styled()
def calibration_plot(c: "Calibration", names: Mapping[str, str] = NAMELESS, *, unit: str = "failures") -> Figure:
    """Observed over predicted failures with the interval, for each group, by ascending predicted risk.

    `unit` is what was counted; `names` may have another word for it.
    """
    unit = short_name(unit, {unit: names.get(unit, unit)})
    every = np.array([c.predicted, c.observed, c.low, c.high], dtype=np.float64).reshape(4, -1)
    known = np.isfinite(every).all(axis=0) & (every[0] > 0)
    dropped = left_out_note(int((~known).sum()), "group", "without a finite number or interval")
    if not known.any():
        return nothing_to_show("Predicted and observed", dropped)
    predicted, observed, low, high = every[:, known]
    with np.errstate(over="ignore"):
        ratios = (every[1:, known] / predicted).clip(-HUGE, HUGE)
    held = (low <= predicted) & (predicted <= high)
    title = f"{held.sum()} of {count_of(len(held), 'interval')} contain the prediction"
    if math.isfinite(c.ratio_total):
        total = f"Per 100 {unit} predicted, {plain(100 * c.ratio_total)} occurred"
        title = f"{total}; {held.sum()} of {len(held)} intervals agree"
    interval = f"95% interval {c.slope_low:.2f} – {c.slope_high:.2f}"
    slope = f"Slope {c.slope:.2f}, {interval}; 1 is perfect, below 1 overconfident."
    size = " – ".join(dict.fromkeys((plain(predicted.min()), plain(predicted.max()))))
    notes = (
        slope if math.isfinite(c.slope + c.slope_low + c.slope_high) else "",
        f"Each group: {size} {unit} predicted. Lines: 95% intervals; hollow: it excludes the prediction.",
        dropped,
    )
    told = "; ".join(f"{plain(x)} predicted and {plain(y)} observed" for x, y in zip(predicted, observed, strict=True))
    sheet = Sheet.of(title, 274, notes, f"{told}.")
    sheet.write(MARGIN, 4, f"{unit} observed for each one predicted", size=11, color=SOFT)
    axes = sheet.axes(46, 28, WIDTH - 46 - MARGIN, 200)
    top = min(max(2.0, ratios[2].max()), max(4.0, 1.3 * ratios[0].max()))
    axes.set(xlim=(0.4, 1.27 * len(held) + 0.6), ylim=(0, 1.05 * top))
    axes.set_xticks([1, len(held)], ["lowest", "highest"] if len(held) > 1 else ["", ""])
    axes.tick_params(axis="x", pad=7)
    marks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, axes.get_ylim()[1])
    axes.set_yticks([mark for mark in marks if mark <= axes.get_ylim()[1]])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("groups by predicted risk", size=11, x=0.39)
    axes.grid(axis="y", linewidth=0.8)
    axes.axhline(1, color=INK, linewidth=1.2)
    axes.text(1.27 * len(held) + 0.6, 1, "as\npredicted", ha="right", va="center", size=NOTE, bbox=ERASER)
    _draw_points(axes, ratios, held)
    return sheet.figure


def _draw_points(axes: Axes, ratios: Floats, held: NDArray[np.bool_]) -> None:
    """Points with their intervals, from `ratios` (3, K) of what was observed, its low and its high end."""
    colour, across = LIGHT["kind-0"], np.arange(1, len(held) + 1)
    observed, low, high = np.maximum(ratios, 0.0)
    axes.vlines(across, low, high, color=colour, linewidth=2.4)
    for some, face in ((held, colour), (~held, CARD)):
        look: dict[str, Any] = {"markerfacecolor": face, "markersize": 8, "markeredgewidth": 2, "clip_on": False}
        axes.plot(across[some], observed[some], "o", color=colour, **look)
