"""Which workloads fail where: a matrix of ratios, and a forest plot of the most probable pairs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from provider_server.reporting.figures.drawing import (
    ALARM,
    CARD,
    ERASER,
    INK,
    LIGHT,
    MARGIN,
    NAMELESS,
    NOTE,
    RATIOS,
    SOFT,
    WIDTH,
    Sheet,
    are_finite,
    breadth,
    count_of,
    left_out_note,
    limits_around,
    log_scale,
    natural,
    nothing_to_show,
    plain,
    short_name,
    styled,
)

MOST_ROWS, MOST_CONTEXTS = 25, 10


class Pair(Protocol):
    """A workload on a context, and what was found of both."""

    @property
    def workload(self) -> str:
        """Its token."""

    @property
    def context(self) -> str:
        """Its token."""

    @property
    def probability_worse(self) -> float:
        """Of failing more often than both explain."""

    @property
    def risk_ratio(self) -> float:
        """Failures over those that both explain."""

    @property
    def low(self) -> float:
        """Of the ratio's 95% interval."""

    @property
    def high(self) -> float:
        """Of the ratio's 95% interval."""

    @property
    def expected_failures(self) -> float:
        """Those that both explain."""

    @property
    def judgement(self) -> str:
        """A key of `VERDICTS`."""


# ---- which workloads fail where --------------------------------------------------------------------------------------

# In the order of their weight: what a verdict is called, the colour and the form of its mark.
VERDICTS: Mapping[str, tuple[str, str, str]] = {
    "worse": ("worse than expected", ALARM, "o"),
    "confounded": ("confounded", LIGHT["kind-4"], "D"),
    "suspected": ("suspected", LIGHT["ratio-6"], "^"),
    "not worse": ("not worse", LIGHT["kind-0"], "s"),
    "too little evidence": ("too little evidence", SOFT, "o"),
}
_STEPS = (0.5, 0.8, 1.25, 2.0, 4.0, 8.0)  # of risk ratios: between two colours of the matrix
_NUMBERS = "probability_worse risk_ratio low high expected_failures"


def _judged(pairs: Iterable[Pair]) -> tuple[list[Pair], str]:
    """The pairs that can be shown, the most probable mismatches first, and a note about the others."""
    every = list(pairs)
    kept = [pair for pair in every if pair.risk_ratio > 0 and are_finite(pair, _NUMBERS)]
    return sorted(kept, key=_weight), left_out_note(
        len(every) - len(kept), "pair", "without a finite number or interval"
    )


def _weight(pair: Pair) -> tuple[int, float, float]:
    return list(VERDICTS).index(pair.judgement), -pair.probability_worse, -pair.risk_ratio


@styled()
def mismatch_matrix(pairs: Sequence[Pair], names: Mapping[str, str] = NAMELESS) -> Figure:
    """Workloads down and contexts across, the colour being the risk ratio; small and pale where evidence is thin."""
    kept, dropped = _judged(pairs)
    if not kept:
        return nothing_to_show("Workloads on contexts", dropped)
    workloads, every = (list(dict.fromkeys(getattr(pair, side) for pair in kept)) for side in ("workload", "context"))
    down = {workload: place for place, workload in enumerate(workloads[:MOST_ROWS])}
    contexts = sorted(every[:MOST_CONTEXTS], key=lambda context: natural(short_name(context, names)))
    across = {context: place for place, context in enumerate(contexts)}
    notes = (
        "A number is the risk ratio: how many times as often as workload and context explain. Blank: no jobs.",
        left_out_note(len(workloads) - len(down), "workload", "with less probable mismatches"),
        left_out_note(len(every) - len(across), "context", "with less probable mismatches"),
        dropped,
    )
    worse = [pair for pair in kept if pair.judgement == "worse"]
    told = "; ".join(f"{_called(pair, names)} {plain(pair.risk_ratio)} times" for pair in worse[:5])
    labels = [short_name(context, names, 110) for context in contexts]
    longest = 11 * max(map(breadth, labels))
    turned, height = longest > 225 / len(labels), 20.0 * len(down)
    over = 16 + longest if turned else 24
    sheet = Sheet.of(_worst(kept), over + height + 76, notes, told)
    axes = sheet.axes(124, over, WIDTH - 124 - MARGIN, height)
    axes.set(xlim=(-0.5, len(across) - 0.5), ylim=(len(down) - 0.5, -0.5))
    axes.set_xticks(range(len(across)), labels, rotation=90 if turned else 0, fontsize=11)
    axes.set_yticks(range(len(down)), [short_name(workload, names, 106) for workload in down], fontsize=11)
    axes.tick_params(labeltop=True, labelbottom=False)
    for pair in kept:
        if pair.workload in down and pair.context in across:
            _cell(axes, (across[pair.context], down[pair.workload]), pair.risk_ratio, pair.judgement)
    _key(sheet, over + height + 14)
    return sheet.figure


