r"""Stacks of processes of a job that hung: `py-spy dump` (text and `--json`), `faulthandler`, `pystack`, gdb's `py-bt`.

Of each process the main thread counts: the one of that name, else the one whose number is the process's, else the one
listed last, as `faulthandler` and gdb list the oldest. A file's name may tell the rank.

Guarantees: any text ends in stacks, perhaps none. A crash that `faulthandler` reports (`Fatal Python error`) is a job's
log, not one of these.

>>> text = 'Process 7: python train.py\nPython v3.12\n\nThread 7 (idle): "MainThread"\n    wait (a.py:3)\n'
>>> [(stack.rank, str(stack.frames[0])) for stack in stacks_in(text, "dump_rank3.txt")]
[(3, 'wait (a.py:3)')]
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, beginning
from tenant_client.doctor.sources import elastic

_MOST_BYTES, _MOST_FRAMES, _MOST_STACKS, _LETTERS = 1 << 24, 256, 4096, 200
_BEGINS = re.compile(
    r"\s*(?:Process \d+: .*\nPython v\d"
    r"|(?:Current thread|Thread) 0x[0-9a-f]+ (?:\[.{0,80}\] )?\(most recent call first\)"
    r"|Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!\n|Traceback for thread \d+ .*\(most recent call last\)"
    r"|(?:Thread \d+ \(.*\):\n)?Traceback \(most recent call first\):)"
)
_BEGINS_JSON = re.compile(r'(?s)\s*\[\s*\{(?=.{0,4000}"thread_name")(?=.{0,4000}"owns_gil")')
_PROCESS = re.compile(r"Process (\d{1,10}): ")
_THREAD = re.compile(r"\s*(?:Current thread|Thread|Traceback for thread) (0x[0-9a-fA-F]+|\d+)\b(.*)")
_FRAME = re.compile(r"\s+(?P<name>\S.{0,200}?) \((?P<file>[^()]{1,400}?):(?P<line>\d{1,9})\)\s*")
_FILE = re.compile(
    r'\s+(?:\(\w+\) )?File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9}),? in (?P<name>\S.{0,200}?)\s*'
)
_RANK = re.compile(r"(?i)(?<![a-z])r(?:ank)?[._-]?(\d{1,6})(?!\d)")


@dataclass(frozen=True)
class Frame:
    """A call in a stack."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"


@dataclass(frozen=True)
class Stack:
    """The main thread of a process, the innermost call first; `rank` is None where nothing tells it."""

    file: str
    line: int
    rank: int | None
    process: str
    frames: tuple[Frame, ...]

    @property
    def who(self) -> str:
        """The process, for a person."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"process {self.process}" if self.process else PurePath(self.file).name


def looks_like(head: str) -> bool:
    """Whether a file that begins so holds stacks."""
    return bool(_BEGINS.match(head) or _BEGINS_JSON.match(head))


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Stack]:
    """The stacks of a file; of one whose name tells a rank the first process alone, since others are its helpers."""
    text = beginning(reader, limits, _MOST_BYTES)
    yield from stacks_in(text, reader.file)


def stacks_in(text: str, file: str) -> Iterator[Stack]:
    """The same of a text."""
    threads = _of_json(text) if _BEGINS_JSON.match(text) else _of_text(text)
    named = _RANK.search(PurePath(file.rpartition(":")[2]).name)
    rank = elastic.rank_of(file) if named is None else int(named[1])
    processes: dict[str, list[_Thread]] = {}
    for thread in threads:
        if thread.frames and (thread.process in processes or len(processes) < _MOST_STACKS):
            processes.setdefault(thread.process, []).append(thread)
    for process, own in processes.items():
        main = next((one for one in own if one.is_main), own[-1])
        yield Stack(file, main.line, rank, process, main.frames)
        if rank is not None:
            return


@dataclass(frozen=True)
class _Thread:
    process: str
    is_main: bool
    line: int
    frames: tuple[Frame, ...]


def _of_text(text: str) -> Iterator[_Thread]:
    process, is_main, begins, frames = "", False, 1, list[Frame]()
    outermost_first = False

    def ended() -> _Thread:
        return _Thread(process, is_main, begins, tuple(frames[::-1] if outermost_first else frames))

    for number, line in enumerate(text.splitlines(), start=1):
        if found := _PROCESS.match(line):
            yield ended()
            process, is_main, begins, frames = found[1], False, number, []
        elif found := _THREAD.match(line):
            yield ended()
            is_main, begins, frames = "MainThread" in found[2] or found[1] == process, number, []
            outermost_first = "call last" in found[2]
        elif (found := _FRAME.fullmatch(line) or _FILE.fullmatch(line)) and len(frames) < _MOST_FRAMES:
            frames.append(Frame(found["name"], found["file"], int(found["line"])))
    yield ended()


def _of_json(text: str) -> Iterator[_Thread]:
    try:
        threads = json.loads(text)
    except (ValueError, RecursionError):
        return
    for thread in threads if isinstance(threads, list) else ():
        if not isinstance(thread, dict) or not isinstance(thread.get("frames"), list):
            continue
        own = [one for one in thread["frames"][:_MOST_FRAMES] if isinstance(one, dict)]
        frames = tuple(
            Frame(
                str(one.get("name"))[:_LETTERS], str(one.get("short_filename") or one.get("filename"))[:_LETTERS], line
            )
            for one in own
            if isinstance(line := one.get("line"), int)
        )
        ids = thread.get("pid"), thread.get("os_thread_id")
        is_main = thread.get("thread_name") == "MainThread" or (ids[0] is not None and ids[0] == ids[1])
        yield _Thread(str(ids[0])[:20], is_main, 0, frames)
