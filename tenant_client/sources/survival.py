r"""What shows that a job lived on after what looked like its failure: steps, records of its logger, a good end.

- A step is a line that says so (`iteration 7`, `3.8it/s`), and whatever repeats with a growing counter, in any format.
  Times, sizes, ranks, ids, retries, heartbeats and other words of an end count nothing.
- A record is a line of a logger, of any make: its level, and a shape that other records of that logger have, too.

>>> steps = Steps()
>>> for n in range(5):
...     steps.feed(f"Epoch [{n}/90], Acc@1 {0.3 + n % 2}")
>>> steps.count
5
>>> record("2026-01-05 10:00:00,123 - data - WARNING - sample 17 skipped").level.name
'WARNING'
"""

import itertools
import re
from dataclasses import dataclass
from enum import IntEnum

from tenant_client.sources.prefixes import NCCL_LINE

SURVIVED = 5  # so many steps after a failure show that it ended nothing
STEP = re.compile(r"\b(\d+)/\d+ \[|\biteration\D{0,12}(\d+)|\b(?:step|iter)\W{1,8}(\d+)", re.ASCII | re.IGNORECASE)
_WORDS = ("it/s", "s/it", "loss", "iteration")
_COUNTED = re.compile(r"\b(?:step|upd|updates?|batch)\W{1,8}(\d+)", re.ASCII | re.IGNORECASE)
_LOOKED_AT, _MOST_NUMBERS, _MOST_KINDS = 400, 24, 512
_UNEVEN = 12  # so many numbers that grow by chance alone are one in 12!

# Lines that come when a job ends, waits or tries again, or that a stack or a table of devices repeats.
_NO_STEP = re.compile(
    r"(?i:\b(?:retr(?:y|ies|ying)|attempts?|still|time[ds]?[ -]?out|heartbeats?|watchdog|monitor\w*|signal|abort\w*"
    r"|terminat\w*|exit\w*|shut\w*|clos(?:e|ed|ing)|destroy\w*|poll\w*|(?:re|dis)connect\w*|back(?:ing )?off"
    r"|unreachable|(?:wait(?:ed|ing|s)?|kill\w*|dead|lost|sleep\w*)(?![=:] ?\d))\b)|\b[Ff]ail(?:ed|ures?)\b(?![ =:]+\d)|\bERROR\b|\berror: "
    r"|\b(?:FATAL|CRITICAL|N/A)\b|[A-Za-z](?:Error|Exception)\b|0x[\da-f]{4}|NCCL (?:INFO|WARN)"
    r"|[\dA-Fa-f]{4}:[\dA-Fa-f]{2}:[\dA-Fa-f]{2}\.\d|^\s*File \"|^(?:srun|slurmstepd|wandb|make): |^\s*frame #",
    re.ASCII,
)
_UNCOUNTED = re.compile(
    r"(?i)\d{4}[-/]\d\d[-/]\d\d(?:[t _,]+\d)?|\d+:\d\d(?::\d\d)?(?:[.,]\d+)?|\b[iwef]\d{4} |\d{10,}(?:\.\d+)?"
    r"|\b(?:\w*elapsed|uptime|\w*time\w*|eta|duration|age)\b[^\w\n]{0,20}\d[\d.]*"
    r"|(?:rank|gpu|cuda|device|pid|process|processor|proc|worker|node|host|thread|tid|port|line|task|job|channel|link"
    r"|cpu|core|actor|replica|peer|server|client|slot|signal|code|errno|uid|id|restart|version|#)s?"
    r"(?:[\s_:=\[(-]{1,4}|(?=\d))\d+(?:/\d+)?"
    r"|\b\d[\d.,]* ?(?:[munμ]?s|secs?|seconds?|mins?|minutes?|h|hours?|days?|[kmgt]i?b)\b",
    re.ASCII,
)
_NUMBER = re.compile(
    r"(?:(?<![A-Za-z\d.-])|(?<=[a-z]{4})|(?<=[a-z]-))\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w|\.\d)", re.ASCII
)
# What tells a step from a list of ids: a total or a share, a measurement, or the word for what is counted.
_OF_STEPS = re.compile(
    r"\d ?/ ?\d|\d ?%|\d of \d|\d\.\d|(?i:step|epoch|iter|batch|upd|sample|token|example|image|episode|round|generation"
    r"|trial|fold|record|row|chunk|shard|game|progress|processed|done|train|eval|valid|acc|checkpoint|saved)",
    re.ASCII,
)
_NO_LETTER = re.compile(r"[^A-Za-z]+")


