"""What every picture is made of: colours, letters, room on the sheet, words, and the bytes that come out.

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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO, StringIO
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from crypto.errors import PharoahError
from federation.protocol.life_table import Floats
from federation.runtime.visible import reason

HUGE, _ABSURD = 1e12, 1e300  # as far as an axis reaches, and where numbers begin to overflow
NAMELESS: Mapping[str, str] = MappingProxyType({})


class PictureNotSaved(PharoahError):
    """A picture could not be written where it was asked for."""


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
LIGHT = {role: light for role, (light, _) in ROLES.items()}
INK, SOFT, RULE, CARD, ALARM = (LIGHT[role] for role in ("ink", "soft", "rule", "card", "alarm"))
KINDS, LEVELS, RATIOS = (
    [LIGHT[role] for role in ROLES if role.startswith(kind)] for kind in ("kind", "level", "ratio")
)
WIDTH, MARGIN, NOTE = 380.0, 14.0, 11.0  # points: of every picture, left and right in it, and its smallest letters
_STYLE: dict[str, Any] = {
    "font.size": 12,
    "text.parse_math": False,  # a name with dollar signs is a name
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size", "xtick.minor.size", "ytick.minor.size"), 0),
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    "axes.facecolor": "none",
    "figure.facecolor": CARD,
    "grid.color": RULE,
    "axes.axisbelow": True,
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "svg.hashsalt": "pharoah",
}
ERASER = {"facecolor": CARD, "linewidth": 0, "pad": 2}  # of grid lines, around letters


@contextmanager
def styled() -> Iterator[None]:
    """The style of all pictures; letters that the font does not have are the reader's to find, not a warning."""
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        yield


@styled()
def save(figure: Figure, path: Path) -> None:
    """Writes a PNG or an SVG, by the suffix of `path`, which is replaced; PictureNotSaved where that cannot be."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise PictureNotSaved(f"neither a .png nor a .svg file: {path}", hint="choose a name that ends in .png or .svg")
    figure.savefig(buffer := BytesIO(), format=kind, dpi=150, metadata={"Date" if kind == "svg" else "Software": None})
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as failure:
        hint = "choose a folder that exists and that you may write to"
        raise PictureNotSaved(f"{reason(failure)}: {path}", hint=hint) from failure


def inline(figure: Figure, key: str) -> str:
    """An SVG element for a page whose style sheet has the `ROLES`; `key` sets its ids apart from other pictures'."""
    width, height = 72 * figure.get_size_inches()
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{key}-title {key}-desc">'
        f'<title id="{key}-title">{escape(figure.get_suptitle())}</title>'
        f'<desc id="{key}-desc">{escape(str(figure.get_label()))}</desc>'
        f"{drawing(figure, key, {light: f'var(--{role})' for role, light in LIGHT.items()})}</svg>"
    )


@styled()
def drawing(figure: Figure, key: str, colours: Mapping[str, str]) -> str:
    """What is inside the SVG element, with `colours` replaced, and ids of its own since a page holds many drawings."""
    figure.savefig(buffer := StringIO(), format="svg", transparent=True, metadata={"Date": None})
    inside = buffer.getvalue().partition("</metadata>")[2].rpartition("</svg>")[0]
    for colour, instead in colours.items():
        inside = inside.replace(f": {colour}", f": {instead}")
    inside = re.sub(r'( id="|xlink:href="#|url\(#)', rf"\g<1>{key}-", inside).replace("xlink:href", "href")
    return re.sub(r"<!--.*?-->|\n\s*(?=<)", "", inside, flags=re.DOTALL)


@dataclass(frozen=True)
class Sheet:
    """A picture with its title and notes; what comes between is placed in points from the left and down from `top`."""

    figure: Figure
    top: float

    @classmethod
    def of(cls, title: str, body: float, notes: Iterable[str] = (), told: str = "") -> "Sheet":
        """Room for a `body` so many points high; `told` is the description beyond title and notes."""
        heading, under = _even(title, 39), [line for note in notes if note for line in wrap(note, 55)]
        top, height = 16 + 18.0 * len(heading), 34 + 18 * len(heading) + body + 14 * len(under)
        figure = Figure((WIDTH / 72, height / 72))
        left = MARGIN / WIDTH
        figure.suptitle("\n".join(heading), x=left, y=1 - 8 / height, ha="left", va="top", size=13.5, weight="bold")
        figure.text(left, 8 / height, "\n".join(under), va="bottom", color=SOFT, size=NOTE, linespacing=1.25)
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


def nothing_to_show(what: str, dropped: str) -> Figure:
    """A sheet that says that there is nothing yet."""
    sheet = Sheet.of(f"{what}: nothing to show yet", 30, [dropped])
    sheet.write(MARGIN, 4, "No release has data for this chart yet.", color=SOFT, size=11)
    return sheet.figure


# ---- words and numbers -----------------------------------------------------------------------------------------------

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(value: float, digits: int = 2) -> str:
    """So many digits, or all before the point where a number is large but not huge."""
    if value and not 1e-3 <= abs(value) < 1e6:
        number, exponent = f"{value:.{digits}e}".split("e")
        return f"{float(number):g} × 10{str(int(exponent)).translate(_RAISED)}".removeprefix("1 × ")
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:.{digits}g}"


def short_name(token: str, names: Mapping[str, str], room: float = 140) -> str:
    """The name of a token on one line, cut so that so many points have room for it in 11-point letters.

    Where it has none: the beginning of the token.
    """
    name = printable(names.get(token, token if len(token) <= 9 else f"{token[:8]}…"))
    for kept in range(len(name) - 1, 2, -1):
        if 11 * breadth(name) <= room:
            break
        whole = printable(names.get(token, token))
        name = f"{whole[: (kept + 1) // 2]}…{whole[len(whole) - kept // 2 :]}"
    return name


def printable(text: str) -> str:
    """The text on one line, without letters that steer a terminal, break XML or turn the direction of writing."""
    return "".join(letter if letter.isprintable() else " " if letter.isspace() else "�" for letter in text)


def breadth(text: str) -> float:
    """About how wide the text is in the pictures' font, in units of its size."""
    return sum(map(_letter_breadth, text))


def _letter_breadth(letter: str) -> float:
    if letter in "mwMW@…" or unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    if letter in "fijlrtI.,:;'|!()[] -/":
        return 0.4
    return 0.63 if letter.islower() or letter.isdigit() else 0.74


def natural(name: str) -> str:
    """A key by which `context 10` comes after `context 9`."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(12), name)


def count_of(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def are_finite(row: object, fields: str) -> bool:
    """Whether a row has numbers in all `fields`; those that only a broken fit can have are none."""
    return all(abs(getattr(row, field)) < _ABSURD for field in fields.split())


def left_out_note(count: int, noun: str, why: str, where: str = "shown") -> str:
    """How many things are not there and why; nothing if all are."""
    verb = "is" if count == 1 else "are"
    return f"{count_of(count, noun)} {why} {verb} not {where}." if count else ""


# ---- axes ------------------------------------------------------------------------------------------------------------


def limits_around(values: Floats, factor: float) -> tuple[float, float]:
    """Limits around positive values, however wild they are."""
    values = values.clip(1 / HUGE, HUGE)
    return float(values.min() / factor), float(values.max() * factor)


def log_scale(axes: Axes, which: str, limits: tuple[float, float], base: int = 10) -> None:
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
