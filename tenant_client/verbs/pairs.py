"""The verb that tests many nodes in pairs: `confirm pairs`."""

import random
from collections.abc import Iterator
from typing import Annotated, TypedDict

import typer

from federation.runtime.console import AsJson
from federation.runtime.hostlist import hostlist
from federation.runtime.screen import say, show, show_json
from federation.runtime.visible import counted_as
from tenant_client.confirm import pair_rounds
from tenant_client.confirm.pairwise import PairwiseTest
from tenant_client.verbs.console import failing


class BadNodeObject(TypedDict):
    """A node that did badly with all `partners`; `factor` is its best time over the usual one, null where it fails."""

    node: str
    kind: str
    factor: float | None
    partners: list[str]


class BadLinkObject(TypedDict):
    """A link that did badly between two nodes that did well with others."""

    nodes: list[str]
    kind: str
    factor: float | None


class PairsObject(TypedDict):
    """What a test in pairs names, and what it leaves open."""

    nodes: list[BadNodeObject]
    links: list[BadLinkObject]
    suspected: list[str]
    unknown: list[str]
    rounds: int


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
    result: PairsObject = {
        "nodes": [
            {
                "node": names[one.node],
                "kind": one.kind.value,
                "factor": one.factor,
                "partners": [names[partner] for partner in one.partners],
            }
            for one in found.nodes
        ],
        "links": [
            {"nodes": [names[node] for node in one.pair], "kind": one.kind.value, "factor": one.factor}
            for one in found.links
        ],
        "suspected": [names[node] for node in found.suspected],
        "unknown": [names[node] for node in found.unknown],
        "rounds": found.rounds,
    }
    if as_json:
        show_json(result)
    else:
        show(*_pair_lines(result))
    raise typer.Exit(1 if found.nodes or found.links else 3 if found.suspected or found.unknown else 0)


def _pair_lines(found: PairsObject) -> Iterator[str]:
    for node in found["nodes"]:
        yield f"{node['node']} {_bad(node['kind'], node['factor'])}, with {' and '.join(node['partners'])}"
    for link in found["links"]:
        yield f"the link between {' and '.join(link['nodes'])} {_bad(link['kind'], link['factor'])}"
    for kind in ("suspected", "unknown"):
        if found[kind]:
            yield f"{kind}: {', '.join(found[kind])}"
    if not (found["nodes"] or found["links"] or found["suspected"] or found["unknown"]):
        yield f"all nodes are well, after {found['rounds']} round(s)"


def _bad(kind: str, factor: float | None) -> str:
    return kind if factor is None else f"is {kind}: {factor:.2f} times the usual time"