class Steps:
    """Counts the steps since the last failure: distinct ones, however many ranks print each."""

    def __init__(self) -> None:
        self._named: set[str] = set()
        self._counters: dict[tuple[str, int], list[list[float]]] = {}
        self._longest = 0

    @property
    def count(self) -> int:
        """The steps so far."""
        return max(len(self._named), self._longest)

    def feed(self, text: str) -> bool:
        """Takes a line; True where it is the next of the steps."""
        before = self.count
        named = any(word in text for word in _WORDS)
        found = STEP.search(text) if named else _COUNTED.search(text)
        if named or found:
            self._named.add(next(filter(None, found.groups())) if found else text[:_LOOKED_AT])
        if self.count == before and not is_teardown(text):
            self._count(_UNCOUNTED.sub(" ", text[:_LOOKED_AT]))
        return self.count > before

    def _count(self, text: str) -> None:
        numbers = _NUMBER.findall(text) if _OF_STEPS.search(text) else ()
        words = _NO_LETTER.sub(" ", _NUMBER.sub(" ", text)).strip()
        if not 0 < len(numbers) <= _MOST_NUMBERS or not (words or len(numbers) > 2):
            return
        kind = words, len(numbers)
        if kind not in self._counters and len(self._counters) >= _MOST_KINDS:
            return
        runs = self._counters.setdefault(kind, [[] for _ in numbers])
        for run, number in zip(runs, numbers, strict=True):
            _grow(run, float(number.replace(",", "")))
        self._longest = max(self._longest, *map(_steps_of, runs))


def _grow(run: list[float], value: float) -> None:
    """A run of growing values: what ranks repeat changes nothing, a smaller value begins another run."""
    if value in run:
        return
    if run and value < run[-1]:
        run.clear()
    run.append(value)


def _steps_of(run: list[float]) -> int:
    """Even strides are a counter's; uneven ones may be chance, and so count less."""
    strides = {round(after - before, 6) for before, after in itertools.pairwise(run)}
    return len(run) if len(strides) == 1 else len(run) * 5 // _UNEVEN


# ---- records of loggers --------------------------------------------------------------------------------------------


class LogLevel(IntEnum):
    """How grave a logger calls its record."""

    DEBUG = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True)
class Record:
    """The head of a logger's line."""

    level: LogLevel
    shape: str


_LEVELS = {
    **dict.fromkeys(("trace", "debug", "d"), LogLevel.DEBUG),
    **dict.fromkeys(("info", "notice", "success", "i"), LogLevel.INFO),
    **dict.fromkeys(("warn", "warning", "w"), LogLevel.WARNING),
    **dict.fromkeys(("error", "exception", "critical", "fatal", "e", "f"), LogLevel.ERROR),
}
_LEVEL = re.compile(
    r"(?:^|(?<=[\s\[|(:]))(?P<upper>TRACE|DEBUG|INFO|NOTICE|SUCCESS|WARN(?:ING)?|ERROR|EXCEPTION|CRITICAL|FATAL)"
    r"(?=[\s\]|):,]|$)|\[(?P<lower>debug|info|warn(?:ing)?|error|exception|critical) *\]"
    r"|\b(?:level|lvl|severity)\"?[=:] ?\"?(?P<field>[A-Za-z]+)"
    r"|(?:^|(?<=[:\] ]))(?P<glog>[DIWEF])(?=\d{4} \d\d:\d\d:\d\d)",
    re.ASCII,
)
_BEFORE_LEVEL = 100
_ORIGIN = re.compile(r"^\[?(?:rank|default)?\d*\]?: ?|\([^()]{1,80}\) ?", re.ASCII)
_SENTENCE = re.compile(r"[A-Za-z]{2,} [a-z]{2,}")
_CPP = re.compile(r"\.(?:cpp|cc|cxx|cu|h|hpp):\d+\]|\[[DIWEF]\d{4} ", re.ASCII)


