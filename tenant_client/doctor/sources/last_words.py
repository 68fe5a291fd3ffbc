"""What the end of a log says where nothing else in it names a cause: weak evidence, and so the last that is asked.

- The last line of an exception whose traceback is not there: among the last lines, or below a line of code.
- Lines of the table's section `end`, which need no word of the gate.
- Losses that are no number, if no later one is.
- Any other line that names an exception, where the log says that something failed.

Nothing before the job's last step counts: it went on after that. Lines of launchers and trackers, which come after a
failure, are passed over.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tenant_client.doctor.sources.cues import Cue, Level, match_line, table
from tenant_client.doctor.sources.scanning import Line
from tenant_client.doctor.sources.survival import STEP, SURVIVED, LogLevel, Steps, record
from tenant_client.doctor.sources.tracebacks import Raised, continues, is_exception, singled

_LAST_WORDS = 4
_NAN_LOSSES = 2
_TAKEN_AWAY = frozenset({"preempted", "node_failure"})
# What launchers, containers and notebooks put before a line.
_BEFORE = re.compile(
    r"^(?:\[?(?:rank|default)?\d{1,6}\]?: ?|\[[\w.-]{1,40}[:,]\d{1,4}\](?:<std\w+>:)? ?"
    r"|\[(?:\d{1,4},mpirank:)?\d{1,6}(?:,[\w-]+)?\]<std\w+>: ?"
    r"|\s*\"message\": \"|ErrorMessage \"|\([^()]{1,80}\) |\[(?!INFO|WARN|DEBUG|info|warn|debug)[A-Za-z][\w.-]{0,60}\] "
    r"|[a-z][a-z0-9.-]{0,60}\d[a-z0-9.-]{0,20}: |\[?\d{4}-\d\d-\d\d[T ][\d:.,]+Z?\]?[: ]+"
    r"|\[?(?:E|ERROR|CRITICAL|FATAL)\b\]?[: ]+(?:\d\d-\d\d [\d:]{8} \[[\w./]+:\d+\] )?)+",
    re.ASCII,
)
_AFTERWORDS = re.compile(
    r"^(?:srun|slurmstepd[-\w.]*|wandb|make): |^\[?mpirun|Sending process \d+ closing|Killing subprocess"
    r"|resource_tracker|^(?:Loading|Downloading|Fetching|Generating|Map|Filter)\b.*%\||^\W*$"
    r"|^Exception raised from|^frame #\d+:|^CUDA kernel errors might|^For debugging consider|^Compile with `TORCH"
    r"|^Device-side assertion tracking|^Search for `cuda|^GPU device may be out of range|^  warnings\.warn\("
    r"|HYDRA_FULL_ERROR|^=+ .+ =+$|^FAILED \S+::|^\S+\.py:\d+: \w+$",
    re.ASCII,
)
_RETRIED = re.compile(r"(?i)\bretry|\bretries left|\boffline\b(?! mode at)", re.ASCII)
_GOES_ON = re.compile(  # a message of several lines, with its hints
    r"\s|`|$|from user code:|Set [A-Z_]+="
    r"|(?:You|If you|For (?:more|further)|To (?:fix|see|debug)|Please|See|Hint|Note|Possible|Check\w*)\b",
    re.ASCII,
)
_CODE = re.compile(r'\s{4,}\S|\s*File "[^"]*", line \d+, in ', re.ASCII)
_NAMED = re.compile(
    r"(?<![\w.])(?<!raise )((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))(?:: |\(['\"])(?=\S)", re.ASCII
)
_TYPE = re.compile(
    r"\b(?:exc|exception|error)_?(?:type|class|name)\"?[=:] ?\"?((?:\w+\.)*\w+(?:Error|Exception))\b", re.ASCII
)
# What XLA, TensorFlow and gRPC call an error; not their warnings.
_STATUS = re.compile(
    r"^(?!(?:.*: )?[IW] \S+\.cc:\d+\]).*?(?:^|[\s(\]:])"
    r"((?:INTERNAL|INVALID_ARGUMENT|FAILED_PRECONDITION|RESOURCE_EXHAUSTED|UNAVAILABLE"
    r"|DEADLINE_EXCEEDED|UNIMPLEMENTED|ABORTED|DATA_LOSS|NOT_FOUND|PERMISSION_DENIED|UNAUTHENTICATED): +[A-Za-z].*)",
    re.ASCII,
)
_ERRNO = re.compile(r"\[Errno \d{1,3}\] [A-Z]", re.ASCII)
_FAILED = re.compile(  # a job's, not a measure's
    r"\b(?:ERROR|FATAL|CRITICAL|FAILED)\b|\b(?:[Uu]ncaught|[Uu]nhandled|[Cc]rashed|CCL error|ncclRemoteError)\b"
    r"|^(?:.*[\s\]])?(?:giving up|[Jj]ob failed|Failed - )|[Ff]ailed \(exitcode"
    r"|(?i:exit(?:s|ed)?(?: with)?(?: return)?(?: code| status)?\W{1,3}[1-9])",
    re.ASCII,
)
_TELLS = re.compile(
    r"(?i)\b(?:error|fatal|uncaught|unhandled|crash\w*|raised|exception|fail(?:ed|ure)|abort\w*)\b[^.;]{0,40}$"
    r"|\(Caused by $",
    re.ASCII,
)
_WENT_ON = re.compile(
    r"(?i)\b(?:retry\w*|(?<!max )retries|skip\w*|ignor\w*|fall\w*[ -]?back|suppress\w*|continu\w*|recover\w*)\b"
)
_BAR = re.compile(r"\b\d+/\d+ \[", re.ASCII)
_KERAS = "Exception encountered when calling"  # begins a message of several lines
_LOSS = re.compile(r"(?i)\b(?:\w*loss(?:es)?|grad_?norm)\b[^\d\n]{0,40}?\b(?:(nan)\b|\d)", re.ASCII)


@dataclass(frozen=True)
class LastWord:
    """A line that says a cause, and the text that says it."""

    cue: Cue
    line: Line
    text: str


def raised(tail: Sequence[Line], read: Collection[str]) -> list[Raised]:
    """Exceptions without their tracebacks, in their order; `read` are lines that were parts of tracebacks."""
    told = _after_last_step([line for line in tail if not _AFTERWORDS.search(_body(line))])
    found: list[Raised] = []
    for at, line in enumerate(told):
        text = singled(_body(line).strip())
        below_code = at > 0 and _CODE.match(_body(told[at - 1])) is not None
        if found and at and found[-1].line == told[at - 1].number and continues(found[-1].text, text):
            found[-1] = replace(found[-1], text=f"{found[-1].text} {text}", line=line.number)
        elif (at >= len(told) - _LAST_WORDS or below_code) and line.text not in read and is_exception(text):
            found.append(Raised(text, line.number, line.text, (), "handling"))
    retried = max((line.number for line in tail if _RETRIED.search(line.text)), default=-1)
    return [one for one in found if one.line > retried]


def reported(tail: Sequence[Line], read: Collection[str]) -> list[Raised]:
    """Exceptions that any line names, in their order, where another line, or a logger, says that something failed.

    One whose message goes on to the end of the log needs no other line.
    """
    told = _after_last_step(tail)
    below = [*(_body(line).strip() for line in told[1:]), ""]
    found = [
        Raised(f"{text} {rest}" if continues(text, rest) else text, line.number, line.text, ())
        for line, rest in zip(told, below, strict=False)
        if line.text not in read and (text := _named(line))
    ]
    failed = [line.number for line in tail if _FAILED.search(line.text)]
    ends = next((line.number for line in reversed(tail) if not _GOES_ON.match(_body(line))), 0)
    alone = {one.line for one in lone(tail) if one.line != ends}
    return [
        one
        for one in found
        if one.line not in alone or _KERAS in one.text or any(number != one.line for number in failed)
    ]


def lone(lines: Sequence[Line]) -> list[Raised]:
    """The lines that are an exception's last one, with or without its traceback."""
    bodies = ((line, singled(_body(line).strip())) for line in lines)
    return [Raised(body, line.number, line.text, ()) for line, body in bodies if is_exception(body)]


