"""Python tracebacks out of a stream of lines, also where several ranks write at once.

A traceback is followed by what precedes its header on the line (`[rank3]: `, `node01: `, nothing), so that ranks with a
label do not mix. Tracebacks that `During handling …` or `… direct cause` join form one chain, oldest first. Without a
header a frame opens one: syntax errors have none. What never ends is dropped after `_PATIENCE` foreign lines. What
Python says it ignored ends nothing: a part, and forgotten, with its traceback or without, however far below. Where
PyTorch raises again what a worker or a replica raised (torch/_utils.py, ExceptionWrapper), the original's text stands
in the place of the wrapper.
"""

import re
from collections import deque
from dataclasses import dataclass, field, replace

IGNORED = ("xception ignored ", "Error in atexit._run")  # Python's words above what it ignored
_IGNORED = re.compile(r"(?:Exception ignored (?:in|on|while|from)\b|Error in atexit\._run)")
_PATIENCE = 60
_CHAIN_GAP = 12
_MOST_OPEN = 64
_MOST_LINKS = 16

_TIME = re.compile(r"^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s?", re.ASCII)
_CLOCK = re.compile(r"^((?:(?!Error).){0,60}?\d\d[-/]?\d\d[ T])\d\d:\d\d:\d\d(?:[.,]\d{1,9})?", re.ASCII)
_HEADER = re.compile(r"(?P<original>Original )?Traceback \(most recent call last\)")
_WRAPPER = re.compile(r": Caught \w+ .+\.$")
_FRAME = re.compile(r'\s*File "(?P<path>[^"]*)", line \d+(?:, in (?P<function>.*))?')
_LONE_FRAME = re.compile(
    r'^(?P<prefix>(?:\S.{0,120}?[:\])|] ?)?)(?: {2}| {4}| {6})?File "[^"]*", line \d+(?:, in .*)?$'
)
_FINAL = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::(?: .*)?)?$")
_ENDINGS = (
    "Error", "Exception", "Exit", "Interrupt", "Failure", "Timeout", "Warning", "NotFound", "Killed", "Disconnected"
)  # fmt: skip
_LINKS = {
    "During handling of the above exception": "handling",
    "The above exception was the direct cause": "cause",
}
_READS_ON = re.compile(r"(?:nccl\w+Error: |Last error:|Original (?:error|exception):)")
_PLACE = re.compile(r"\.(?:cc|cpp|cu|h|hpp):\d+\]$", re.ASCII)  # where a C++ message begins
_AT_ONCE = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception))(?:\1)+(?:: )+")  # two ranks, one line
_MOST_TEXT = 1200
_NAMED = re.compile(r"[A-Za-z_][\w.]* +")
_NOTEBOOK = re.compile(r"-+> ?\d+ |Cell In|Input In|File .*, in |<ipython-input|[~/]\S+ in \S")
_DRAWN = " \t│╭╰─┌└|❱"


@dataclass(frozen=True)
class Raised:
    """One exception: "type: message" as printed, its line, "path:function" of its frames, how the next one followed.

    `below` is the line above the traceback's header.
    """

    text: str
    line: int
    head: str
    frames: tuple[str, ...]
    then: str = ""
    below: str = ""

    @property
    def type(self) -> str:
        """The type's name without its module."""
        return self.text.partition(":")[0].rpartition(".")[2].strip()


@dataclass
class _Open:
    prefix: str
    below: str = ""
    frames: deque[str] = field(default_factory=lambda: deque(maxlen=64))
    indent: int = 0
    chain: list[Raised] = field(default_factory=list)
    ended: bool = False
    read_to: int = 0
    then: str = ""
    waiting: int = 0
    interleaved: int = 0
    muted: bool = False
    wrapper: Raised | None = None


@dataclass
class _Ignored:
    """How many exceptions Python said that it ignored and has not shown yet, and the lines since."""

    count: int = 0
    waiting: int = 0


