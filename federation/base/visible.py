r"""Foreign text as a person may look at it: what a terminal, a pager or an editor would obey is spelt out.

Guarantees. Of a text comes one line of printable letters, blanks and tabs. Spelt out as Python spells them are the C0
and C1 controls (escape sequences, carriage return, backspace, NUL), newlines, marks that turn the direction of writing
(CVE-2021-42574), letters without a shape, and halves of characters. Letters of all scripts stay as they are.

Not promised: that it can be read back, since a backslash stays one; JSON is for programs. Letters that look alike, and
writing from right to left by letters that are so, are left.

    >>> visible("\x1b]52;c;ZXZpbA==\x07 温度 85 °C\r\nhint: run this")
    '\\x1b]52;c;ZXZpbA==\\x07 温度 85 °C\\r\\nhint: run this'
"""

import json
import unicodedata
from dataclasses import fields, is_dataclass
from pathlib import Path

import msgspec

STANDARD_INPUT = "standard input"  # the file that holds it while a verb runs
_DELETE = "\x7f"


def visible(text: str) -> str:
    """The text as one line that steers nothing."""
    if text.isprintable():
        return text
    return "".join(letter if _is_harmless(letter) else _spelt(letter) for letter in text)


def visible_lines(text: str) -> str:
    """The same where the ends of lines are our own, as those of a traceback."""
    return "\n".join(map(visible, text.split("\n")))


def json_text(value: object, indent: int | None = None) -> str:
    """JSON in ASCII, all else escaped as JSON has it: nothing is lost, and nothing in it steers a terminal.

    A dataclass or a message becomes an object whose keys are its fields; what JSON has no word for becomes text.
    """
    return json.dumps(value, default=_object_or_text, indent=indent).replace(_DELETE, "\\u007f")


def counted_as(number: int, noun: str) -> str:
    """A number and its noun, in the plural unless the number is 1.

    >>> counted_as(1, "release"), counted_as(0, "release")
    ('1 release', '0 releases')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def reason(error: OSError) -> str:
    """Why the system refused, as the beginning of a sentence of ours."""
    text = error.strerror or type(error).__name__
    return text[:1].lower() + text[1:]


def source_name(path: Path) -> str:
    """An input as a message names it."""
    return STANDARD_INPUT if path.name == STANDARD_INPUT else str(path)


def short(path: Path | str) -> str:
    """A path as a person would type it here: below the current folder, or below the home of the account."""
    path = Path(path)
    for start, sign in ((Path.cwd, ""), (Path.home, "~/")):
        try:
            return f"{sign}{path.relative_to(start())}"
        except (ValueError, OSError, RuntimeError):  # not below it, or there is no such folder
            continue
    return str(path)


def _object_or_text(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else str(value)


def _is_harmless(letter: str) -> bool:
    return letter.isprintable() or letter == "\t" or unicodedata.category(letter) == "Zs"


def _spelt(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