def _called(pair: Pair, names: Mapping[str, str]) -> str:
    return f"{short_name(pair.workload, names)} on {short_name(pair.context, names)}"


def _worst(kept: Sequence[Pair]) -> str:
    worse = sum(pair.judgement == "worse" for pair in kept)
    if not worse:
        return f"None of {count_of(len(kept), 'pair')} fails more often than expected"
    return f"{worse} of {count_of(len(kept), 'pair')} fail{'s' if worse == 1 else ''} more often than expected"


def _cell(axes: Axes, at: tuple[float, float], ratio: float, verdict: str) -> None:
    """One pair in a unit square around `at`."""
    thin = verdict == "too little evidence"
    half, colour = 0.16 if thin else 0.44, RATIOS[int(np.searchsorted(_STEPS, ratio))]
    place = (at[0] - half, at[1] - half)
    axes.add_patch(Rectangle(place, 2 * half, 2 * half, facecolor=colour, alpha=0.6 if thin else 1, linewidth=0))
    if verdict in ("worse", "confounded"):
        line = {"worse": "solid", "confounded": (0, (2, 1.5))}[verdict]
        axes.add_patch(Rectangle(place, 2 * half, 2 * half, fill=False, edgecolor=INK, linewidth=1.6, linestyle=line))
        look: dict[str, Any] = {"size": NOTE, "weight": "bold" if verdict == "worse" else "normal"}
        axes.text(*at, _times(ratio), ha="center", va="center_baseline", **look)


def _times(ratio: float) -> str:
    return plain(ratio) if ratio < 99.5 else "> 99"


def _key(sheet: Sheet, down: float) -> None:
    """What the colours and forms of the matrix mean, in a unit of 20 points."""
    axes = sheet.axes(MARGIN, down, WIDTH - 2 * MARGIN, 66)
    axes.set(xlim=(0, (WIDTH - 2 * MARGIN) / 20), ylim=(3.3, 0), xticks=[], yticks=[])
    for place, colour in enumerate(RATIOS):
        axes.add_patch(Rectangle((5.6 + 1.7 * place, 0), 1.7, 0.7, facecolor=colour, linewidth=0))
    for place, step in enumerate(_STEPS):
        axes.text(7.3 + 1.7 * place, 0.85, f"{step:g}", ha="center", va="top", size=NOTE, color=SOFT)
    axes.text(0, 0.4, "risk ratio", va="center", size=11)
    for left, verdict, text in (
        (0.5, "worse", "worse"),
        (5, "confounded", "confounded"),
        (10.8, "too little evidence", "too little evidence"),
    ):
        _cell(axes, (left, 2.5), 3.0, verdict)
        axes.text(left + 0.75, 2.5, text, va="center", size=11)


_LEFT, _RIGHT = -138 / 150, 1 + 64 / 150  # of a row, where its axes reach from 0 to 1


