"""Pictures of what was learnt, for people who look before they read: rates, mismatches, calibration and contexts.

Equal input gives figures of equal bytes, and neither pyplot nor a lasting setting is touched. A picture is as wide as a
phone, so that its letters can be read there and in print. Its title says what was found; `figure.get_label()` says more
of it in words, for those who cannot see it. Colours are roles with a light and a dark value, and never the only
difference between two things. What is not finite is left out and counted below the picture; what is too much is cut to
what matters most, and counted too.

Not promised: that a PNG shows a name in letters that the font DejaVu Sans does not have.
"""

import math
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO, StringIO
from pathlib import Path
from textwrap import shorten, wrap
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import ArrayLike, NDArray

from crypto.errors import PharoahError
from crypto.life_table import Floats

if TYPE_CHECKING:
    from provider_server.analysis.calibration import Calibration
    from provider_server.learning import RateFinding

PER_NODE_HOURS = 1000.0
MOST_ROWS, MOST_CONTEXTS, MOST_PANELS, MOST_LISTED, MOST_NODES = 25, 10, 10, 12, 3000
_HUGE, _ABSURD = 1e12, 1e300  # as far as an axis reaches, and where numbers begin to overflow
NAMELESS: Mapping[str, str] = MappingProxyType({})


class PictureNotSaved(PharoahError):
    """A picture could not be written where it was asked for."""


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


# ---- drawings in general: colours, letters, room, bytes --------------------------------------------------------------

# Light and dark values of each role. The light ones are all different, since they stand for their role in a drawing.
ROLES: Mapping[str, tuple[str, str]] = {
    "ink": ("#1c2228", "#e7eaee"),
    "soft": ("#56616c", "#a4afba"),
    "rule": ("#dfe1e4", "#343c45"),
    "band": ("#f3f3f1", "#20262d"),
    "card": ("#ffffff", "#1a1f25"),
    "alarm": ("#b5400f", "#ff9d5c"),
    # kinds, told apart in any order
    "kind-0": ("#0068a8", "#5cb6f2"),
    "kind-1": ("#b26a00", "#eab14a"),
    "kind-2": ("#a83279", "#ee8fc4"),
    "kind-3": ("#1b7f5c", "#5fcfa4"),
    "kind-4": ("#6b5bb5", "#b3a6f5"),
    # levels, from the least to the most
    "level-0": ("#d2962a", "#8f6fd8"),
    "level-1": ("#cf5a41", "#cf6fb0"),
    "level-2": ("#a92b78", "#f0857a"),
    "level-3": ("#6a1d8f", "#f7b765"),
    "level-4": ("#2a1063", "#f6ee8a"),
    # ratios, from the lowest to the highest, under letters of ink
    "ratio-0": ("#6fb1dc", "#2c6f9e"),
    "ratio-1": ("#b5d6ec", "#274c66"),
    "ratio-2": ("#eaecef", "#2d353e"),
    "ratio-3": ("#fbdcbf", "#5a4331"),
    "ratio-4": ("#f7b27e", "#85532a"),
    "ratio-5": ("#ee8445", "#a3591d"),
    "ratio-6": ("#e2662a", "#ae5413"),
}
_LIGHT = {role: light for role, (light, _) in ROLES.items()}
_INK, _SOFT, _RULE, _CARD, _ALARM = (_LIGHT[role] for role in ("ink", "soft", "rule", "card", "alarm"))
_KINDS, _LEVELS, _RATIOS = (
    [_LIGHT[role] for role in ROLES if role.startswith(kind)] for kind in ("kind", "level", "ratio")
)
WIDTH, MARGIN, NOTE = 380.0, 14.0, 11.0  # points: of every picture, left and right in it, and its smallest letters
_STYLE: dict[str, Any] = {
    "font.size": 12,
    "text.parse_math": False,  # a name with dollar signs is a name
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _INK),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size", "xtick.minor.size", "ytick.minor.size"), 0),
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    "axes.facecolor": "none",
    "figure.facecolor": _CARD,
    "grid.color": _RULE,
    "axes.axisbelow": True,
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "svg.hashsalt": "pharoah",
}
_ERASER = {"facecolor": _CARD, "linewidth": 0, "pad": 2}  # of grid lines, around letters


