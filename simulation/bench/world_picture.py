"""A picture of `bench world`: gaps of the fleet and of nodes, and recency after a repair, beside the trace."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from federation.protocol.life_table import Floats
from simulation.bench.world import Measured, WorldFigures, trace
from simulation.drawing import INK, KINDS, MARGIN, NOTE, SOFT, WIDTH, Sheet, save, styled

NAMES = {
    "exponential": "exponential fleet",
    "fitted": "fleet as fitted",
    "regional": "as shipped",
    "regional_histories": "with node_faults",
}
LEFT, HIGH = 44.0, 150.0


def draw(found: WorldFigures, drawn: Sequence[tuple[str, Measured]], trace_file: Path, file: Path) -> None:
    """Writes the picture; PictureNotSaved where it cannot be."""
    world, _ = trace(trace_file, found.half)
    save(_picture(found, drawn, world), file)


@styled()
def _picture(found: WorldFigures, drawn: Sequence[tuple[str, Measured]], world: Measured) -> Figure:
    notes = (
        f"Black: the {found.half} half of the trace of InfiniteHBD, 400 servers. Gaps are divided by their mean.",
        "Recency: share of hardware faults within so many days of a repair, over the share of node-days there.",
    )
    sheet = Sheet.of("Simulated faults of nodes beside a real fleet's", 3 * (HIGH + 48), notes)
    for place, (kind, title) in enumerate(
        (("fleet", "gaps between faults"), ("node", "gaps from repair to next fault"))
    ):
        axes = sheet.axes(LEFT, place * (HIGH + 48), WIDTH - LEFT - MARGIN, HIGH)
        axes.set(xscale="log", xlim=(1e-3, 20), ylim=(0, 1.02), xlabel=f"{title}, over their mean")
        for colour, (name, said) in zip(KINDS, NAMES.items(), strict=False):
            own = [getattr(one.gaps, kind) for each, one in drawn if each == name]
            if own:
                _steps(axes, np.concatenate(own), said, colour, 1.4)
        _steps(axes, getattr(world.gaps, kind), "trace", INK, 2.2)
        axes.set_xticks([10.0**power for power in range(-3, 2)], ["0.001", "0.01", "0.1", "1", "10"])
        axes.grid(linewidth=0.8)
        if not place:
            axes.legend(frameon=False, fontsize=NOTE, loc="upper left")
    _bars(sheet.axes(110, 2 * (HIGH + 48), WIDTH - 110 - MARGIN, HIGH), found)
    return sheet.figure


def _steps(axes: Axes, values: Floats, label: str, colour: str, width: float) -> None:
    ordered = np.sort(np.maximum(values, 1e-3))
    axes.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", label=label, color=colour, lw=width)


def _bars(axes: Axes, found: WorldFigures) -> None:
    rows = [("trace", found.trace, INK)]
    rows += [(NAMES[one.name], one.mean, colour) for one, colour in zip(found.rows, KINDS, strict=False)]
    for place, (name, figures, colour) in enumerate(rows):
        for shift, key, shade in ((-0.2, "ratio_7_days", 1.0), (0.2, "ratio_30_days", 0.5)):
            axes.barh(place + shift, figures[key], 0.36, color=colour, alpha=shade)
            axes.text(figures[key] + 0.15, place + shift, f"{figures[key]:.1f}", va="center", size=NOTE, color=SOFT)
        axes.text(-0.3, place, name, ha="right", va="center", size=NOTE)
    axes.axvline(1.0, color=INK, linewidth=1.0)
    axes.set(
        ylim=(len(rows) - 0.4, -0.6),
        yticks=[],
        xlim=(0, 1.15 * max(one["ratio_7_days"] for _, one, _ in rows)),
        xlabel="recency: within 7 days (full), 30 days (pale)",
    )
