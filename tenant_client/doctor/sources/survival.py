r"""What shows that a job lived on after what looked like its failure: steps, records of its logger, a good end.

- A step is a line that says so (`iteration 7`, `3.8it/s`), and whatever repeats with a growing counter, in any format.
  Times, sizes, ranks, ids, retries, heartbeats and other words of an end count nothing.
- A record is a line of a logger, of any make: its level, and a shape that other records of that logger have, too.

>>> steps = Steps()
>>> for n in range(5):
...     _ = steps.feed(f"Epoch [{n}/90], Acc@1 {0.3 + n % 2}")
>>> steps.count
5
>>> record("2026-01-05 10:00:00,123 - data - WARNING - sample 17 skipped").level.name
'WARNING'
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import islice

from tenant_client.doctor.sources.prefixes import NCCL_LINE
from tenant_client.doctor.sources.scanning import Line, alternation

SURVIVED = 5  # so many steps after a failure show that it ended nothing
STEP = re.compile(r"\b(\d+)/\d+ \[|\biteration\D{0,12}(\d+)|\b(?:step|iter)\W{1,8}(\d+)", re.ASCII | re.IGNORECASE)
_WORDS = ("it/s", "s/it", "loss", "iteration")
_COUNTED = re.compile(r"\b(?:step|upd|updates?|batch)\W{1,8}(\d+)", re.ASCII | re.IGNORECASE)
_LOOKED_AT, _MOST_NUMBERS, _MOST_KINDS = 400, 24, 512
_UNEVEN = 12  # so many numbers that grow by chance alone are one in 12!

# Lines that come when a job ends, waits or tries again, or that a stack or a table of devices repeats; the words first,
# since they are quickly looked for.
_END_WORDS = (
    *("retr", "attempt", "still", "time out", "timeout", "timed out", "heartbeat", "watchdog", "monitor", "signal"),
    *("abort", "terminat", "exit", "shut", "clos", "destroy", "poll", "connect", "backoff", "backing off"),
    *("unreachable", "wait", "kill", "dead", "lost", "sleep", "fail", "error", "exception", "fatal", "critical", "n/a"),
    *("0x", "nccl ", 'file "', "frame #", "srun: ", "slurmstepd", "wandb: ", "make: "),
)
_MAY_END = re.compile(alternation(_END_WORDS))
_END = re.compile(
    r"(?i:\b(?:retr(?:y|ies|ying)|attempts?|still|time[ds]?[ -]?out|heartbeats?|watchdog|monitor\w*|signal|abort\w*"
    r"|terminat\w*|exit\w*|shut\w*|clos(?:e|ed|ing)|destroy\w*|poll\w*|(?:re|dis)connect\w*|back(?:ing )?off"
    r"|unreachable|(?:wait(?:ed|ing|s)?|kill\w*|dead|lost|sleep\w*)(?![=:] ?\d))\b)"
    r"|\b[Ff]ail(?:ed|ures?)\b(?![ =:]+\d)|\bERROR\b|\berror: |\b(?:FATAL|CRITICAL|N/A)\b"
    r"|[A-Za-z](?:Error|Exception)\b|0x[\da-f]{4}|NCCL (?:INFO|WARN)|^\s*File \"|^(?:srun|slurmstepd|wandb|make): "
    r"|^\s*frame #",
    re.ASCII,
)
_BUS_ID = re.compile(r":[\dA-Fa-f]{2}:[\dA-Fa-f]{2}\.\d\b", re.ASCII)
_CLOCK = re.compile(r"\d{4}[-/]\d\d[-/]\d\d(?:[tT _,]+\d)?|\d+:\d\d(?::\d\d)?(?:[.,]\d+)?", re.ASCII)
_NUMBER = re.compile(  # the digit first, then what precedes it: only places with a digit are tried
    r"\d(?:(?<![A-Za-z\d.-]\d)|(?<=[a-z]{4}\d)|(?<=[a-z]-\d))\d*(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w|\.\d)",
    re.ASCII,
)
_WORD_BEFORE = re.compile(r"[^a-z\d#]{0,20}([a-z]+|#)", re.ASCII)  # of a text backwards
_UNIT_AFTER = re.compile(
    r" ?(?:[munμ]?s|secs?|seconds?|mins?|minutes?|h|hours?|days?|[kmgt]i?b)\b", re.ASCII | re.IGNORECASE
)
# Words before a number that is an id, or a time.
_NO_COUNTER = frozenset(
    (
        *("rank", "gpu", "cuda", "device", "pid", "process", "processor", "proc", "worker", "node", "host", "thread"),
        *("tid", "lwp", "port", "line", "task", "job", "channel", "link", "cpu", "core", "actor", "replica", "peer"),
        *("server", "client", "slot", "code", "errno", "uid", "id", "restart", "version", "#", "time", "elapsed"),
        *("uptime", "eta", "duration", "age", "ms", "sec", "second", "min", "minute", "h", "hour"),
    )
)
# What tells a step from a list of ids: a total or a share, a measurement, or the word for what is counted.
_MEASURED = re.compile(r"\d ?/ ?\d|\d ?%|\d of \d|\d\.\d", re.ASCII)
_STEP_WORDS = (
    *("step", "epoch", "iter", "batch", "upd", "sample", "token", "example", "image", "episode", "round", "generation"),
    *("trial", "fold", "record", "row", "chunk", "shard", "game", "progress", "processed", "done", "train", "eval"),
    *("valid", "acc", "checkpoint", "saved"),
)
_NO_LETTER = re.compile(r"[^A-Za-z]+")
_MOST_DIGITS = 10  # longer numbers are times


class Steps:
    """Counts the steps since the last failure: distinct ones, however many ranks print each."""

    def __init__(self) -> None:
        self._named: set[str] = set()
        self._counters: dict[tuple[str, int], tuple[_Run | None, ...]] = {}
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
        if found:
            self._named.add(next(filter(None, found.groups())))
        elif named and not is_teardown(text):
            self._named.add(text[:_LOOKED_AT])
        if self.count == before and not is_teardown(text):
            self._count(_CLOCK.sub(" ", text[:_LOOKED_AT]))
        return self.count > before

    def _count(self, text: str) -> None:
        numbers = _NUMBER.findall(text)
        kind = _NO_LETTER.sub(" ", text), len(numbers)
        runs = self._counters.get(kind)
        if runs is None:
            if len(self._counters) >= _MOST_KINDS:
                return
            runs = self._counters[kind] = _runs(text) if kind[0].strip() or len(numbers) > 2 else ()
        for run, number in zip(runs, numbers, strict=False):
            if run is not None:
                run.grow(float(number.replace(",", "")))
                self._longest = max(self._longest, run.steps)


def _runs(text: str) -> "tuple[_Run | None, ...]":
    """A run for each number of a line that may be a counter: no id, no time, no size."""
    lower = text.lower()
    if _MEASURED.search(text) is None and not any(word in lower for word in _STEP_WORDS):
        return ()
    may_count = []
    for number in islice(_NUMBER.finditer(text), _MOST_NUMBERS):
        word = _WORD_BEFORE.match(lower[: number.start()][::-1])
        unit = _UNIT_AFTER.match(text, number.end())
        before = word[1][::-1] if word else ""
        names_an_id = not _NO_COUNTER.isdisjoint((before, before.removesuffix("s")))
        may_count.append(unit is None and not names_an_id and len(number[0]) < _MOST_DIGITS)
    return tuple(_Run() if may else None for may in may_count)


@dataclass
class _Run:
    """Growing values of one counter: what ranks repeat changes nothing, a smaller value begins another run."""

    seen: set[float] = field(default_factory=set)
    last: float = 0.0
    strides: set[float] = field(default_factory=set)

    @property
    def steps(self) -> int:
        """Even strides are a counter's; uneven ones may be chance, and so count less."""
        return len(self.seen) if len(self.strides) < 2 else len(self.seen) * SURVIVED // _UNEVEN

    def grow(self, value: float) -> None:
        if value in self.seen:
            return
        if value < self.last:
            self.seen.clear()
            self.strides.clear()
        elif self.seen:
            self.strides.add(round(value - self.last, 6))
        self.seen.add(value)
        self.last = value


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
    r"|(?:^|(?<=[:\] ]))(?P<glog>[DIWEF])(?=\d{4} \d\d:\d\d:\d\d)"
    r"|(?<=\[)(?:NeMo )?(?P<letter>[DIWEF])(?= (?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d)",
    re.ASCII,
)
_LEVEL_WORDS = (
    *("INFO", "WARN", "ERROR", "DEBUG", "TRACE", "NOTICE", "SUCCESS", "EXCEPTION", "CRITICAL", "FATAL"),
    *("[info", "[warn", "[error", "[debug", "[exception", "[critical", "evel", "lvl", "everity"),
)
_MAY_BE_RECORD = re.compile(alternation(_LEVEL_WORDS))
_LETTER = re.compile(r"\W{0,4}(?:[DIWEF]\d{4} |(?:NeMo )?[DIWEF] \d\d)", re.ASCII)
_BEFORE_LEVEL = 100
_ORIGIN = re.compile(r"^\[?(?:rank|default)?\d*\]?: ?|\([^()]{1,80}\) ?", re.ASCII)
_SENTENCE = re.compile(r"[A-Za-z]{2,} [a-z]{2,}")
_CPP = re.compile(r"\.(?:cpp|cc|cxx|cu|h|hpp):\d+\]|\[[DIWEF]\d{4} ", re.ASCII)


