"""What a terminal would obey, for tests that put it where foreign text goes, and a real terminal to read bytes from."""

import os
import pty
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence

# What takes over a terminal, by the name of what it does there.
ATTACKS = {
    "writes the clipboard (OSC 52)": "\x1b]52;c;Y3VybCBldmlsfHNo\x07",
    "clears the screen (CSI)": "\x1b[2J\x1b[1;1H",
    "asks for an answer that is typed (DCS)": "\x1bP+q544e\x1b\\",
    "clears the screen by one character (C1 CSI)": "\x9b2J",
    "writes the clipboard without ESC (C1 OSC)": "\x9d52;c;ZXZpbAoK\x9c",
    "turns the direction of writing": "\u202egnp.exe\u202c",
    "isolates a direction of writing": "\u2066\u2067\u2068\u2069",
    "marks a direction of writing": "\u200e\u200f\u061c",
    "writes over the line": "\rok\b\b",
    "rings and wipes": "\x07\x7f\x00\x0b\x0c",
    "begins a line that is none for us": "\u2028\u2029\x85",
    "is not seen": "\u200b\ufeff\U000e0041",
}
HOSTILE = "<" + "|".join(ATTACKS.values()) + ">"
HOSTILE_NAME = HOSTILE.replace("\0", "")  # as a file or an argument may be called
FORGED = "pharoah-tenant: error: your keys are lost\nhint: run evil"


def assert_obeys_nothing(shown: str) -> None:
    """Nothing in it steers a terminal: printable letters, the ends of lines and tabs."""
    left = sorted({letter for letter in shown if letter not in "\n\t" and not letter.isprintable()})
    assert not left, f"{left} in {shown!r}"


def lines_that_begin(text: str, shown: str) -> list[str]:
    """The lines that begin so: foreign text within a line must not begin one."""
    return [line for line in shown.split("\n") if line.startswith(text)]


def on_a_terminal(command: Sequence[object], env: Mapping[str, str]) -> tuple[int, bytes]:
    """Exit code and every byte that a program sends to a terminal which is its stdin, stdout and stderr."""
    ours, theirs = pty.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # the line discipline would put a carriage return before each newline
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    try:
        words = [str(word) for word in command]
        process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=dict(env), close_fds=True)
    finally:
        os.close(theirs)
    try:
        shown = b"".join(_read(ours))
    finally:
        os.close(ours)
    return process.wait(60), shown


def _read(terminal: int) -> Iterator[bytes]:
    """Until the last program has let the terminal go, which Linux tells by an error."""
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            return
        if not data:
            return
        yield data
