"""Pictures of `bench field`: what size of cloud finds what at which epsilon, and what probabilities are worth."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from simulation.bench.field import FieldRow, FieldRows
from simulation.bench.field_cells import EFFECTS, EPSILONS, SIZED, size_name
from simulation.drawing import (
    INK,
    KINDS,
    MARGIN,
    NOTE,
    RATIOS,
    RULE,
    SOFT,
    WIDTH,
    Sheet,
    save,
    styled,
)

SHADES = RATIOS[2:]  # from grey, nothing found, to full colour, everything
SIZES = {"regional": "1,000 nodes", "standard": "1,800 nodes", "hyperscale": "12,500 nodes"}
ROW, LEFT = 30.0, 132.0
CROWDED = 0.08  # below this probability, points are too close for letters beside them


def draw(rows: FieldRows, folder: Path) -> list[Path]:
    """Writes the pictures that the rows make into an existing folder, and says which."""
    drawn = []
    if any(row.name in SIZED for row in rows.rows):
        save(found_by_size(rows.rows), path := folder / "found_by_size.svg")
        drawn.append(path)
    for row in rows.rows:
        if row.decisions:
            save(decision_curves(row), path := folder / f"decisions_{row.name}.svg")
            drawn.append(path)
    return drawn


@styled()
def found_by_size(rows: Sequence[FieldRow]) -> Figure:
    """How many of the planted pairs are called worse in a year, by the size of the cloud, the effect and epsilon."""
    of = {row.name: row for row in rows}
    lines = [(size, effect) for size in SIZES for effect in EFFECTS if size_name(size, effect, 1.0) in of]
    seeds = max(row.seeds for row in rows)
    notes = (
        "6.5 failures per 1,000 node-days, half of them seen by the provider itself.",
        f"Mean of {seeds} simulated cloud{'s' * (seeds > 1)} each; the last column has no noise.",
    )
    sheet = Sheet.of("Mismatches found in a year, in percent, by size of cloud", 44 + ROW * len(lines), notes)
    wide = (WIDTH - LEFT - MARGIN) / len(EPSILONS)
    axes = sheet.axes(LEFT, 34, WIDTH - LEFT - MARGIN, ROW * len(lines))
    axes.set(xlim=(0, len(EPSILONS)), ylim=(len(lines), 0), xticks=[], yticks=[])
    for across, epsilon in enumerate(EPSILONS):
        head = "exact" if epsilon is None else f"ε = {epsilon:g}"
        sheet.write(LEFT + (across + 0.5) * wide, 16, head, ha="center", size=11, color=SOFT)
        for down, (size, effect) in enumerate(lines):
            _found(axes, across, down, of.get(size_name(size, effect, epsilon)))
    for down, (size, effect) in enumerate(lines):
        sheet.write(MARGIN, 34 + (down + 0.5) * ROW, f"{SIZES[size]}, {effect[1:]}×", va="center", size=11)
    return sheet.figure


def _found(axes: Axes, across: int, down: int, row: FieldRow | None) -> None:
    """One cell: the share in colour and in letters."""
    share = None if row is None else row.worse_true / max(row.planted, 1)
    colour = "none" if share is None else SHADES[round(share * (len(SHADES) - 1))]
    axes.add_patch(Rectangle((across + 0.03, down + 0.05), 0.94, 0.9, facecolor=colour, edgecolor=RULE))
    said = "not run" if share is None else f"{100 * share:.0f}"
    axes.text(across + 0.5, down + 0.5, said, ha="center", va="center", size=12 if share is not None else NOTE)


@styled()
def decision_curves(row: FieldRow) -> Figure:
    """How reliable probabilities are, and what it is worth to move by them, in one kind of cloud."""
    best = max(one.net_benefit for one in row.decisions)
    title = f"{row.name}: who moves by probability saves up to {100 * best:.0f}% of what could be saved"
    notes = (
        "Above: share of pairs that are worse, by the probability that was said; numbers are pairs, low ones left out.",
        "Below: net benefit of moving off such pairs, as a share of that of who knows which are worse.",
        f"{row.seeds} simulated cloud{'s' * (row.seeds > 1)}.",
    )
    sheet = Sheet.of(title, 460, notes)
    axes = sheet.axes(50, 12, WIDTH - 50 - MARGIN, 180)
    axes.set(xlim=(-0.02, 1.04), ylim=(-0.04, 1.12), xlabel="probability of being worse that was said")
    axes.plot([0, 1], [0, 1], color=RULE, linewidth=1.2)
    axes.plot([one.said for one in row.reliability], [one.worse for one in row.reliability], "o", color=KINDS[0])
    for one in (one for one in row.reliability if one.said > CROWDED):
        look: dict[str, Any] = {"textcoords": "offset points", "size": NOTE, "color": SOFT}
        axes.annotate(f"{one.pairs:,}", (one.said, one.worse), (0, 6), **look)
    axes.grid(linewidth=0.8)
    below = sheet.axes(50, 240, WIDTH - 50 - MARGIN, 180)
    below.set(xlim=(0, 0.95), ylim=(-0.1, 1.05), xlabel="cost of a move, over what it saves")
    costs = [one.cost for one in row.decisions]
    below.plot(costs, [one.net_benefit for one in row.decisions], "o-", color=KINDS[0], label="by probability")
    below.plot(costs, [one.move_all for one in row.decisions], "s--", color=KINDS[1], label="move all")
    below.axhline(0.0, color=INK, linewidth=1.2)
    below.text(0.94, 0.02, "move nothing", ha="right", size=NOTE, color=SOFT)
    below.legend(frameon=False, fontsize=NOTE, loc=(0.12, 0.2))
    below.grid(linewidth=0.8)
    return sheet.figure