def record(text: str) -> Record | None:
    """The level and shape of a line that a logger of Python's wrote; None for all others."""
    head = _ORIGIN.sub("", text[:256], count=1)
    if not _MAY_BE_RECORD.search(head) and not _LETTER.match(head):
        return None
    found = _LEVEL.search(head, 0, _BEFORE_LEVEL)
    if not found or _SENTENCE.search(head[: found.start()]) or NCCL_LINE.search(head) or _CPP.search(head):
        return None
    level = _LEVELS.get(next(filter(None, found.groups())).lower())
    shape = re.sub(r"\w+", "w", head[: found.start()]) + head[found.end() : found.end() + 1]
    return None if level is None else Record(level, shape)


@lru_cache(1)  # of the line that was counted as no step
def is_teardown(text: str) -> bool:
    """Whether a line reads like one of a job that ends, waits or tries again."""
    text = text[:_LOOKED_AT]
    may = _MAY_END.search(text.lower()) is not None
    return _BUS_ID.search(text) is not None or (may and _END.search(text) is not None)


# ---- how far it came -----------------------------------------------------------------------------------------------

_OF_TOTAL = re.compile(r"(?<![\d./])(\d{1,9})/(\d{1,9})(?![\d./])", re.ASCII)
_NO_TRAINING = re.compile(
    r"(?i)\b(?:load\w*|download\w*|fetch\w*|generat\w*|map|filter\w*|token\w*|sav(?:e|ing)|sanity|valid\w*|eval\w*"
    r"|test\w*|predict\w*|shards?|clients?|ranks?|nodes?|workers?|retr\w+|attempts?|try|tries|restarts?)\b"
)
_NO_STEPS = re.compile(r"(?i) (?:\w+ )?(?:shards?|clients?|ranks?|nodes?|workers?|retries|attempts?|tries|restarts?)\b")