@contextmanager
def _styled() -> Iterator[None]:
    """The style of all pictures; letters that the font does not have are the reader's to find, not a warning."""
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        yield


@_styled()
def save(figure: Figure, path: Path) -> None:
    """Writes a PNG or an SVG, by the suffix of `path`, which is replaced; PictureNotSaved where that cannot be."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise PictureNotSaved(f"{path} does not end like a picture", hint="choose a name that ends in .png or .svg")
    figure.savefig(buffer := BytesIO(), format=kind, dpi=150, metadata={"Date" if kind == "svg" else "Software": None})
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as failure:
        hint = "choose a folder that exists and that you may write to"
        raise PictureNotSaved(f"cannot write {path}: {failure.strerror}", hint=hint) from failure


def inline(figure: Figure, key: str) -> str:
    """An SVG element for a page whose style sheet has the `ROLES`; `key` sets its ids apart from other pictures'."""
    width, height = 72 * figure.get_size_inches()
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{key}-title {key}-desc">'
        f'<title id="{key}-title">{escape(figure.get_suptitle())}</title>'
        f'<desc id="{key}-desc">{escape(str(figure.get_label()))}</desc>'
        f"{drawing(figure, key, {light: f'var(--{role})' for role, light in _LIGHT.items()})}</svg>"
    )


@_styled()
def drawing(figure: Figure, key: str, colours: Mapping[str, str]) -> str:
    """What is inside the SVG element, with `colours` replaced, and ids of its own since a page holds many drawings."""
    figure.savefig(buffer := StringIO(), format="svg", transparent=True, metadata={"Date": None})
    inside = buffer.getvalue().partition("</metadata>")[2].rpartition("</svg>")[0]
    for colour, instead in colours.items():
        inside = inside.replace(f": {colour}", f": {instead}")
    inside = re.sub(r'( id="|xlink:href="#|url\(#)', rf"\g<1>{key}-", inside).replace("xlink:href", "href")
    return re.sub(r"<!--.*?-->|\n\s*(?=<)", "", inside, flags=re.DOTALL)


@dataclass(frozen=True)
class _Sheet:
    """A picture with its title and notes; what comes between is placed in points from the left and down from `top`."""

    figure: Figure
    top: float

    @classmethod
    def of(cls, title: str, body: float, notes: Iterable[str] = (), told: str = "") -> "_Sheet":
        """Room for a `body` so many points high; `told` is the description beyond title and notes."""
        heading, under = _even(title, 39), [line for note in notes if note for line in wrap(note, 55)]
        top, height = 16 + 18.0 * len(heading), 34 + 18 * len(heading) + body + 14 * len(under)
        figure = Figure((WIDTH / 72, height / 72))
        left = MARGIN / WIDTH
        figure.suptitle("\n".join(heading), x=left, y=1 - 8 / height, ha="left", va="top", size=13.5, weight="bold")
        figure.text(left, 8 / height, "\n".join(under), va="bottom", color=_SOFT, size=NOTE, linespacing=1.25)
        figure.set_label(" ".join([*heading, told, *under]))
        return cls(figure, top)

    def axes(self, left: float, down: float, width: float, height: float) -> Axes:
        """Axes of this size, whose upper left corner is there."""
        whole = 72 * self.figure.get_figheight()
        return self.figure.add_axes(
            (left / WIDTH, 1 - (self.top + down + height) / whole, width / WIDTH, height / whole)
        )

    def write(self, left: float, down: float, text: str, **look: Any) -> None:
        """Text whose upper left corner is there, or what `look` says in its place."""
        y = 1 - (self.top + down) / (72 * self.figure.get_figheight())
        self.figure.text(left / WIDTH, y, text, **{"va": "top", **look})


