"""Is a job's archetype on a card the same in every window, and that of the processor? Are a card's kernels known?

A window is one sample of the hook: two steps. Batches and sequences differ between windows of eager jobs. Compiled and
replayed steps say less of the model: their windows only have to agree with each other.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from simulation.studies.gpu.notes import Notes, Skipped
from simulation.studies.overhead import NEVER, UNGUARDED, WINDOW
from tenant_client.doctor.workload.describe import describe_files
from tenant_client.doctor.workload.descriptor import rungs
from tenant_client.doctor.workload.operators import kernel_family

KNOWN = 0.9
CASES = (
    ("transformer", "eager", 20),
    ("convolutions", "eager", 4),
    ("transformer", "compiled", 4),
    ("transformer", "graphs", 4),
)


def compare(notes: Notes) -> None:
    """The archetypes of all cases; their traces stay for `kernels`."""
    os.environ |= UNGUARDED | NEVER
    for model, mode, count in CASES if notes.device != "cpu" else CASES[:2]:
        try:
            _case(notes, model, mode, count)
        except Skipped as why:
            notes.figures(**{f"{model}, {mode}": str(why)})
        except Exception as error:  # noqa: BLE001 - the other cases are tried all the same
            notes.check(f"{model}, {mode}", f"{type(error).__name__}: {error}", good=False)


def _case(notes: Notes, model: str, mode: str, count: int) -> None:
    traces = windows(model, mode, notes.device, count, notes.folder / "traces" / f"{model}-{mode}")
    found = Counter(archetype(trace) for trace in traces)
    said = f"{len(traces)} of {count} windows, kinds {sorted(found.values())}"
    notes.check(f"{model}, {mode}: one archetype", said, good=len(traces) == count and len(found) == 1)
    if mode == "eager" and notes.device != "cpu":
        other = windows(model, mode, "cpu", 1, notes.folder / f"cpu-{model}")
        differ = describe_files(other).structure ^ describe_files(traces[:1]).structure
        same = {archetype(trace) for trace in other} == set(found)
        notes.check(f"{model}, {mode}: the processor's archetype", f"differs in {sorted(differ)}", good=same)


def windows(model: str, mode: str, device: str, count: int, folder: Path) -> list[Path]:
    """The traces of so many windows of one job in this process."""
    from simulation.studies.gpu.training import Size, stepper
    from tenant_client.doctor.run.hook.hook import Hook

    folder.mkdir(parents=True)
    size = Size(128, 2, 4, 32) if device == "cpu" else Size(128, 2, 16, 256)
    step, hook = stepper(model, mode, device, size), Hook(folder)
    hook.step(step(size.batch, size.length))
    sampler: Any = hook._sampler
    for number in range(count):
        varied = number if mode == "eager" else 0
        sampler._pacer.next_step = hook._steps + 1
        for _ in range(WINDOW):
            hook.step(step(size.batch + varied, size.length + 16 * (varied % 3)))
    hook.close()
    return sorted(folder.glob("trace-*.json"))


def archetype(trace: Path) -> bytes:
    """The archetype of one trace, with an empty catalogue."""
    return rungs(describe_files([trace]), ()).archetype


def kernels(notes: Notes) -> None:
    """The share of the card's time in kernels of a known family, over traces that `compare` left."""
    for folder in sorted((notes.folder / "traces").glob("*")):
        times = sum(map(kernel_times, sorted(folder.glob("trace-*.json"))[:2]), Counter[str]())
        if times:
            share, others = known(times)
            notes.check(f"{folder.name}: time in kernels of a known family", f"{share:.1%}", good=share >= KNOWN)
            notes.figures(**{f"{folder.name}: others, in µs": dict(others.most_common(10))})


def kernel_times(trace: Path) -> Counter[str]:
    """Microseconds by kernel, copies and fills among them."""
    found: Counter[str] = Counter()
    for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            found[event["name"]] += event.get("dur", 0)
    return found


def known(times: Counter[str]) -> tuple[float, Counter[str]]:
    """The share of time in kernels of a known family, and the others."""
    others = Counter({name: time for name, time in times.items() if kernel_family(name) == "other"})
    return 1 - others.total() / times.total(), others
