"""Verbs that test machines with each other: `confirm pairs` and `confirm answer`. They need no extra."""

import random
from collections.abc import Iterator
from typing import Annotated

import typer

from federation.base.console import AsJson
from federation.base.hostlist import hostlist
from federation.base.screen import say, show, show_json
from federation.base.visible import counted_as
from pharoah_confirm import pair, pair_rounds
from pharoah_confirm.pairwise import NodeVerdict, PairwiseTest
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
        found = pair_rounds.run(
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
