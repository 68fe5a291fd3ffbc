"""The parts, in their order, and one of them as a process of its own: parts.py NAME DEVICE FOLDER SECONDS."""

import faulthandler
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

from simulation.studies.gpu.notes import Notes, Skipped


@dataclass(frozen=True)
class Part:
    """`function` is one of this package, as module:function, and gets `arguments`.

    A part that disturbs no other may run `beside` its neighbours.
    """

    name: str
    function: str
    arguments: tuple[str, ...] = ()
    limit_s: float = 60.0
    needs_card: bool = True
    beside: bool = False


def _failure(fault: str, limit_s: float = 75.0, *, beside: bool = True) -> Part:
    return Part(f"failure-{fault}", "failures:fail", (fault,), limit_s, needs_card=False, beside=beside)


PARTS = (
    Part("card", "card:describe", needs_card=False),
    Part("readers", "readers:read"),
    Part("confirm", "speed:confirm", limit_s=150.0),
    Part("determinism", "determinism:replay", limit_s=60.0),
    Part("hook-eager", "overhead:measure", ("eager",), 90.0, needs_card=False),
    Part("hook-graphs", "overhead:measure", ("graphs",), 60.0),
    Part("hook-compiled", "overhead:measure", ("compiled",), 120.0),
    Part("signature", "signatures:compare", limit_s=120.0, needs_card=False),
    Part("kernels", "signatures:kernels", limit_s=30.0),
    Part("nccl", "failures:collective", limit_s=90.0),
    *map(_failure, ("illegal-access", "launch-failure", "device-assert", "no-kernel-image", "nan")),
    *(_failure(fault, 110.0) for fault in ("mismatch", "hang")),
    _failure("out-of-memory", beside=False),
)


def main() -> None:
    """Runs one part. An exception is its failure: the traceback is on stderr, for the report."""
    name, device, folder, seconds = sys.argv[1:]
    faulthandler.dump_traceback_later(max(1.0, float(seconds) - 2))  # where it was, should it take too long
    part = next(one for one in PARTS if one.name == name)
    notes = Notes(Path(folder, f"{name}.jsonl"), device)
    module, function = part.function.split(":")
    try:
        getattr(importlib.import_module(f"simulation.studies.gpu.{module}"), function)(notes, *part.arguments)
    except Skipped as why:
        notes.skipped(str(why))


if __name__ == "__main__":
    main()
