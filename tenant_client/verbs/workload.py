"""The verbs that look at a workload: describe, tokens, compare, catalogue. All local: nothing is sent."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from federation.runtime.console import AsJson, InputFile
from federation.runtime.screen import show, show_json
from tenant_client.verbs.console import Home, failing, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from federation.protocol.bundle import CatalogueEntry
    from tenant_client.workload.descriptor import Descriptor

Traces = Annotated[
    list[Path],
    typer.Argument(
        click_type=InputFile(),
        help="Traces of one workload (torch.profiler or ExecutionTraceObserver; JSON, gzipped or in a tar archive);"
        " several files are ranks or windows of the same job.",
    ),
]
Catalogue = Annotated[
    Path | None,
    typer.Option(
        click_type=InputFile(),
        envvar="PHAROAH_CATALOGUE",
        help="A catalogue file; by default that of the newest bundle in the home, if there is one.",
        show_default=False,
    ),
]


def describe(traces: Traces, *, as_json: AsJson = False) -> None:
    """Show what a workload looks like to its owner. Nothing of this leaves."""
    from tenant_client.workload.compare import operator_text

    with failing():
        descriptor = _described(traces)
    if as_json:
        show_json(
            {
                "precision": descriptor.precision,
                "parallelism": descriptor.parallelism,
                "versions": dict(descriptor.versions),
                "kernel_families": sorted(descriptor.kernel_families),
                "structure": [list(operator) for operator in sorted(descriptor.structure)],
                "collectives": [list(entry) for entry in descriptor.collectives],
                "operators": [list(operator) for operator in sorted(descriptor.operators)],
            }
        )
        return
    show(
        f"precision        {descriptor.precision or 'not recorded'}",
        f"parallelism      {descriptor.parallelism}",
        f"versions         {', '.join(' '.join(pair) for pair in descriptor.versions) or 'not recorded'}",
        f"kernel families  {', '.join(sorted(descriptor.kernel_families)) or 'not recorded'}",
        "structure",
        *(f"  {operator_text(operator)}" for operator in sorted(descriptor.structure)),
        "collectives of one iteration (ranks and bytes in log2)",
        *(f"  {kind} {group} {size}" for kind, group, size in descriptor.collectives),
        f"operators: {len(descriptor.operators)} (sizes in log2, 0 for any)",
        *(f"  {operator_text(operator)}" for operator in sorted(descriptor.operators)),
    )


def tokens(traces: Traces, home: Home, catalogue: Catalogue = None, *, as_json: AsJson = False) -> None:
    """Print the ladder of tokens of a workload, under a key of this machine: what the provider would see, in form.

    The tokens of the federation have the same form and the same equalities; only the trustees can make them.
    """
    from tenant_client.workload.descriptor import nearest, own_sketch, rungs
    from tenant_client.workload.local_tokens import local_ladder

    with failing():
        descriptor, known = _described(traces), _catalogue(catalogue, home)
        ladder = local_ladder(rungs(descriptor, known), _key(home))
    near = nearest(own_sketch(descriptor), known)
    if as_json:
        show_json(
            {
                "family": str(ladder.family),
                "archetype": str(ladder.archetype),
                "subarchetype": str(ladder.subarchetype),
                "exact": str(ladder.exact),
                "nearest": None if near is None else {"name": near.name, "similarity": near.similarity},
                "key": "local",
            }
        )
        return
    show(f"family        {ladder.family}", f"archetype     {ladder.archetype}")
    show(f"sub-archetype {ladder.subarchetype}", f"exact         {ladder.exact}")
    show(f"nearest       {f'{near.name} ({near.similarity:.2f})' if near else 'no catalogue'}")


def compare(
    first: Annotated[
        Path, typer.Argument(click_type=InputFile(), help="A trace, or an archive with traces of one job.")
    ],
    second: Annotated[Path, typer.Argument(click_type=InputFile(), help="The other one.")],
    home: Home,
    catalogue: Catalogue = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Say what the provider would conclude from the tokens of two workloads, and show you what differs."""
    import os
    from dataclasses import asdict

    from tenant_client.workload.compare import conclude, differences, jaccard
    from tenant_client.workload.descriptor import rungs
    from tenant_client.workload.local_tokens import KEY_BYTES, local_ladder

    with failing():
        one, other, known = _described([first]), _described([second]), _catalogue(catalogue, home)
    key = os.urandom(KEY_BYTES)
    said = conclude(local_ladder(rungs(one, known), key), local_ladder(rungs(other, known), key))
    if as_json:
        different = [asdict(difference) for difference in differences(one, other)]
        show_json(asdict(said) | {"jaccard": jaccard(one, other), "differences": different})
        return
    yes = {True: "yes", False: "no"}
    show("what the provider would conclude from the tokens alone")
    show(f"  same family         {yes[said.same_family]}", f"  same archetype      {yes[said.same_archetype]}")
    show(f"  same sub-archetype  {yes[said.same_subarchetype]}")
    show(f"for your eyes: similarity of the sets of operators {jaccard(one, other):.2f}")
    for difference in differences(one, other):
        show(f"  {difference.property}")
        show(*(f"    - {item}" for item in difference.only_first))
        show(*(f"    + {item}" for item in difference.only_second))


def catalogue(
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    named: Annotated[list[str], typer.Argument(metavar="NAME=TRACE…", help="Each benchmark job's name and trace.")],
) -> None:
    """Write a catalogue from traces of benchmark jobs: names and MinHash sketches, for a provider to publish."""
    from tenant_client.workload.catalogue import write_catalogue
    from tenant_client.workload.descriptor import own_sketch

    pairs = [_pair(text) for text in named]
    if len(dict(pairs)) < len(pairs):
        raise typer.BadParameter("each name stands for one trace")
    with failing():
        entries = {name: own_sketch(_described([Path(trace)])) for name, trace in pairs}
        write_catalogue(out, entries)


def _pair(text: str) -> tuple[str, str]:
    name, equals, trace = text.partition("=")
    if not (name and equals and trace):
        raise typer.BadParameter(f"{text!r} is not NAME=TRACE")
    return name, trace


def _described(traces: list[Path]) -> "Descriptor":
    from tenant_client.workload.describe import describe_files

    return describe_files(traces)


def _catalogue(file: Path | None, home: Path) -> "Sequence[CatalogueEntry]":
    """The entries of a file, else those of the newest bundle in the home, else none."""
    from contextlib import closing

    from tenant_client.records.bundle_log import BundleLog
    from tenant_client.records.database import open_database
    from tenant_client.workload.catalogue import read_catalogue

    if file is not None:
        return read_catalogue(file)
    if not _holds_a_database(home):
        return ()
    with closing(open_database(home / "tenant.db")) as connection:
        bundle = BundleLog(connection).newest_bundle()
    return () if bundle is None else bundle.catalogue


def _holds_a_database(home: Path) -> bool:
    try:
        return (home / "tenant.db").exists()
    except OSError as error:
        warn(f"{home} cannot be read ({error.strerror}); going on without the catalogue of its newest bundle")
        return False


def _key(home: Path) -> bytes:
    """The local key, or one for this call alone where the home cannot keep it."""
    import os

    from tenant_client.workload.local_tokens import KEY_BYTES, local_key

    try:
        return local_key(home)
    except OSError as error:
        warn(f"no key can be kept in {home} ({error}); these tokens compare with those of no other call")
        return os.urandom(KEY_BYTES)