def record(text: str) -> Record | None:
    """The level and shape of a line that a logger of Python's wrote; None for all others."""
    head = _ORIGIN.sub("", text[:256], count=1)
    found = _LEVEL.search(head, 0, _BEFORE_LEVEL)
    if not found or _SENTENCE.search(head[: found.start()]) or NCCL_LINE.search(head) or _CPP.search(head):
        return None
    level = _LEVELS.get(next(filter(None, found.groups())).lower())
    shape = re.sub(r"\w+", "w", head[: found.start()]) + head[found.end() : found.end() + 1]
    return None if level is None else Record(level, shape)


def is_teardown(text: str) -> bool:
    """Whether a line reads like one of a job that ends, waits or tries again."""
    return _NO_STEP.search(text[:_LOOKED_AT]) is not None


# ---- ends and beginnings -------------------------------------------------------------------------------------------

WELL = re.compile(
    r"(?i)\b(?:train\w*|run|job|fit(?:ting)?|experiment|pipeline|evaluation|all epochs|everything)\b(?: \w+){0,2}"
    r"(?: is| has| was)?(?: now)? (?:complete(?:d)?|finished|done|succeeded|ended)\b(?! with (?:error|exit code [1-9]))"
    r"|\b(?:finished|completed|done|end of) (?:with )?(?:the )?(?:train\w*|run|job|fit(?:ting)?|all)\b"
    r"|\b(?:successfully|all) (?:completed|finished|done)\b|\b(?:completed|finished|ended|done) successfully\b"
    r"|\b(?:saved|saving|wrote|uploaded) (?:the )?final\b|\bfinal (?:model|checkpoint|weights) (?:was |is )?saved"
    r"|max_(?:epochs|steps)\W{0,2}=\W{0,2}\d+\W{0,2} reached|worker group successfully finished"
    r"|\bexit ?(?:code|status)\W{1,3}0\b|\bwith code 0\b"
)
_AGAIN = re.compile(
    r"will restart worker group|restart_count=[1-9]"
    r"|(?i:\b(?:restarting|relaunch\w*|resubmitt\w*|requeu(?:ed?|e?ing)|re-?running)\b(?! (?:in|after|is|may|not)\b))"
    r"|^(?:Exited with exit code \d|Successfully completed\.|Sender: LSF System)"
    r"|^\+{1,3} (?:\w+=\S* |exec |time |srun |env |timeout \S+ )*(?:\S*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed"
    r"|mpirun|horovodrun|srun|ray|bash|sh) \S|\b(?i:attempt|try|run|trial) #?[2-9]\d*(?: ?(?:/|of) ?\d+)?\W*$",
    re.ASCII,
)
_AGAIN_WORDS = (
    "start",
    "aunch",
    "esubm",
    "eque",
    "unning",
    "exit code",
    "Success",
    "Sender",
    "ttempt",
    "ry",
    "un",
    "rial",
)
CAUGHT = re.compile(
    r"(?i)\b(?:retr\w+|skip\w*|ignor\w*|fall\w*[ -]?back|caught|suppress\w*|continu\w*|could not|cannot|can't|unable"
    r"|failed|optional|disabl\w*|recover\w*|try\w* again|will be|went wrong)\b"
)


def begins_again(text: str) -> bool:
    """Whether a line says that another attempt begins, or that one has ended."""
    return (text[:1] == "+" or any(word in text for word in _AGAIN_WORDS)) and _AGAIN.search(
        text[:_LOOKED_AT]
    ) is not None
