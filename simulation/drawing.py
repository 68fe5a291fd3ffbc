"""What every picture is made of: colours, letters, room on the sheet, and the bytes that come out.

Equal input gives figures of equal bytes, and neither pyplot nor a lasting setting is touched. A picture is as wide as a
phone, so that its letters can be read there and in print. Its title says what was found.

Not promised: that a PNG shows a name in letters that the font DejaVu Sans does not have.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crypto.errors import PharoahError
from federation.base.visible import reason


class PictureNotSaved(PharoahError):
    """A picture could not be written where it was asked for."""


INK, SOFT, RULE, CARD = "#1c2228", "#56616c", "#dfe1e4", "#ffffff"
KINDS = "#0068a8", "#b26a00", "#a83279", "#1b7f5c", "#6b5bb5"  # told apart in any order
RATIOS = "#6fb1dc", "#b5d6ec", "#eaecef", "#fbdcbf", "#f7b27e", "#ee8445", "#e2662a"  # lowest to highest, under ink
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


@dataclass(frozen=True)
class Sheet:
    """A picture with its title and notes; what comes between is placed in points from the left and down from `top`."""

    figure: Figure
    top: float

    @classmethod
    def of(cls, title: str, body: float, notes: Iterable[str] = ()) -> "Sheet":
        """Room for a `body` so many points high."""
        heading, under = _even(title, 39), [line for note in notes if note for line in wrap(note, 55)]
        top, height = 16 + 18.0 * len(heading), 34 + 18 * len(heading) + body + 14 * len(under)
        figure = Figure((WIDTH / 72, height / 72))
        left = MARGIN / WIDTH
        figure.suptitle("\n".join(heading), x=left, y=1 - 8 / height, ha="left", va="top", size=13.5, weight="bold")
        figure.text(left, 8 / height, "\n".join(under), va="bottom", color=SOFT, size=NOTE, linespacing=1.25)
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
