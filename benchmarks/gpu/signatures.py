"""Is a job's archetype on a card the same in every window, and that of the processor? Are a card's kernels known?

A window is one sample of the hook: two steps. Batches and sequences differ between windows where the mode allows it.
Compiled and replayed steps say less of the model: there, windows only have to agree with each other.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.gpu.notes import Notes, Skipped
from benchmarks.overhead import NEVER, UNGUARDED

WINDOWS, FEWER = 20, 4
STEPS_OF_WINDOW = 4
KNOWN = 0.9
CASES = (  # model, mode, windows, whether the processor's has to be the same
    ("transformer", "eager", WINDOWS, True),
    ("convolutions", "eager", FEWER, True),
    ("recurrent", "eager", 1, False),
    ("recommender", "eager", FEWER, True),
    ("transformer", "compiled", FEWER, False),
    ("transformer", "graphs", FEWER, False),
)


def compare(notes: Notes) -> None:
    """The archetypes of all cases; their traces stay for `kernels`."""
    os.environ |= UNGUARDED | NEVER
    for model, mode, count, as_on_cpu in CASES:
        if notes.device == "cpu" and mode != "eager":
            continue
        try:
            _case(notes, model, mode, count, as_on_cpu=as_on_cpu and notes.device != "cpu")
        except Skipped as why:
            notes.figures(**{f"{model}, {mode}": str(why)})
        except Exception as error:  # noqa: BLE001 - the other cases are tried all the same
            notes.check(f"{model}, {mode}", f"{type(error).__name__}: {error}", good=False)


def _case(notes: Notes, model: str, mode: str, count: int, *, as_on_cpu: bool) -> None:
    traces = windows(model, mode, notes.device, count, notes.folder / "traces" / f"{model}-{mode}")
    found = Counter(archetype(trace) for trace in traces)
    said = f"{len(traces)} of {count} windows, kinds {sorted(found.values())}"
    notes.check(f"{model}, {mode}: one archetype", said, good=len(traces) == count and len(found) == 1)
    if as_on_cpu:
        other = windows(model, mode, "cpu", 1, notes.folder / f"cpu-{model}")
        same = {archetype(trace) for trace in other} == set(found)
        notes.check(f"{model}, {mode}: the processor's archetype", _difference(other, traces), good=same)


def windows(model: str, mode: str, device: str, count: int, folder: Path) -> list[Path]:
    """The traces of so many windows of one job in this process."""
    from benchmarks.gpu.training import Size, stepper
    from tenant_client.run.hook.hook import Hook

    folder.mkdir(parents=True)
    size = Size(128, 2, 4, 32) if device == "cpu" else Size(128, 2, 16, 256)
    step, hook = stepper(model, mode, device, size), Hook(folder)
    hook.step(step(size.batch, size.length))
    for number in range(count):
        varied = number if mode == "eager" else 0
        batch, length = size.batch + varied, size.length + 16 * (varied % 3)
        if hook._sampler is None:
            raise RuntimeError("the hook has no sampler")
        hook._sampler._pacer.next_step = hook._steps + 1
        for _ in range(STEPS_OF_WINDOW):
            hook.step(step(batch, length))
    hook.close()
    return sorted(folder.glob("trace-*.json"))


def archetype(trace: Path) -> bytes:
    """The archetype of one trace, with an empty catalogue."""
    from tenant_client.workload.describe import describe_files
    from tenant_client.workload.descriptor import rungs

    return rungs(describe_files([trace]), ()).archetype


def _difference(one: list[Path], other: list[Path]) -> str:
    from tenant_client.workload.describe import describe_files

    first, second = (describe_files(traces[:1]) for traces in (one, other))
    only = sorted(first.structure - second.structure), sorted(second.structure - first.structure)
    return f"only on the processor {only[0]}, only on the card {only[1]}; lacks {first.lacks} {second.lacks}"


def kernels(notes: Notes) -> None:
    """The share of the card's time in kernels of a known family, over the traces that `compare` left."""
    times: Counter[str] = Counter()
    for folder in sorted((notes.folder / "traces").glob("*")):
        own = sum(map(kernel_times, sorted(folder.glob("trace-*.json"))[:2]), Counter[str]())
        times += own
        if own:
            share, _ = known(own)
            notes.check(f"{folder.name}: kernels of a known family", f"{share:.1%}", good=share >= KNOWN)
    if not times:
        raise Skipped("no trace with kernels: the part signature left none")
    share, unknown = known(times)
    notes.figures(known_share=share, families=families(times), unknown_us=dict(unknown.most_common(20)))


def kernel_times(trace: Path) -> Counter[str]:
    """Microseconds by kernel, copies and fills among them."""
    events: list[dict[str, Any]] = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    found: Counter[str] = Counter()
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            found[event["name"]] += event.get("dur", 0)
    return found


def known(times: Counter[str]) -> tuple[float, Counter[str]]:
    """The share of time in kernels of a known family, and the others."""
    from tenant_client.workload.operators import kernel_family

    others = Counter({name: time for name, time in times.items() if kernel_family(name) == "other"})
    return 1 - others.total() / max(times.total(), 1e-9), others


def families(times: Counter[str]) -> dict[str, float]:
    """The share of each family."""
    from tenant_client.workload.operators import kernel_family

    found: Counter[str] = Counter()
    for name, time in times.items():
        found[kernel_family(name)] += time
    return {name: round(time / times.total(), 4) for name, time in found.most_common()}
