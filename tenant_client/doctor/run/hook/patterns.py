"""What the training thread does between two steps, as a small pattern of its functions.

A thread looks at the training thread's stack some twenty times a second, down to twice where that takes more than
`BUDGET` of the time, and at no call in between: nothing of the job is wrapped, and no frame of ours stands in its
tracebacks. The looks are unevenly spaced, so that they do not keep time with the steps. Each also tells where the rank
is (`whereabouts`). A function is a class (input, backward, collective, …) and the innermost line of code that is the
job's own. Garbage collections are timed exactly, by the collector's callbacks.

Each window ends with one file `pattern-<rank>.json` of at most `SIZE` bytes, which replaces that of the window before.
The training thread writes it with its next step: whatever it closes or opens, it does so before or afterwards.
"""

import gc
import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tenant_client.doctor.run.hook.progress import NONE_LEFT
from tenant_client.doctor.run.hook.whereabouts import Whereabouts

SIZE = 3072
INTERVAL_S, LONGEST_S = 0.05, 0.5
BUDGET = 0.0015  # of a core
SLICES, SAMPLES = 5, 16
_MOST_FUNCTIONS, _MOST_LETTERS = 20, 80
_DEPTH = 200
_GOLDEN = (math.sqrt(5) - 1) / 2

# The class of a function by a file on its stack, outermost first: a collective within backward is a collective.
_CLASSES = (
    ("/torch/distributed/distributed_c10d.py", "collective"),
    ("/torch/distributed/checkpoint/", "checkpoint"),
    ("/torch/serialization.py", "checkpoint"),
    ("/torch/utils/data/", "input"),
    ("/torch/autograd/__init__.py", "backward"),
    ("/torch/autograd/graph.py", "backward"),
    ("/torch/optim/", "optimizer"),
    *((f"/{name}/", "metrics") for name in ("nltk", "sacrebleu", "rouge_score", "pycocotools", "seqeval", "jiwer")),
    *((f"/{name}/", "metrics") for name in ("sklearn/metrics", "scipy/stats", "scipy/optimize", "evaluate/metrics")),
)
_OURS = str(Path(__file__).resolve().parent)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/pytorch/torch/", "<frozen", "<string", _OURS)


@dataclass(frozen=True)
class Function:
    """One function in one window: samples, milliseconds per step, their spread over slices, the share of waiting."""

    kind: str
    name: str
    count: int
    mean_ms: float
    spread_ms: float
    waiting: float


@dataclass(frozen=True)
class Pattern:
    """One window of one rank. `role` is equal for ranks that do the same; `work` counts what its batches held, if told.

    `fresh` is false if the optimiser came from a checkpoint, None if that cannot be seen; `step` is the last one.
    """

    rank: int
    pid: int
    window: int
    step: int
    steps: int
    seconds: float
    role: str
    work: float
    fresh: bool | None
    first_loss: float | None
    gc_ms: float
    gc_longest_ms: float
    functions: tuple[Function, ...]


def file_name(rank: int) -> str:
    """The name of `rank`'s pattern in the run directory."""
    return f"pattern-{rank}.json"


def encode(pattern: Pattern) -> bytes:
    """At most `SIZE` bytes; the functions with the fewest samples are left out if there is no room."""
    fields = asdict(pattern)
    functions = [list(function.values()) for function in fields.pop("functions")]
    while True:
        data = json.dumps({**fields, "functions": functions}, separators=(",", ":")).encode()
        if len(data) <= SIZE or not functions:
            return data
        functions.pop()


def read(path: Path) -> Pattern | None:
    """The pattern in `path`; None where it is absent, torn or foreign."""
    try:
        with path.open("rb") as file:
            fields = json.loads(file.read(SIZE + 1))
        functions = tuple(_function(*row) for row in fields.pop("functions"))
        pattern = Pattern(**fields, functions=functions)
        return pattern if _is_sound(pattern) else None
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None


def _function(kind: object, name: object, count: int, mean_ms: float, spread_ms: float, waiting: float) -> Function:
    return Function(str(kind), str(name), int(count), float(mean_ms), float(spread_ms), float(waiting))