@styled()
def forest_plot(pairs: Sequence[Pair], names: Mapping[str, str] = NAMELESS, *, most: int = 20) -> Figure:
    """Risk ratios with their intervals, by verdict and then by size; at most so many, the weightiest."""
    kept, dropped = _judged(pairs)
    if not kept:
        return nothing_to_show("Risk ratios", dropped)
    rows = sorted(kept[: min(most, MOST_ROWS)], key=lambda pair: (_weight(pair)[0], -pair.risk_ratio))
    groups = {verdict: [pair for pair in rows if pair.judgement == verdict] for verdict in VERDICTS}
    left_out = [sum(pair.judgement == verdict for pair in kept[len(rows) :]) for verdict in VERDICTS]
    rest = ", ".join(f"{count:,} {verdict}" for verdict, count in zip(VERDICTS, left_out, strict=True) if count)
    title = f"{_called(rows[0], names)} fails {_times(rows[0].risk_ratio)} times as often as expected"
    title = title if rows[0].judgement == "worse" else _worst(kept)
    height = 30.0 * len(rows) + 28 * sum(map(bool, groups.values()))
    notes = (
        "Line: 95% interval, an arrow where it continues. The scale is logarithmic.",
        f"Not shown: {rest}." if rest else "",
        dropped,
    )
    told = "; ".join(f"{_called(pair, names)}: {_interval(pair)}, {VERDICTS[pair.judgement][0]}" for pair in rows[:5])
    sheet = Sheet.of(title, height + 46, notes, told)
    axes = sheet.axes(152, 8, 150, height)
    axes.set(ylim=(height, 0), yticks=[])
    ends = np.array([value for pair in rows for value in (pair.low, pair.high, 0.7, 3.0)])
    log_scale(axes, "x", limits_around(ends.clip(1 / 32, 64), 1.15), 2)
    axes.set_xlabel("times as often as expected", size=11)
    axes.axvline(1, color=INK, linewidth=1.2)
    axes.grid(axis="x", linewidth=0.8)
    for line, text in enumerate(("risk ratio", "failures expected")):
        sheet.write(WIDTH - MARGIN, 6 + 13 * line, text, ha="right", size=NOTE, color=SOFT, bbox=ERASER)
    down = 0.0
    for verdict, group in groups.items():
        if group:
            _heading(axes, down, verdict, len(group))
            down += 28
        for pair in group:
            _forest_row(axes, down, pair, names)
            down += 30
    return sheet.figure


def _interval(pair: Pair) -> str:
    return f"{plain(pair.risk_ratio)} ({plain(pair.low)} – {plain(pair.high)})"


def _heading(axes: Axes, down: float, verdict: str, count: int) -> None:
    text, colour, _ = VERDICTS[verdict]
    look: dict[str, Any] = {"color": colour, "weight": "bold", "va": "center", "bbox": ERASER}
    where = axes.get_yaxis_transform()
    axes.text(_LEFT, down + 17, f"{text[0].upper()}{text[1:]} ({count})", transform=where, **look)


def _forest_row(axes: Axes, down: float, pair: Pair, names: Mapping[str, str]) -> None:
    _, colour, marker = VERDICTS[pair.judgement]
    (least, most), where = axes.get_xlim(), axes.get_yaxis_transform()
    low, middle, high = (min(max(value, least), most) for value in (pair.low, pair.risk_ratio, pair.high))
    thin, y = pair.judgement == "too little evidence", down + 15
    axes.plot([low, high], [y, y], color=colour, linewidth=1.4 if thin else 2.4, solid_capstyle="butt")
    for end, beyond, arrow in ((low, pair.low < least, "<"), (high, pair.high > most, ">")):
        if beyond:
            axes.plot(end, y, arrow, color=colour, markersize=7)
    axes.plot(middle, y, marker, color=colour, markersize=7.5, markerfacecolor=CARD if thin else colour)
    texts: tuple[tuple[float, float, str, dict[str, Any]], ...] = (
        (_LEFT, 9, short_name(pair.workload, names, 126), {"size": 11.5}),
        (_LEFT, 22, f"on {short_name(pair.context, names, 114)}", {"size": NOTE, "color": SOFT}),
        (_RIGHT, 9, f"× {_times(pair.risk_ratio)}", {"size": 11.5, "weight": "bold", "ha": "right"}),
        (_RIGHT, 22, plain(pair.expected_failures), {"size": NOTE, "color": SOFT, "ha": "right"}),
    )
    for x, offset, text, look in texts:
        axes.text(x, down + offset, text, va="center", transform=where, **look)