def _even(text: str, most: int) -> list[str]:
    """The text in lines of at most so many letters, as few and then as even as can be."""
    lines = len(wrap(text, most))
    return wrap(text, next((width for width in range(most // 2, most) if len(wrap(text, width)) == lines), most))


def _nothing(what: str, dropped: str) -> Figure:
    sheet = _Sheet.of(f"{what}: nothing to show yet", 30, [dropped])
    sheet.write(MARGIN, 4, "It appears here once releases have something to say.", color=_SOFT, size=11)
    return sheet.figure


# ---- words and numbers -----------------------------------------------------------------------------------------------

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(value: float, digits: int = 2) -> str:
    """So many digits, or all before the point where a number is large but not huge."""
    if value and not 1e-3 <= abs(value) < 1e6:
        number, exponent = f"{value:.{digits}e}".split("e")
        return f"{float(number):g} × 10{str(int(exponent)).translate(_RAISED)}".removeprefix("1 × ")
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:.{digits}g}"


def _name(token: str, names: Mapping[str, str], room: float = 140) -> str:
    """The name of a token on one line, cut so that so many points have room for it in 11-point letters.

    Where it has none: the beginning of the token.
    """
    name = printable(names.get(token, token if len(token) <= 9 else f"{token[:8]}…"))
    for kept in range(len(name) - 1, 2, -1):
        if 11 * _breadth(name) <= room:
            break
        whole = printable(names.get(token, token))
        name = f"{whole[: (kept + 1) // 2]}…{whole[len(whole) - kept // 2 :]}"
    return name


def printable(text: str) -> str:
    """The text on one line, without letters that steer a terminal, break XML or turn the direction of writing."""
    return "".join(letter if letter.isprintable() else " " if letter.isspace() else "�" for letter in text)


def _breadth(text: str) -> float:
    """About how wide the text is in the pictures' font, in units of its size."""
    return sum(map(_letter_breadth, text))


def _letter_breadth(letter: str) -> float:
    if letter in "mwMW@…" or unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    if letter in "fijlrtI.,:;'|!()[] -/":
        return 0.4
    return 0.63 if letter.islower() or letter.isdigit() else 0.74


def _natural(name: str) -> str:
    return re.sub(r"\d+", lambda digits: digits[0].zfill(12), name)


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _are_finite(row: object, fields: str) -> bool:
    """Whether a row has numbers in all `fields`; those that only a broken fit can have are none."""
    return all(abs(getattr(row, field)) < _ABSURD for field in fields.split())


def _left_out(count: int, noun: str, why: str, where: str = "shown") -> str:
    verb = "is" if count == 1 else "are"
    return f"{_many(count, noun)} {why} {verb} not {where}." if count else ""


# ---- how often hardware fails ----------------------------------------------------------------------------------------


@_styled()
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
    kept = [each for each in rates if each.band in bands and each.rate > 0 and _are_finite(each, "rate low high")]
    dropped = _left_out(len(rates) - len(kept), "rate", "without a finite number, interval or age band")
    if not kept:
        return _nothing("Failures by age", dropped)
    kept, known = sorted(kept, key=lambda each: -each.low), levels or {}  # the most that is sure comes first
    panels = _panels(kept, known)
    shown, rows = list(panels)[:MOST_PANELS], -(-min(len(panels), MOST_PANELS) // 2)
    title, most = _highest(kept[0], known, names, edges_hours)
    numbered = "The number at a curve is its build-up level: how far nodes are from healthy."
    rest = _left_out(len(panels) - len(shown), "context", "with lower rates")
    notes = (f"{most} Shades are 95% intervals, both scales logarithmic.", numbered if known else "", rest, dropped)
    sheet = _Sheet.of(title, 46 + 140.0 * rows, notes, f"{_many(len(shown), 'panel')} of rates by age.")
    sheet.write(MARGIN, 4, "failures per 1,000 node-hours", size=11, color=_SOFT)
    limits = _around(np.array([PER_NODE_HOURS * each.rate for each in kept]), 2.5)
    for place, context in enumerate(shown):
        axes = sheet.axes(48 + 172 * (place % 2), 44 + 140 * (place // 2), 142, 104)
        axes.set_title(_name(context, names, 120), loc="left", fontsize=12, weight="bold", pad=5)
        _age_axis(axes, edges_hours)
        _log_scale(axes, "y", limits)
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
    title = f"{_name(context, names)} fails most: {middle} times in 1,000 node-hours at age {ages}"
    return title, f"The most{'' if level is None else f', at build-up level {level}'}: {middle} ({low} – {high})."


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
        colour = _LEVELS[min(max(level, 0), len(_LEVELS) - 1)]
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


def _around(values: Floats, factor: float) -> tuple[float, float]:
    """Limits around positive values, however wild they are."""
    values = values.clip(1 / _HUGE, _HUGE)
    return float(values.min() / factor), float(values.max() * factor)


def _log_scale(axes: Axes, which: str, limits: tuple[float, float], base: int = 10) -> None:
    """A logarithmic axis, "x" or "y", with these limits and few marks: powers of the base, and 3 between tens."""
    first, last = (math.log(limit, base) for limit in limits)
    step = -(-(last - first) // 6)
    marks = [float(base) ** power for power in range(math.floor(first), math.ceil(last) + 1) if power % step == 0]
    marks += [3 * mark for mark in marks] if base == 10 and last - first < 2.5 else []
    marks = sorted(mark for mark in marks if limits[0] <= mark <= limits[1])
    axes.set(**{f"{which}scale": "log", f"{which}lim": limits})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(marks, [plain(mark) for mark in marks])


# ---- which workloads fail where --------------------------------------------------------------------------------------

# In the order of their weight: what a verdict is called, the colour and the form of its mark.
VERDICTS: Mapping[str, tuple[str, str, str]] = {
    "worse": ("worse than expected", _ALARM, "o"),
    "confounded": ("confounded", _LIGHT["kind-4"], "D"),
    "not worse": ("not worse", _LIGHT["kind-0"], "s"),
    "too little evidence": ("too little evidence", _SOFT, "o"),
}
_STEPS = (0.5, 0.8, 1.25, 2.0, 4.0, 8.0)  # of risk ratios: between two colours of the matrix
_NUMBERS = "probability_worse risk_ratio low high expected_failures"


def _judged(pairs: Iterable[Pair]) -> tuple[list[Pair], str]:
    """The pairs that can be shown, the weightiest first, and a note about the others."""
    every = list(pairs)
    kept = [pair for pair in every if pair.risk_ratio > 0 and _are_finite(pair, _NUMBERS)]
    return sorted(kept, key=_weight), _left_out(len(every) - len(kept), "pair", "without a finite number or interval")


def _weight(pair: Pair) -> tuple[int, float, float]:
    return list(VERDICTS).index(pair.judgement), -pair.probability_worse, -pair.risk_ratio


@_styled()
def mismatch_matrix(pairs: Sequence[Pair], names: Mapping[str, str] = NAMELESS) -> Figure:
    """Workloads down and contexts across, the colour being the risk ratio; small and pale where evidence is thin."""
    kept, dropped = _judged(pairs)
    if not kept:
        return _nothing("Workloads on contexts", dropped)
    workloads, every = (list(dict.fromkeys(getattr(pair, side) for pair in kept)) for side in ("workload", "context"))
    down = {workload: place for place, workload in enumerate(workloads[:MOST_ROWS])}
    contexts = sorted(every[:MOST_CONTEXTS], key=lambda context: _natural(_name(context, names)))
    across = {context: place for place, context in enumerate(contexts)}
    notes = (
        "A number is the risk ratio: how many times as often as workload and context explain. Blank: nothing ran.",
        _left_out(len(workloads) - len(down), "workload", "with less to say"),
        _left_out(len(every) - len(across), "context", "with less to say"),
        dropped,
    )
    worse = [pair for pair in kept if pair.judgement == "worse"]
    told = "; ".join(f"{_called(pair, names)} {plain(pair.risk_ratio)} times" for pair in worse[:5])
    labels = [_name(context, names, 110) for context in contexts]
    longest = 11 * max(map(_breadth, labels))
    turned, height = longest > 225 / len(labels), 20.0 * len(down)
    over = 16 + longest if turned else 24
    sheet = _Sheet.of(_worst(kept), over + height + 76, notes, told)
    axes = sheet.axes(124, over, WIDTH - 124 - MARGIN, height)
    axes.set(xlim=(-0.5, len(across) - 0.5), ylim=(len(down) - 0.5, -0.5))
    axes.set_xticks(range(len(across)), labels, rotation=90 if turned else 0, fontsize=11)
    axes.set_yticks(range(len(down)), [_name(workload, names, 106) for workload in down], fontsize=11)
    axes.tick_params(labeltop=True, labelbottom=False)
    for pair in kept:
        if pair.workload in down and pair.context in across:
            _cell(axes, (across[pair.context], down[pair.workload]), pair.risk_ratio, pair.judgement)
    _key(sheet, over + height + 14)
    return sheet.figure


def _called(pair: Pair, names: Mapping[str, str]) -> str:
    return f"{_name(pair.workload, names)} on {_name(pair.context, names)}"


def _worst(kept: Sequence[Pair]) -> str:
    worse = sum(pair.judgement == "worse" for pair in kept)
    if not worse:
        return f"None of {_many(len(kept), 'pair')} fails more often than expected"
    return f"{worse} of {_many(len(kept), 'pair')} fail{'s' if worse == 1 else ''} more often than expected"


def _cell(axes: Axes, at: tuple[float, float], ratio: float, verdict: str) -> None:
    """One pair in a unit square around `at`."""
    thin = verdict == "too little evidence"
    half, colour = 0.16 if thin else 0.44, _RATIOS[int(np.searchsorted(_STEPS, ratio))]
    place = (at[0] - half, at[1] - half)
    axes.add_patch(Rectangle(place, 2 * half, 2 * half, facecolor=colour, alpha=0.6 if thin else 1, linewidth=0))
    if verdict in ("worse", "confounded"):
        line = {"worse": "solid", "confounded": (0, (2, 1.5))}[verdict]
        axes.add_patch(Rectangle(place, 2 * half, 2 * half, fill=False, edgecolor=_INK, linewidth=1.6, linestyle=line))
        look: dict[str, Any] = {"size": NOTE, "weight": "bold" if verdict == "worse" else "normal"}
        axes.text(*at, _times(ratio), ha="center", va="center_baseline", **look)


def _times(ratio: float) -> str:
    return plain(ratio) if ratio < 99.5 else "> 99"


def _key(sheet: _Sheet, down: float) -> None:
    """What the colours and forms of the matrix mean, in a unit of 20 points."""
    axes = sheet.axes(MARGIN, down, WIDTH - 2 * MARGIN, 66)
    axes.set(xlim=(0, (WIDTH - 2 * MARGIN) / 20), ylim=(3.3, 0), xticks=[], yticks=[])
    for place, colour in enumerate(_RATIOS):
        axes.add_patch(Rectangle((5.6 + 1.7 * place, 0), 1.7, 0.7, facecolor=colour, linewidth=0))
    for place, step in enumerate(_STEPS):
        axes.text(7.3 + 1.7 * place, 0.85, f"{step:g}", ha="center", va="top", size=NOTE, color=_SOFT)
    axes.text(0, 0.4, "risk ratio", va="center", size=11)
    for left, verdict, text in (
        (0.5, "worse", "worse"),
        (5, "confounded", "confounded"),
        (10.8, "too little evidence", "too little evidence"),
    ):
        _cell(axes, (left, 2.5), 3.0, verdict)
        axes.text(left + 0.75, 2.5, text, va="center", size=11)


_LEFT, _RIGHT = -138 / 150, 1 + 64 / 150  # of a row, where its axes reach from 0 to 1


@_styled()
def forest_plot(pairs: Sequence[Pair], names: Mapping[str, str] = NAMELESS, *, most: int = 20) -> Figure:
    """Risk ratios with their intervals, by verdict and then by size; at most so many, the weightiest."""
    kept, dropped = _judged(pairs)
    if not kept:
        return _nothing("Risk ratios", dropped)
    rows = sorted(kept[: min(most, MOST_ROWS)], key=lambda pair: (_weight(pair)[0], -pair.risk_ratio))
    groups = {verdict: [pair for pair in rows if pair.judgement == verdict] for verdict in VERDICTS}
    left_out = [sum(pair.judgement == verdict for pair in kept[len(rows) :]) for verdict in VERDICTS]
    rest = ", ".join(f"{count:,} {verdict}" for verdict, count in zip(VERDICTS, left_out, strict=True) if count)
    title = f"{_called(rows[0], names)} fails {_times(rows[0].risk_ratio)} times as often as expected"
    title = title if rows[0].judgement == "worse" else _worst(kept)
    height = 30.0 * len(rows) + 28 * sum(map(bool, groups.values()))
    notes = (
        "Line: 95% interval, an arrow where it goes on. The scale is logarithmic.",
        f"Not shown: {rest}." if rest else "",
        dropped,
    )
    told = "; ".join(f"{_called(pair, names)}: {_interval(pair)}, {VERDICTS[pair.judgement][0]}" for pair in rows[:5])
    sheet = _Sheet.of(title, height + 46, notes, told)
    axes = sheet.axes(152, 8, 150, height)
    axes.set(ylim=(height, 0), yticks=[])
    ends = np.array([value for pair in rows for value in (pair.low, pair.high, 0.7, 3.0)])
    _log_scale(axes, "x", _around(ends.clip(1 / 32, 64), 1.15), 2)
    axes.set_xlabel("times as often as expected", size=11)
    axes.axvline(1, color=_INK, linewidth=1.2)
    axes.grid(axis="x", linewidth=0.8)
    for line, text in enumerate(("risk ratio", "failures expected")):
        sheet.write(WIDTH - MARGIN, 6 + 13 * line, text, ha="right", size=NOTE, color=_SOFT, bbox=_ERASER)
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
    look: dict[str, Any] = {"color": colour, "weight": "bold", "va": "center", "bbox": _ERASER}
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
    axes.plot(middle, y, marker, color=colour, markersize=7.5, markerfacecolor=_CARD if thin else colour)
    texts: tuple[tuple[float, float, str, dict[str, Any]], ...] = (
        (_LEFT, 9, _name(pair.workload, names, 126), {"size": 11.5}),
        (_LEFT, 22, f"on {_name(pair.context, names, 114)}", {"size": NOTE, "color": _SOFT}),
        (_RIGHT, 9, f"× {_times(pair.risk_ratio)}", {"size": 11.5, "weight": "bold", "ha": "right"}),
        (_RIGHT, 22, plain(pair.expected_failures), {"size": NOTE, "color": _SOFT, "ha": "right"}),
    )
    for x, offset, text, look in texts:
        axes.text(x, down + offset, text, va="center", transform=where, **look)


# ---- whether predictions hold ----------------------------------------------------------------------------------------


@_styled()
def calibration_plot(c: "Calibration", names: Mapping[str, str] = NAMELESS, *, unit: str = "failures") -> Figure:
    """What came over what was predicted, with its interval, for each group; the groups rise in predicted risk.

    `unit` is what was counted; `names` may have another word for it.
    """
    unit = _name(unit, {unit: names.get(unit, unit)})
    every = np.array([c.predicted, c.observed, c.low, c.high], dtype=np.float64).reshape(4, -1)
    known = np.isfinite(every).all(axis=0) & (every[0] > 0)
    dropped = _left_out(int((~known).sum()), "group", "without a finite number or interval")
    if not known.any():
        return _nothing("Predicted and observed", dropped)
    predicted, observed, low, high = every[:, known]
    with np.errstate(over="ignore"):
        ratios = (every[1:, known] / predicted).clip(-_HUGE, _HUGE)
    held = (low <= predicted) & (predicted <= high)
    title = f"{held.sum()} of {_many(len(held), 'interval')} hold what was predicted"
    if math.isfinite(c.ratio_total):
        title = (
            f"Of 100 {unit} predicted, {plain(100 * c.ratio_total)} came; {held.sum()} of {len(held)} intervals hold"
        )
    slope = f"Slope {c.slope:.2f}, 95% interval {c.slope_low:.2f} – {c.slope_high:.2f}; 1 is perfect, less too sure."
    size = " – ".join(dict.fromkeys((plain(predicted.min()), plain(predicted.max()))))
    notes = (
        slope if math.isfinite(c.slope + c.slope_low + c.slope_high) else "",
        f"Of each group, {size} {unit} were predicted. Lines are 95% intervals; where the point is hollow, it misses.",
        dropped,
    )
    told = "; ".join(f"{plain(x)} predicted and {plain(y)} observed" for x, y in zip(predicted, observed, strict=True))
    sheet = _Sheet.of(title, 274, notes, f"{told}.")
    sheet.write(MARGIN, 4, f"{unit} observed for each one predicted", size=11, color=_SOFT)
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
    axes.axhline(1, color=_INK, linewidth=1.2)
    axes.text(1.27 * len(held) + 0.6, 1, "as\npredicted", ha="right", va="center", size=NOTE, bbox=_ERASER)
    _draw_points(axes, ratios, held)
    return sheet.figure


def _draw_points(axes: Axes, ratios: Floats, held: NDArray[np.bool_]) -> None:
    """Points with their intervals, from `ratios` (3, K) of what was observed, its low and its high end."""
    colour, across = _LIGHT["kind-0"], np.arange(1, len(held) + 1)
    observed, low, high = np.maximum(ratios, 0.0)
    axes.vlines(across, low, high, color=colour, linewidth=2.4)
    for some, face in ((held, colour), (~held, _CARD)):
        look: dict[str, Any] = {"markerfacecolor": face, "markersize": 8, "markeredgewidth": 2, "clip_on": False}
        axes.plot(across[some], observed[some], "o", color=colour, **look)


# ---- which nodes are alike -------------------------------------------------------------------------------------------


@_styled()
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
    dropped = _left_out(int((~known).sum()), "node", "without a finite position")
    places, of = places[known], of[known]
    if not len(places):
        return _nothing("Contexts of nodes", dropped)
    often = {number: _often(number, rates, intervals or {}) for number in np.unique(of[of >= 0]).tolist()}
    contexts = sorted(often, key=lambda number: (not often[number], -rates.get(number, 0.0)))
    listed, step = contexts[:MOST_LISTED], -(-len(places) // MOST_NODES)
    texts = {number: _description(number, descriptions, names) for number in listed}
    notes = (
        "Near nodes are alike: directions and distances have no unit.",
        f"{(of < 0).sum():,} nodes in no context are crosses." if (of < 0).any() else "",
        f"One in {step} nodes of each context is drawn." if step > 1 else "",
        _left_out(len(contexts) - len(listed), "context", "with lower rates", "in the list"),
        dropped,
    )
    told = "; ".join(f"{number}: {texts[number]}, {often[number] or _UNKNOWN}" for number in listed)
    height = 38.0 * len(listed)
    sheet = _Sheet.of(_map_title(len(places), contexts, rates), 318 + height, notes, told)
    axes = sheet.axes(MARGIN, 8, WIDTH - 2 * MARGIN, 280)
    _draw_nodes(axes, places, of, contexts, step)
    _draw_badges(axes, listed, np.array([np.median(places[of == number], axis=0) for number in listed]).reshape(-1, 2))
    sheet.write(WIDTH - MARGIN, 296, "failures per 1,000 node-hours", ha="right", size=NOTE, color=_SOFT)
    below = sheet.axes(MARGIN, 308, WIDTH - 2 * MARGIN, max(height, 1.0))
    below.set(xlim=(0, WIDTH - 2 * MARGIN), ylim=(max(height, 1.0), 0), xticks=[], yticks=[])
    for place, number in enumerate(listed):
        nodes = _many(int((of == number).sum()), "node")
        _list_row(below, place, number, (texts[number], nodes, often[number] or _UNKNOWN))
    return sheet.figure


def _map_title(nodes: int, contexts: Sequence[int], rates: Mapping[int, float]) -> str:
    title, most = (
        f"{_many(nodes, 'node')} in {_many(len(contexts), 'context')}",
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
    return {"color": _KINDS[place % len(_KINDS)], "marker": "os^Dv"[place // len(_KINDS) % 5], "linestyle": ""}


def _draw_nodes(axes: Axes, places: Floats, of: NDArray[np.intp], contexts: Sequence[int], step: int) -> None:
    axes.set(xticks=[], yticks=[], facecolor=_LIGHT["band"])
    axes.margins(0.08)
    axes.plot(*places[of < 0][::step].T, "x", color=_SOFT, markersize=4)
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
    box = {"boxstyle": "round,pad=0.25", "facecolor": _CARD, "edgecolor": _kind(place)["color"], "linewidth": 1.6}
    axes.text(x, y, str(number), ha="center", va="center", size=11, weight="bold", bbox=box)


def _list_row(axes: Axes, place: int, number: int, texts: tuple[str, str, str]) -> None:
    """One row of the list below the map: the description, how many nodes, and the rate."""
    middle, (description, nodes, rate) = 38.0 * place + 19, texts
    _badge(axes, 14, middle, number, place)
    axes.text(36, middle - 6, description, va="center", size=11)
    axes.plot(40, middle + 9, **_kind(place), markersize=6)
    axes.text(50, middle + 9, nodes, va="center", size=NOTE, color=_SOFT)
    axes.text(WIDTH - 2 * MARGIN, middle + 9, rate, va="center", ha="right", size=11.5, weight="bold")