def _is_sound(pattern: Pattern) -> bool:
    numbers = (pattern.seconds, pattern.work, pattern.gc_ms, *(function.mean_ms for function in pattern.functions))
    whole = (pattern.rank, pattern.window, pattern.steps, pattern.step)
    return all(math.isfinite(number) and number >= 0 for number in numbers) and all(type(n) is int for n in whole)


Lines = Mapping[tuple[int, int], CodeType]  # by the identity of the code, whose hash is not kept, and a line number


class Stack:
    """Tells what a stack is doing. Remembers what it found out about each code object.

    `waits` are the lines that are known to wait for a collective without a function of torch's on the stack.
    """

    def __init__(self, waits: Lines) -> None:
        self._known: dict[int, tuple[CodeType, str, bool]] = {}  # by identity, too
        self._waits = waits

    def function(self, frame: FrameType | None) -> tuple[str, str]:
        """The class and the name of what runs."""
        waits = frame is not None and (id(frame.f_code), frame.f_lineno) in self._waits
        kind, name = "collective" if waits else "", ""
        for _ in range(_DEPTH):
            if frame is None:
                break
            code = frame.f_code
            _, found, is_library = self._known.get(id(code)) or self._learn(code)
            kind = kind or found
            if not name and not is_library:
                name = f"{os.path.basename(code.co_filename)}:{code.co_name}"  # noqa: PTH119
            frame = frame.f_back
        return kind or "compute", name[:_MOST_LETTERS]

    def _learn(self, code: CodeType) -> tuple[CodeType, str, bool]:
        file = code.co_filename
        kind = next((kind for part, kind in _CLASSES if part in file), "")
        known = self._known[id(code)] = code, kind, any(part in file for part in _LIBRARIES)
        return known