def notice(tail: Sequence[Line]) -> LastWord | None:
    """The line that says that the machine was, or is about to be, taken away."""
    ends = ((line, match_line(_body(line), ("end",))) for line in tail)
    return next((LastWord(cue, line, line.text) for line, cue in ends if cue and cue.reason in _TAKEN_AWAY), None)


def _named(line: Line) -> str:
    """The exception that a line is, or that it tells as an error; "" for what its logger calls less grave."""
    body, head = singled(_body(line).strip()), record(line.text)
    if _WENT_ON.search(body) or _AFTERWORDS.search(body) or (head is not None and head.level < LogLevel.ERROR):
        return ""
    if is_exception(body):
        return "" if body.partition(":")[0].endswith("Warning") else body
    status = _STATUS.search(body)
    if status is not None and _NAMED.search(body) is None:
        return f"XlaRuntimeError: {' '.join(status[1].split())}"
    found = _NAMED.search(body) or _TYPE.search(body) or _ERRNO.search(body)
    if found is None or not (head or _FAILED.search(body) or _TELLS.search(body[: found.start()])):
        return ""
    if found.re is _ERRNO:
        return f"OSError: {body[found.start() :]}"
    whole = found.re is not _NAMED or body[: found.start()].endswith("(Caused by ")  # the host stands before it
    return f"{found[1]}: {body if whole else body[found.end() :]}"