def completed(lines: Iterable[Line], after: int) -> frozenset[int]:
    """The lines below line `after` in which training reached its total (`step 2000/2000`), which it had not before."""
    counted = [(line.number, found) for line in lines if (found := _counted(line.text))]
    ended = {(what, total) for number, (what, done, total) in counted if number <= after and done == total}
    begun: set[tuple[str, int]] = set()
    reached = set()
    for number, (what, done, total) in counted:
        if done < total:
            begun.add((what, total))
        elif number > after and (what, total) in begun - ended:
            reached.add(number)
    return frozenset(reached)


def _counted(text: str) -> tuple[str, int, int] | None:
    """What is counted, how far, and of how many; what builds count (`[3/7] Building …`) has no word before it."""
    found = _OF_TOTAL.search(text, 0, _LOOKED_AT)
    if found is None or _NO_TRAINING.search(text, 0, found.start()) or _NO_STEPS.match(text, found.end()):
        return None
    what = _NO_LETTER.sub(" ", text[: found.start()]).strip()
    return (what, int(found[1]), int(found[2])) if what or "%|" in text[: found.start()] else None


# ---- ends and beginnings -------------------------------------------------------------------------------------------

WELL = re.compile(
    r"(?i)\b(?:train(?:ing|er)?|fit(?:ting)?|evaluation|all epochs)\b(?: \w+){0,2}(?: is| has| was)?(?: now)?"
    r" (?:completed?|finished|done|succeeded)\b"
    r"|\b(?:execution|benchmark|tuning|sweep|(?:hyper)?parameter search|study|inference|generation|tokeni[sz]ation"
    r"|pre-?processing|conversion)\b(?: (?:is|has|was))? (?:completed?|finished|done|succeeded)\b"
    r"|\b(?:run|job|worker group|experiment|pipeline) (?:\S+ )?succeeded\b"
    r"|\b(?:run|experiment|pipeline) (?:\S+ )?completed?\b(?! with)|^(?:done|finished|completed) in \d"
    r"|\b(?:finished|completed|done|end of) (?:with )?(?:the )?train\w*\b|\ball (?:\w+ )?done\b"
    r"|^\d+ epochs? completed in \d"
    r"|\bsuccessfully (?:completed|finished)\b|\b(?:completed|finished|ended|done|exits|exited) successfully\b"
    r"|\bsaved model (?:file )?to\b|\bmodel (?:was )?saved\b"
    r"|\b(?:saved|saving|wrote|uploaded) (?:the )?final\b|\bfinal (?:model|checkpoint|weights) (?:was |is )?saved"
    r"|max_(?:epochs|steps)\W{0,2}=\W{0,2}\d+\W{0,2} reached|\bexit ?(?:code|status)\W{1,3}0\b|\bwith code 0\b"
)
# What a launcher, a program of many parts (trials, requests) or a trainer prints once: the whole has ended well.
SUMMED_UP = re.compile(
    r"\bTrial status: (?:\d+ ERROR \| )?[1-9]\d* TERMINATED(?: \| \d+ ERROR)?\s*$"
    r"|\bNumber of trials: \d+(?:/\d+)? \((?:\d+ ERROR, )?[1-9]\d* TERMINATED\)"
    r"|(?i:\b(?:successful|succeeded|completed|finished) (?:requests|trials|prompts|queries)\W{1,60}[1-9])"
    r"|(?i:^(?:.{0,60}[\]|:-] )?\W{0,4}(?:the )?best (?:trial|(?:hyper-?)?param\w*|config\w*)\b)"
    r"|(?i:^(?!.*\b\d+ ?(?:of|/) ?\d)\W{0,4}(?:\S{1,30} )?job\b.{0,60}\bsucceeded\W*$)|\bJobState=COMPLETED\b"
    r"|^(?:\[[^\]]{1,40}\] |[+$] )*(?:echo )?(?!.*\b(?:rank|worker|process|pid|task|pod|container|node)\b)"
    r"(?:[\w./-]{1,60} )?(?i:exit(?:ed)?|returned|ended|finished)(?: with)?(?i: exit)?[ _]?(?i:code|status)\W{0,3}0\W*$"
    r"|^ *(?:\S+ +)*COMPLETED +0:0\b"  # as sacct prints it
    r"|^Completed +\d{4}-\d\d-\d\dT|\bNormal termination \(return value 0\)|\b(?:finished|done|ended) rc=0\W*$"
    r"|^\*\*\* Best metric: \d"
    r"|^=*\s?(?!.*\b(?:failed|errors?)\b)(?:\d+ (?:passed|skipped|x?failed|xpassed|warnings?),? )+in [\d.]+s\b"
    r"|['\"]train_runtime['\"]: |^\*{3,} (?:train|eval) metrics \*{3,}"
)
NO_ERROR = re.compile(r"(?i)\b(?:errors?[=:] ?(?:none|0)\b|(?:0|no) errors?\b)")
ENDED_BADLY = re.compile(r"(?i)\bexit(?:s|ed)?(?: with)?(?: return)?(?: code| status)?\W{1,3}[1-9]")
_AGAIN = re.compile(
    r"will restart worker group|restart_count=[1-9]"
    r"|(?i:\brestart(?:[_ ]?(?:count|number|attempt))?[ =:#]{1,3}[1-9]\d*\b"
    r"(?! ?(?:times?|s|secs?|seconds?|min\w*|workers?|process\w*|nodes?|ranks?|pods?|more)\b))"
    r"|(?i:^(?!.*\b(?:to|can|could|use|please|before|when|if|by|without) resum)(?:.*[\s\]:=])?"
    r"(?:resum(?:e|ed|ing)\b:? .*\b(?:from|at|checkpoint|step)\b|continu(?:ed|ing) training from\b))"
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
    "estart",
    "ESTART",
    "esum",
    "ontinu",
)
_MAY_BEGIN = re.compile(alternation(_AGAIN_WORDS))
CAUGHT = re.compile(
    r"(?i)\b(?:retr\w+|skip\w*|ignor\w*|fall\w*[ -]?back|caught|suppress\w*|continu\w*|could not|cannot|can't|unable"
    r"|failed|optional|disabl\w*|recover\w*|try\w* again|will be|went wrong)\b"
)
GOES_ON = re.compile(r"(?i)\b(?:retrying|skipp(?:ing|ed)|ignor(?:ing|ed)|will (?:be )?(?:retr\w+|skip\w*|ignore))\b")
_PART = re.compile(
    r"(?i)\b(trial|request|prompt|query|sample|example|row|item|record|document|image|url|episode|rollout)s?\b"
)
_PART_FAILED = re.compile(r"(?i)\b(?:fail\w*|errors?|errored|exception|reject\w*|invalid|bad|skip\w*|ignor\w*)\b")


def part_of(text: str) -> str:
    """The part that failed by this line of a program that goes on without it ("trial", "request", …), or ""."""
    part = _PART.search(text) if _PART_FAILED.search(text) else None
    return part[1].lower() if part else ""


def begins_again(text: str) -> bool:
    """Whether a line says that another attempt begins, or that one has ended."""
    may = text[:1] == "+" or _MAY_BEGIN.search(text) is not None
    return may and _AGAIN.search(text[:_LOOKED_AT]) is not None