class Patterns:
    """Watches the thread that makes it, until `close`; `complain` hears what went wrong, which ends the watching."""

    def __init__(
        self,
        run_dir: Path,
        rank: int,
        complain: Callable[[str], None],
        whereabouts: Whereabouts,
        waits: Lines,
    ) -> None:
        self._path = run_dir / file_name(rank)
        self._rank = rank
        self._pid = os.getpid()
        self._complain = complain
        self._ident = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._ident)
        self._whereabouts = whereabouts
        self._stack = Stack(waits)
        self._uneven = 0.0
        self._stopped = False
        self.step = 0
        self.work = 0.0
        self.role = ""
        self.fresh: bool | None = None
        self.first_loss: float | None = None
        self._window = 0
        self._unwritten: bytes | None = None
        self._began_s = time.perf_counter()
        self._gc = _Collections()
        gc.callbacks.append(self._gc)
        threading.Thread(target=self._run, name="pharoah-patterns", daemon=True).start()

    def close(self) -> None:
        """Ends the watching."""
        self._stopped = True
        self._whereabouts.close()
        if self._gc in gc.callbacks:
            gc.callbacks.remove(self._gc)

    def on_step(self, step: int, work: float, loss: float | None) -> None:
        """Takes how far the rank is, what its batch held and the loss seen last."""
        self.step = step
        self.work += work
        if self.first_loss is None:
            self.first_loss = loss
        if self._unwritten is not None:
            self._write(self._unwritten)

    def saw_optimizer(self, optimizer: Any) -> None:
        """Takes the role of this rank, and whether it resumed, from its optimiser after the first step here."""
        parameters = [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]
        self.role = f"{len(parameters)}:{sum(parameter.numel() for parameter in parameters)}"
        states = (state["step"] for state in getattr(optimizer, "state", {}).values() if "step" in state)
        steps = next(states, None)
        if steps is not None and getattr(getattr(steps, "device", None), "type", "cpu") == "cpu":
            self.fresh = float(steps) <= 1.0

    def _run(self) -> None:
        try:
            while self._watch_window():
                pass
        except Exception as error:  # noqa: BLE001  # a training job goes on whatever happens here
            self._complain(f"no patterns of functions: {type(error).__name__}: {error}")
        finally:
            self.close()

    def _watch_window(self) -> bool:
        """Looks for one window and writes what was seen; false if that was the last."""
        slices = []
        waited: Counter[tuple[str, str]] = Counter()
        began_s, first_step, work = time.perf_counter(), self.step, self.work
        for _ in range(SLICES):
            slices.append(self._watch_slice(waited))
            if self._stopped or os.getpid() != self._pid:
                return False
        steps, seconds = self.step - first_step, time.perf_counter() - began_s
        collected_s, longest_s = self._gc.take()
        if steps:
            self._window += 1
            self._unwritten = encode(
                Pattern(
                    rank=self._rank,
                    pid=self._pid,
                    window=self._window,
                    step=self.step,
                    steps=steps,
                    seconds=round(seconds, 3),
                    role=self.role,
                    work=self.work - work,
                    fresh=self.fresh,
                    first_loss=self.first_loss,
                    gc_ms=round(1e3 * collected_s / steps, 4),
                    gc_longest_ms=round(1e3 * longest_s, 3),
                    functions=_functions(slices, waited, 1e3 * seconds / steps),
                )
            )
        return True

    def _watch_slice(self, waited: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
        """Samples of one slice by function; adds to `waited` those in which the thread did not run."""
        seen: Counter[tuple[str, str]] = Counter()
        before_s, cpu_s = time.perf_counter(), time.clock_gettime(self._clock)
        for _ in range(SAMPLES):
            self._uneven = (self._uneven + _GOLDEN) % 1.0
            interval_s = INTERVAL_S * (0.5 + self._uneven)
            overspent_s = time.thread_time() / BUDGET - (time.perf_counter() - self._began_s)
            time.sleep(max(interval_s, min(overspent_s, LONGEST_S)))  # half as dear as the wait of an Event
            if self._stopped:
                break
            function = self._stack.function(sys._current_frames().get(self._ident))
            now_s, now_cpu_s = time.perf_counter(), time.clock_gettime(self._clock)
            took_s, ran_s = now_s - before_s, now_cpu_s - cpu_s
            self._whereabouts.saw(function[0], self.step, int(1e9 * took_s), int(1e9 * ran_s))
            seen[function] += 1
            waited[function] += ran_s < took_s / 2
            before_s, cpu_s = now_s, now_cpu_s
        return seen

    def _write(self, data: bytes) -> None:
        beside = f"{self._path}.new"
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
            os.replace(beside, self._path)  # noqa: PTH105
        except OSError as error:
            if error.errno in NONE_LEFT:
                return
            self._complain(f"no patterns of functions: {type(error).__name__}: {error}")
            self.close()
        self._unwritten = None


class _Collections:
    """The seconds that Python's garbage collector takes; it stops every thread meanwhile."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._sum_s = 0.0
        self._longest_s = 0.0

    def __call__(self, phase: str, _: Any) -> None:
        now_s = time.perf_counter()
        if phase == "start":
            self._began_s = now_s
        else:
            self._sum_s += now_s - self._began_s
            self._longest_s = max(self._longest_s, now_s - self._began_s)

    def take(self) -> tuple[float, float]:
        """The sum and the longest since the last call."""
        taken, self._sum_s, self._longest_s = (self._sum_s, self._longest_s), 0.0, 0.0
        return taken


def _functions(
    slices: list[Counter[tuple[str, str]]], waited: Counter[tuple[str, str]], step_ms: float
) -> tuple[Function, ...]:
    """The most frequent functions, first those with the most samples."""
    total: Counter[tuple[str, str]] = sum(slices, Counter())
    samples = max(1, total.total())
    return tuple(
        Function(
            *function,
            count=count,
            mean_ms=round(step_ms * count / samples, 4),
            spread_ms=round(_spread([step_ms * each[function] / max(1, each.total()) for each in slices]), 4),
            waiting=round(waited[function] / count, 3),
        )
        for function, count in total.most_common(_MOST_FUNCTIONS)
    )


def _spread(values: list[float]) -> float:
    """The standard deviation. That of `statistics` is exact, and takes milliseconds."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