class Tracebacks:
    """Feed it lines in order; it hands back chains that are complete."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._done: list[tuple[Raised, ...]] = []
        self._ignored: dict[str, _Ignored] = {}
        self._header = 0, ""

    @property
    def open(self) -> bool:
        """Whether further lines may belong to a traceback."""
        return bool(self._open or self._ignored)

    def feed(self, number: int, text: str, below: str = "") -> bool:
        """Take a line, and for a header the line above; True where it was a part of a traceback.

        A part says nothing by itself.
        """
        body = _TIME.sub("", text, count=1)
        if self._open or "Traceback (" in body or 'File "' in body:  # lines of one traceback may differ in their time
            body = _CLOCK.sub(r"\1", body, count=1)
        header = _HEADER.search(body) if "Traceback (m" in body else None
        if header and header.start() <= 120:
            self._header = number, text
            label = _prefix(body[: header.start()])
            muted = self._take_ignored(label)
            self._begin(label, below, muted=muted, is_original=bool(header["original"]))
            return True
        if (self._ignored or IGNORED[0] in body or IGNORED[1] in body) and self._is_ignored(body):
            return True
        prefix = max(filter(body.startswith, self._open), key=len, default=None)
        if prefix is not None:
            return self._continue(self._open[prefix], number, text, body[len(prefix) :])
        lone = _LONE_FRAME.match(body)
        if lone:
            logged = self._header[1] if self._header[0] == number - 1 else ""  # a logger heads the header only
            self._begin(lone["prefix"], logged, muted=False)
            return self._continue(self._open[lone["prefix"]], number, text, body[len(lone["prefix"]) :])
        return False

    def _is_ignored(self, body: str) -> bool:
        """Whether a line says that Python ignored an exception, or is one that it ignored and that has no traceback."""
        said = _IGNORED.search(body)
        if said and said.start() <= 120:
            self._ignored.setdefault(body[: said.start()], _Ignored()).count += 1
            return True
        above = max(filter(body.startswith, self._ignored), key=len, default=None)
        if above is None:
            return False
        known = self._open.get(above)
        if (known is None or known.ended) and is_exception(body[len(above) :]):
            return self._take_ignored(above)
        self._ignored[above].waiting += 1
        if self._ignored[above].waiting > _PATIENCE:
            del self._ignored[above]
        return False

    def _take_ignored(self, prefix: str) -> bool:
        """Whether what begins here was ignored: as often as Python said so."""
        ignored = self._ignored.get(prefix)
        if ignored is None:
            return False
        ignored.count -= 1
        if not ignored.count:
            del self._ignored[prefix]
        return True

    def finished(self) -> list[tuple[Raised, ...]]:
        """Chains completed since the last call, oldest exception first."""
        done, self._done = self._done, []
        return done

    def close(self) -> list[tuple[Raised, ...]]:
        """At the end of the log, or where the job went on: what is open is complete."""
        for one in list(self._open.values()):
            self._end(one)
        return self.finished()

    def _begin(self, prefix: str, below: str, *, muted: bool, is_original: bool = False) -> None:
        known = self._open.get(prefix)
        if known and known.ended and is_original and _WRAPPER.search(known.chain[-1].text):
            known.wrapper = known.chain.pop()
            known.ended, known.waiting = False, 0
            known.frames.clear()
            return
        if known and not known.ended:
            known.interleaved += 1
            return
        if known and known.then and len(known.chain) < _MOST_LINKS:
            known.chain[-1] = replace(known.chain[-1], then=known.then)
            known.ended, known.then, known.waiting = False, "", 0
            known.frames.clear()
            return
        if known:
            self._end(known)
        if len(self._open) >= _MOST_OPEN:
            self._end(next(iter(self._open.values())))
        self._open[prefix] = _Open(prefix, below, muted=muted)

    def _continue(self, one: _Open, number: int, text: str, rest: str) -> bool:
        if not rest.strip():
            if number == one.read_to + 1 and one.chain and one.chain[-1].text.endswith(":"):
                one.read_to = number  # what the exception announces stands below a blank line
            return True
        if one.ended:
            return self._after(one, number, rest)
        frame = _FRAME.match(rest)
        if frame:
            one.frames.append(f"{frame['path']}:{frame['function'] or ''}")
            one.indent = _indent(rest)
            return True
        if _indent(rest) < one.indent and is_exception(rest.strip()):  # the whole of it may be indented
            self._raise(one, Raised(singled(rest.strip()), number, text, tuple(one.frames), below=one.below))
            return True
        if rest[0] in _DRAWN or _NOTEBOOK.match(rest):
            return True
        if is_exception(rest):
            self._raise(one, Raised(singled(rest.strip()), number, text, tuple(one.frames), below=one.below))
            return True
        return self._wait(one, _PATIENCE)

    def _raise(self, one: _Open, raised: Raised) -> None:
        one.waiting = 0
        if one.interleaved:
            one.interleaved -= 1
            if not one.muted:
                self._done.append((*one.chain, raised))
            one.chain = []
        else:
            one.ended, one.read_to = True, raised.line
            if one.wrapper:
                raised, one.wrapper = replace(raised, line=one.wrapper.line, head=one.wrapper.head), None
            one.chain.append(raised)

    def _after(self, one: _Open, number: int, rest: str) -> bool:
        link = next((link for words, link in _LINKS.items() if rest.startswith(words)), "")
        if link:
            one.then, one.waiting = link, 0
            return True
        last = one.chain[-1]
        if one.then and is_exception(rest):  # its stack was left out
            one.chain[-1], one.then = replace(last, then=one.then), ""
            self._raise(one, Raised(singled(rest.strip()), number, rest, tuple(one.frames), below=one.below))
            return True
        if number == one.read_to + 1 and continues(last.text, rest):
            one.chain[-1], one.read_to = replace(last, text=f"{last.text} {rest.strip()}"), number
        return self._wait(one, _CHAIN_GAP)

    def _wait(self, one: _Open, patience: int) -> bool:
        one.waiting += 1
        if one.waiting > patience:
            self._end(one)
        return False

    def _end(self, one: _Open) -> None:
        del self._open[one.prefix]
        if one.chain and not one.muted:
            self._done.append(tuple(one.chain))


def _prefix(before: str) -> str:
    """What stands before each line of a traceback, out of what stands before its header."""
    if _NAMED.fullmatch(before):  # a notebook's header begins with the exception
        return ""
    if before.endswith("traceback : "):  # torchrun's field
        return before[: -len("traceback : ")]
    return before.rstrip("╭─ ") if "╭" in before else before


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def continues(text: str, rest: str) -> bool:
    """Whether the message of an exception goes on in the next line: it stops within a sentence, or NCCL adds to it."""
    if len(text) > _MOST_TEXT or not any(letter.isalpha() for letter in rest):
        return False
    return text.endswith((":", ",")) or bool(_PLACE.search(text) or _READS_ON.match(rest.lstrip()))


def singled(text: str) -> str:
    """The exception that two ranks wrote into one line at once, once: `KeyErrorKeyError: : 'x''x'`."""
    return _AT_ONCE.sub(r"\1: ", text, count=1)


def is_exception(text: str) -> bool:
    """Whether a line reads like a traceback's last one: the name of an exception, and perhaps a message."""
    final = _FINAL.match(text.rstrip())
    if not final:
        return False
    name = final["type"].rpartition(".")[2]
    return name.endswith(_ENDINGS) or ("." in final["type"] and not name.endswith(("py", "sh")))
