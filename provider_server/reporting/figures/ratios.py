"""How many times as often: ratios with their intervals, row by row, around one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from provider_server.reporting.figures.drawing import (
    CARD,
    INK,
    LIGHT,
    MARGIN,
    NOTE,
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

_AXES, _BREADTH, _ROW = 136.0, 174.0, 22.0  # where the axes begin, how broad they are, and a row, in points


@dataclass(frozen=True)
class Ratio:
    """What is called `label` fails `ratio` times as often as something, with its 95% interval."""

    label: str
    ratio: float
    low: float
    high: float

    @property
    def is_told(self) -> bool:
        """Whether the interval leaves out one."""
        return not self.low <= 1.0 <= self.high


@styled()
def ratio_plot(what: str, rows: Sequence[Ratio], *, beside: str = "the average", most: int = 30) -> Figure:
    """Rows in their order; of more than `most`, those that differ most surely. `what` they are, `beside` what."""
    known = [row for row in rows if are_finite(row, "ratio low high") and 0.0 < row.low <= row.ratio <= row.high]
    dropped = left_out_note(len(rows) - len(known), "row", "without a finite number or interval")
    if not known:
        return nothing_to_show(what, dropped)
    weightiest = sorted(known, key=_doubt)
    kept = [row for row in known if row in weightiest[:most]]
    told = [row for row in weightiest if row.is_told]
    title = f"{what}: none of {len(known):,} differs from {beside} beyond chance"
    if told:
        title = f"{what}: {told[0].label} fails {plain(told[0].ratio)} times as often as {beside}"
    notes = (
        "Line: 95% interval, an arrow where it continues; hollow if it contains 1. The scale is logarithmic.",
        f"Not shown: {count_of(len(known) - len(kept), 'row')} closer to 1." if len(known) > len(kept) else "",
        dropped,
    )
    said = "; ".join(f"{row.label}: {plain(row.ratio)} ({plain(row.low)} – {plain(row.high)})" for row in told[:5])
    height = _ROW * len(kept)
    sheet = Sheet.of(title, height + 46, notes, said)
    axes = sheet.axes(_AXES, 8, _BREADTH, height)
    axes.set(ylim=(height, 0), yticks=[])
    ends = np.array([value for row in kept for value in (row.low, row.high, 0.7, 1.4)])
    log_scale(axes, "x", limits_around(ends.clip(1 / 32, 64), 1.15), 2)
    axes.set_xlabel(f"times as often as {beside}", size=11)
    axes.axvline(1, color=INK, linewidth=1.2)
    axes.grid(axis="x", linewidth=0.8)
    for place, row in enumerate(kept):
        _row(axes, _ROW * (place + 0.5), row)
    return sheet.figure


def _doubt(row: Ratio) -> float:
    """The less, the surer the row differs from one: minus its distance in breadths of its interval."""
    return -abs(float(np.log(row.ratio))) / max(float(np.log(row.high / row.low)), 1e-9)


def _row(axes: Axes, down: float, row: Ratio) -> None:
    (least, most), where, colour = axes.get_xlim(), axes.get_yaxis_transform(), LIGHT["kind-0"]
    low, middle, high = (min(max(value, least), most) for value in (row.low, row.ratio, row.high))
    axes.plot([low, high], [down, down], color=colour, linewidth=2.4 if row.is_told else 1.4, solid_capstyle="butt")
    for end, beyond, arrow in ((low, row.low < least, "<"), (high, row.high > most, ">")):
        if beyond:
            axes.plot(end, down, arrow, color=colour, markersize=7)
    axes.plot(middle, down, "o", color=colour, markersize=7, markerfacecolor=colour if row.is_told else CARD)
    look: dict[str, Any] = {"va": "center", "transform": where, "size": NOTE}
    room = _AXES - MARGIN - 6
    axes.text((MARGIN - _AXES) / _BREADTH, down, short_name(row.label, {row.label: row.label}, room), **look)
    right = (WIDTH - MARGIN - _AXES) / _BREADTH
    axes.text(right, down, f"× {plain(row.ratio)}", ha="right", color=INK if row.is_told else SOFT, **look)
