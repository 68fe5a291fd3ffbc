"""Verbs that test machines with each other: `confirm pairs` and `confirm answer`. They need no extra."""

import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Annotated

import typer

from crypto.errors import PharoahError
from federation.base.console import AsJson
from federation.base.hostlist import hostlist
from federation.base.screen import say, show, show_json
from federation.base.visible import counted_as
from pharoah_confirm import pair
from pharoah_confirm.pairwise import BadLink, BadNode, NodeVerdict, PairResult, PairwiseTest
from tenant_client.program.verbs.console import failing


def answer(
    listen: Annotated[str, typer.Option(help="Address and port to listen on.")] = "0.0.0.0:7300",
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds until it stops.")] = 600.0,
) -> None:
    """Answer another machine's `confirm interconnect --partner`. Unencrypted: it sends test patterns, no data."""
    with failing():
        served = pair.serve(listen, seconds)
    show(f"answered {served} partner(s)")


def pairs(
    nodes: Annotated[str, typer.Argument(help="The nodes, as Slurm writes them: n[1-8],login.", show_default=False)],
    command: Annotated[
        list[str],
        typer.Argument(help="What tests a pair, after --, as: srun -N2 -w {one},{other} COMMAND.", show_default=False),
    ],
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", min=0.1, help="A pair that takes longer than this fails.")
    ] = 180.0,
    at_once: Annotated[int, typer.Option(min=1, help="So many pairs side by side at most.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="So many rounds at most.")] = 8,
    *,
    as_json: AsJson = False,
) -> None:
    """Find which of many nodes and links fail or are slow: rounds of pairs, by a command that a scheduler starts.

    A command that fails, or takes too long, is a pair that fails. Its last line of output may begin with its seconds,
    and may say link-errors. Exit codes: 0 all nodes are well; 1 something is named; 3 something is left open.
    """
    names = list(dict.fromkeys(hostlist(nodes)))
    with failing():
        test = PairwiseTest(range(len(names)), random.SystemRandom(), most_rounds=rounds)
        found = run(
            names,
            command[command[0] == "--" :],  # which a parser that stops at the first argument leaves
            test,
            timeout_s=timeout_s,
            at_once=at_once,
            told=lambda number, count: say(f"round {number}: {counted_as(count, 'pair')}"),
        )
    if as_json:
        show_json(found)
    else:
        show(*_pair_lines(found))
    raise typer.Exit(1 if found.nodes or found.links else 3 if found.suspected or found.unknown else 0)


def _pair_lines(found: NodeVerdict[str]) -> Iterator[str]:
    for node in found.nodes:
        yield f"{node.node} {_bad(node.kind, node.factor)}, with {' and '.join(node.partners)}"
    for link in found.links:
        yield f"the link between {' and '.join(link.nodes)} {_bad(link.kind, link.factor)}"
    for kind, nodes in (("suspected", found.suspected), ("unknown", found.unknown)):
        if nodes:
            yield f"{kind}: {', '.join(nodes)}"
    if not (found.nodes or found.links or found.suspected or found.unknown):
        yield f"all nodes are well, after {found.rounds} round(s)"


def _bad(kind: str, factor: float | None) -> str:
    return kind if factor is None else f"is {kind}: {factor:.2f} times the usual time"


# ---- rounds of pairs -------------------------------------------------------------------------------------------------
#
# names ─ PairwiseTest.next_round ─▶ pairs ─ command, side by side ─▶ PairResult × n ─ report ─▶ … ─▶ verdict
#
# In the words of the command `{one}` and `{other}` stand for the two nodes. A command that fails, or does not end in
# time, is a pair that fails. Its time is the number of seconds that its last line of output begins with, else how long
# it ran, its start included. The word `link-errors` in that line says that counters of the link rose meanwhile.
#
# Not promised: that a command which is stopped stops what it started elsewhere; that is the scheduler's job.


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
