"""Which nodes are alike: a map of nodes by context, and what each context is."""

import math
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from federation.protocol.life_table import Floats
from provider_server.reporting.figures.drawing import (
    CARD,
    KINDS,
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
    printable,
    styled,
)

MOST_LISTED, MOST_NODES = 12, 3000


@styled()
def context_map(
    positions: ArrayLike,
    numbers: Sequence[int],
    descriptions: Mapping[int, str],
    rates: Mapping[int, float],
    names: Mapping[str, str] = NAMELESS,
    *,
    intervals: Mapping[int, tuple[float, float]] | None = None,
) -> Figure:
    """Nodes at `positions` (N, 2), those of one context alike; a list below says what each is, and how often it fails.

    `numbers` (N,) are the contexts of the nodes, negative for none. `rates` and the `intervals` of contexts are in
    failures per 1,000 node-hours. `names` may have a name for a number, as "3".
    """
    places, of = np.asarray(positions, dtype=np.float64).reshape(-1, 2), np.asarray(numbers, dtype=np.intp)
    known = np.isfinite(places).all(axis=1)
    dropped = left_out_note(int((~known).sum()), "node", "without a finite position")
    places, of = places[known], of[known]
    if not len(places):
        return nothing_to_show("Contexts of nodes", dropped)
    often = {number: _often(number, rates, intervals or {}) for number in np.unique(of[of >= 0]).tolist()}
    contexts = sorted(often, key=lambda number: (not often[number], -rates.get(number, 0.0)))
    listed, step = contexts[:MOST_LISTED], -(-len(places) // MOST_NODES)
    texts = {number: _description(number, descriptions, names) for number in listed}
    notes = (
        "Similar nodes lie close together; the axes have no unit.",
        f"{(of < 0).sum():,} nodes in no context are crosses." if (of < 0).any() else "",
        f"One in {step} nodes of each context is drawn." if step > 1 else "",
        left_out_note(len(contexts) - len(listed), "context", "with lower rates", "in the list"),
        dropped,
    )
    told = "; ".join(f"{number}: {texts[number]}, {often[number] or _UNKNOWN}" for number in listed)
    height = 38.0 * len(listed)
    sheet = Sheet.of(_map_title(len(places), contexts, rates), 318 + height, notes, told)
    axes = sheet.axes(MARGIN, 8, WIDTH - 2 * MARGIN, 280)
    _draw_nodes(axes, places, of, contexts, step)
    _draw_badges(axes, listed, np.array([np.median(places[of == number], axis=0) for number in listed]).reshape(-1, 2))
    sheet.write(WIDTH - MARGIN, 296, "failures per 1,000 node-hours", ha="right", size=NOTE, color=SOFT)
    below = sheet.axes(MARGIN, 308, WIDTH - 2 * MARGIN, max(height, 1.0))
    below.set(xlim=(0, WIDTH - 2 * MARGIN), ylim=(max(height, 1.0), 0), xticks=[], yticks=[])
    for place, number in enumerate(listed):
        nodes = count_of(int((of == number).sum()), "node")
        _list_row(below, place, number, (texts[number], nodes, often[number] or _UNKNOWN))
    return sheet.figure


def _map_title(nodes: int, contexts: Sequence[int], rates: Mapping[int, float]) -> str:
    title, most = (
        f"{count_of(nodes, 'node')} in {count_of(len(contexts), 'context')}",
        rates.get(next(iter(contexts), -1), 0.0),
    )
    if most > 0 and math.isfinite(most):
        title += f"; context {contexts[0]} fails most, {plain(most)} times in 1,000 node-hours"
    return title


def _often(number: int, rates: Mapping[int, float], intervals: Mapping[int, tuple[float, float]]) -> str:
    """The rate of a context with its interval; nothing where it is not known."""
    rate, ends = rates.get(number, math.nan), intervals.get(number, (math.nan, math.nan))
    between = f" ({plain(ends[0])} – {plain(ends[1])})" if math.isfinite(sum(ends)) else ""
    return f"{plain(rate)}{between}" if math.isfinite(rate) else ""


def _description(number: int, descriptions: Mapping[int, str], names: Mapping[str, str]) -> str:
    """What there is to say of a context, on one line."""
    text = ": ".join(filter(None, (names.get(str(number)), descriptions.get(number))))
    return shorten(printable(text) or "not described", 46, placeholder=" …")


_UNKNOWN = "not known"


def _kind(place: int) -> dict[str, Any]:
    return {"color": KINDS[place % len(KINDS)], "marker": "os^Dv"[place // len(KINDS) % 5], "linestyle": ""}


def _draw_nodes(axes: Axes, places: Floats, of: NDArray[np.intp], contexts: Sequence[int], step: int) -> None:
    axes.set(xticks=[], yticks=[], facecolor=LIGHT["band"])
    axes.margins(0.08)
    axes.plot(*places[of < 0][::step].T, "x", color=SOFT, markersize=4)
    for place, number in enumerate(contexts):
        axes.plot(*places[of == number][::step].T, **_kind(place), markersize=5, markeredgewidth=0, alpha=0.75)


def _draw_badges(axes: Axes, numbers: Sequence[int], centres: Floats) -> None:
    """The numbers of contexts at their `centres` (n, 2), moved off each other."""
    low, high = (np.array(limits) for limits in zip(axes.get_xlim(), axes.get_ylim(), strict=True))
    points = np.array([WIDTH - 2 * MARGIN, 280.0])
    at, nudge = (centres - low) / (high - low) * points, np.arange(len(numbers))[:, None] * [0.01, 0.02]
    for _ in range(60):
        between = (at + nudge)[:, None] - (at + nudge)
        near = np.hypot(*between.transpose(2, 0, 1)) < 26
        at = (at + 0.2 * (near[..., None] * between).sum(axis=1)).clip(16, points - 16)
    for place, (number, (x, y)) in enumerate(zip(numbers, (low + at / points * (high - low)).tolist(), strict=True)):
        _badge(axes, x, y, number, place)


def _badge(axes: Axes, x: float, y: float, number: int, place: int) -> None:
    box = {"boxstyle": "round,pad=0.25", "facecolor": CARD, "edgecolor": _kind(place)["color"], "linewidth": 1.6}
    axes.text(x, y, str(number), ha="center", va="center", size=11, weight="bold", bbox=box)


def _list_row(axes: Axes, place: int, number: int, texts: tuple[str, str, str]) -> None:
    """One row of the list below the map: the description, how many nodes, and the rate."""
    middle, (description, nodes, rate) = 38.0 * place + 19, texts
    _badge(axes, 14, middle, number, place)
    axes.text(36, middle - 6, description, va="center", size=11)
    axes.plot(40, middle + 9, **_kind(place), markersize=6)
    axes.text(50, middle + 9, nodes, va="center", size=NOTE, color=SOFT)
    axes.text(WIDTH - 2 * MARGIN, middle + 9, rate, va="center", ha="right", size=11.5, weight="bold")