def said(tail: Sequence[Line], read: Collection[str] = ()) -> LastWord | None:
    """The line that section `end` explains, by the table's first cue; else a loss that is no number.

    The code that a traceback shows says nothing; `read` are lines that were parts of tracebacks.
    """
    tail = [line for line in tail if line.text not in read or not _CODE.match(_body(line))]
    ends = [
        LastWord(cue, line, line.text) for line in _after_last_step(tail) if (cue := _cue_of(_body(line))) is not None
    ]
    return min(ends, key=lambda word: word.cue.order) if ends else _nan(tail)


def _cue_of(text: str) -> Cue | None:
    """That of an end; of warnings, those that runtimes of devices give may stand alone."""
    cue = match_line(text, ("warning", "end"))
    if cue is None or not cue.explains:
        return cue
    return (match_line(text, ("end",)) or cue) if cue.level is Level.DEVICE else None


def _nan(tail: Sequence[Line]) -> LastWord | None:
    losses = [(line, found[1]) for line in tail if (found := _LOSS.search(line.text))]
    last = losses[-_NAN_LOSSES:]
    if not last or not all(nan for _, nan in last):
        return None
    cue = next(cue for cue in table().sections["exception"] if cue.reason == "nan_loss")
    return LastWord(cue, last[0][0], last[0][0].text)


def _after_last_step(lines: Sequence[Line]) -> Sequence[Line]:
    steps, last = Steps(), -1
    for at, line in enumerate(_without_last_bar(lines)):
        if not _AFTERWORDS.search(_body(line)):
            went_on = steps.feed(line.text) and steps.count >= SURVIVED
            last = at if went_on or (STEP.search(line.text) and not _tells_an_end(line)) else last
    return lines[last + 1 :]


def _without_last_bar(lines: Sequence[Line]) -> Sequence[Line]:
    """Without the progress bar that is drawn once more, at the same number, when the job ends."""
    bars = [_BAR.search(line.text) for line in lines]
    end = len(lines)
    while end and (bar := bars[end - 1]) and (last := bars[-1]) and bar[0] == last[0]:
        end -= 1
    return lines[:end]


def _tells_an_end(line: Line) -> bool:
    """Whether a line that names a step does so to say where the job ended."""
    return _NAMED.search(line.text) is not None or match_line(_body(line), ("end",)) is not None


def _body(line: Line) -> str:
    return _BEFORE.sub("", line.text, count=1)
