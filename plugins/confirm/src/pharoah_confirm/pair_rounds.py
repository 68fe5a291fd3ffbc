"""Runs the pairwise test by a command for each pair, as a scheduler starts it: all pairs of a round at once.

    names ─ PairwiseTest.next_round ─▶ pairs ─ command, side by side ─▶ PairResult × n ─ report ─▶ … ─▶ verdict

In the words of the command `{one}` and `{other}` stand for the two nodes. A command that fails, or does not end in
time, is a pair that fails. Its time is the number of seconds that its last line of output begins with, else how long it
ran, its start included. The word `link-errors` in that line says that counters of the link rose meanwhile.

Not promised: that a command which is stopped stops what it started elsewhere; that is the scheduler's job.
"""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from crypto.errors import PharoahError
from pharoah_confirm.pairwise import BadLink, BadNode, NodeVerdict, PairResult, PairwiseTest

LINK_ERRORS = "link-errors"


class CannotPair(PharoahError):
    """The nodes or the command cannot be used for a test in pairs."""

    default_hint = "pass two nodes or more, and a command with {one} and {other}, as: srun -N2 -w {one},{other} COMMAND"


def run(
    names: Sequence[str],
    command: Sequence[str],
    test: PairwiseTest,
    *,
    timeout_s: float,
    at_once: int,
    told: Callable[[int, int], None] = lambda number, pairs: None,
) -> NodeVerdict[str]:
    """All rounds, then the verdict by name; `told` hears of each before it starts. CannotPair without a command."""
    words = " ".join(command)
    if len(set(names)) < 2 or "{one}" not in words or "{other}" not in words:
        raise CannotPair("a test in pairs needs two nodes, and a command that names both")
    with ThreadPoolExecutor(at_once) as pool:
        while pairs := test.next_round():
            told(test.verdict().rounds + 1, len(pairs))
            commands = [list(_words(command, names[one], names[other])) for one, other in pairs]
            ran = pool.map(lambda of_pair: _ran(of_pair, timeout_s), commands)
            test.report(PairResult(*pair, *result) for pair, result in zip(pairs, ran, strict=True))
    return _named(names, test.verdict())


def _named(names: Sequence[str], found: NodeVerdict[int]) -> NodeVerdict[str]:
    def by_name(nodes: Iterable[int]) -> tuple[str, ...]:
        return tuple(names[node] for node in nodes)

    return NodeVerdict(
        tuple(BadNode(names[one.node], one.kind, one.factor, by_name(one.partners)) for one in found.nodes),
        tuple(BadLink((names[one.nodes[0]], names[one.nodes[1]]), one.kind, one.factor) for one in found.links),
        by_name(found.suspected),
        by_name(found.unknown),
        found.rounds,
    )


def _words(command: Sequence[str], one: str, other: str) -> Iterator[str]:
    return (word.replace("{one}", one).replace("{other}", other) for word in command)


def _ran(command: Sequence[str], timeout_s: float) -> tuple[float | None, bool]:
    """How long a pair took, None where it failed, and whether its link had errors."""
    began = time.monotonic()
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        raise CannotPair(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, False
    line = (output.decode(errors="replace").strip().splitlines() or [""])[-1].split()
    took_s = _seconds(line[0]) if line else None
    elapsed_s = time.monotonic() - began if took_s is None else took_s
    return (None if process.returncode else elapsed_s), LINK_ERRORS in line


def _seconds(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
