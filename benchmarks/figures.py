"""What the benchmarks share: figures are measured by name and printed as one JSON object each, progress on stderr.

Real data lies in `DATA`; what needs it raises FileNotFoundError where it is absent, and is then left out.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
Figure = dict[str, Any]


def main(*figures: Callable[[], Figure]) -> None:
    """Measures and prints all of these, or those that the command line names."""
    known = {figure.__name__: figure for figure in figures}
    unknown = set(sys.argv[1:]) - set(known)
    if unknown:
        program = Path(sys.argv[0]).name
        sys.exit(f"{program}: error: no figure {sorted(unknown)}\nhint: there are {', '.join(known)}")
    show(_measured(known[name] for name in sys.argv[1:] or known))


def show(figures: Iterable[Figure]) -> None:
    """Prints each as soon as it is there."""
    for figure in figures:
        sys.stdout.write(json.dumps(figure) + "\n")
        sys.stdout.flush()


def fastest(work: Callable[[], object], repeats: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of several runs: what the work needs when nothing disturbs it."""
    times = []
    for _ in range(repeats):
        began = clock()
        work()
        times.append(clock() - began)
    return min(times)


def _measured(figures: Iterable[Callable[[], Figure]]) -> Iterator[Figure]:
    for figure in figures:
        sys.stderr.write(f"{figure.__name__} …\n")
        try:
            yield {"figure": figure.__name__, **figure()}
        except FileNotFoundError as error:
            sys.stderr.write(f"{figure.__name__}: left out: {error}\n")
