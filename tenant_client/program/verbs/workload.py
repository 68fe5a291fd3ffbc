"""Verbs about a workload: describe, tokens, compare and catalogue. All are local: nothing is sent."""

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypedDict

import msgspec
import typer

from federation.base.catalogue_file import read_catalogue, write_catalogue
from federation.base.console import AsJson, InputFile
from federation.base.screen import show, show_json
from federation.protocol.bundle import CatalogueEntry
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.workload.compare import LACKING, compared, conclude, operator_text
from tenant_client.doctor.workload.describe import NothingToDescribe, describe_files
from tenant_client.doctor.workload.descriptor import Descriptor, Nearest, nearest, own_sketch, rungs
from tenant_client.doctor.workload.local_tokens import KEY_BYTES, local_key, local_ladder
from tenant_client.program.verbs.console import Home, warn

Traces = Annotated[
    list[Path],
    typer.Argument(
        click_type=InputFile(folders=True),
        help="Traces of one workload from torch.profiler or ExecutionTraceObserver, packed or not, or folders of them;"
        " several files are ranks or windows of one job.",
    ),
]
Catalogue = Annotated[
    Path | None,
    typer.Option(
        click_type=InputFile(),
        envvar="PHAROAH_CATALOGUE",
        help="A catalogue file; by default that of the newest bundle in the home.",
        show_default=False,
    ),
]


class Described(TypedDict):
    """A workload. Operators are names with log2 sizes; collectives are kind, log2 of ranks, and log2 of bytes.

    `replicas` is how many devices one process drives with copies of the model, as torch.nn.DataParallel does. `lacks`
    names what the traces do not tell: `shapes`, `weights` or `operators`. `software` and `replicas` are in no token.
    """

    precision: str
    parallelism: str
    replicas: int
    versions: dict[str, str]
    software: dict[str, str]
    kernel_families: list[str]
    structure: list[tuple[str, tuple[int, ...]]]
    collectives: list[tuple[str, int, int]]
    operators: list[tuple[str, tuple[int, ...]]]
    lacks: list[str]


def describe(traces: Traces, home: Home, *, as_json: AsJson = False) -> None:
    """Show the properties of a workload: precision, parallelism, versions, operators. Nothing is sent.

    In place of traces pass a lease, for what `run` has described of it.
    """
    descriptor = _stored(traces, home) or _described(traces)
    if as_json:
        show_json(
            {
                "precision": descriptor.precision,
                "parallelism": descriptor.parallelism,
                "replicas": descriptor.replicas,
                "versions": dict(descriptor.versions),
                "software": dict(descriptor.software),
                "kernel_families": sorted(descriptor.kernel_families),
                "structure": sorted(descriptor.structure),
                "collectives": descriptor.collectives,
                "operators": sorted(descriptor.operators),
                "lacks": descriptor.lacks,
            }
        )
        return
    show(
        f"precision        {descriptor.precision or 'not recorded'}",
        f"parallelism      {descriptor.parallelism}{_within(descriptor.replicas)}",
        f"versions         {', '.join(' '.join(pair) for pair in descriptor.versions) or 'not recorded'}",
        f"other software   {', '.join(' '.join(pair) for pair in descriptor.software) or 'not recorded'}",
        f"kernel families  {', '.join(sorted(descriptor.kernel_families)) or 'not recorded'}",
        "structure",
        *(f"  {operator_text(operator)}" for operator in sorted(descriptor.structure)),
        "collectives of one iteration (ranks and bytes in log2)",
        *(f"  {kind} {group} {size}" for kind, group, size in descriptor.collectives),
        f"operators: {len(descriptor.operators)} (sizes in log2, 0 for any)",
        *(f"  {operator_text(operator)}" for operator in sorted(descriptor.operators)),
        *(f"archetype unknown: {LACKING[what]}" for what in descriptor.lacks),
    )


def _within(replicas: int) -> str:
    return f" (data parallel of {replicas} devices within one process)" if replicas > 1 else ""


class Tokens(TypedDict):
    """The tokens of a workload, made with a local key; `nearest` is null without a catalogue.

    Where the traces lack something, the archetype is unknown: its token equals those of traces that tell the same.
    """

    family: str
    archetype: str
    subarchetype: str
    exact: str
    nearest: Nearest | None
    key: str
    lacks: list[str]


def tokens(traces: Traces, home: Home, catalogue: Catalogue = None, *, as_json: AsJson = False) -> None:
    """Print the four tokens of a workload, made with a local key. The provider sees tokens of this form.

    Two workloads have equal local tokens if and only if their federation tokens are equal. Only the trustees can
    make federation tokens.

    In place of traces pass a lease, for what `run` has described of it.
    """
    descriptor, known = _stored(traces, home) or _described(traces), _catalogue(catalogue, home)
    ladder = local_ladder(rungs(descriptor, known), _key(home))
    near = nearest(own_sketch(descriptor), known)
    if as_json:
        show_json({**msgspec.structs.asdict(ladder), "nearest": near, "key": "local", "lacks": descriptor.lacks})
        return
    show(f"family        {ladder.family}", f"archetype     {ladder.archetype}")
    show(f"sub-archetype {ladder.subarchetype}", f"exact         {ladder.exact}")
    show(f"nearest       {f'{near.name} ({near.similarity:.2f})' if near else 'no catalogue'}")
    show(*(f"archetype unknown: {LACKING[what]}" for what in descriptor.lacks))


def compare(
    first: Annotated[
        Path,
        typer.Argument(click_type=InputFile(folders=True), help="A trace, or a folder or archive of one job's."),
    ],
    second: Annotated[Path, typer.Argument(click_type=InputFile(folders=True), help="The trace to compare it with.")],
    home: Home,
    catalogue: Catalogue = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Compare two workloads: what their tokens tell the provider, and, for you alone, what differs."""
    one, other, known = _described([first]), _described([second]), _catalogue(catalogue, home)
    key = os.urandom(KEY_BYTES)
    equal = conclude(local_ladder(rungs(one, known), key), local_ladder(rungs(other, known), key))
    found = compared(one, other, equal)
    if as_json:
        show_json(found)
        return
    yes = {True: "yes", False: "no", None: "unknown"}
    show("the provider learns from the tokens")
    show(f"  same family         {yes[found.same_family]}", f"  same archetype      {yes[found.same_archetype]}")
    show(f"  same sub-archetype  {yes[found.same_subarchetype]}")
    show(f"shown to you only: similarity of the operator sets {found.jaccard:.2f}")
    for name, lacks in (("first", found.first_lacks), ("second", found.second_lacks)):
        show(*(f"  of the {name}, {LACKING[what]}" for what in lacks))
    for difference in found.differences:
        show(f"  {difference.property}")
        show(*(f"    - {item}" for item in difference.only_first))
        show(*(f"    + {item}" for item in difference.only_second))


def catalogue(
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    named: Annotated[list[str], typer.Argument(metavar="NAME=TRACE…", help="Name and trace of each benchmark job.")],
) -> None:
    """Write a catalogue of benchmark jobs (names and MinHash sketches) for a provider to publish."""
    pairs = [_pair(text) for text in named]
    if len(dict(pairs)) < len(pairs):
        raise typer.BadParameter("two traces have the same name")
    described = [(name, _described([Path(trace)])) for name, trace in pairs]
    entries = tuple(CatalogueEntry(name, own_sketch(one).to_bytes()) for name, one in described)
    write_catalogue(out, entries)


def _pair(text: str) -> tuple[str, str]:
    name, equals, trace = text.partition("=")
    if not (name and equals and trace):
        raise typer.BadParameter(f"{text!r} is not NAME=TRACE")
    return name, trace


def _stored(traces: list[Path], home: Path) -> Descriptor | None:
    """What the journal has of the lease of this name; None where the name is a file's, or no lease's."""
    name = str(traces[0])
    if len(traces) > 1 or traces[0].exists() or not _holds_a_database(home):
        return None
    with closing(open_database(home / "tenant.db")) as connection:
        journal = Journal(connection)
        if not any(unit.unit.startswith(name) for unit in journal.units()):
            return None
        unit = journal.find(name)
        if unit not in journal.descriptors():
            why = journal.undescribed().get(unit, "no attempt of it was watched")
            raise NothingToDescribe(f"the workload of {unit} is not described: {why}")
        return journal.descriptors()[unit]


def _described(traces: list[Path]) -> Descriptor:
    return describe_files(traces, told=warn)


def _catalogue(file: Path | None, home: Path) -> Sequence[CatalogueEntry]:
    """The entries of `file`, else of the newest bundle in the home, else none."""
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
        warn(f"the home cannot be read, going on without its catalogue: {error.strerror}: {home}")
        return False


def _key(home: Path) -> bytes:
    """The local key, or a temporary one if it cannot be stored in the home."""
    try:
        return local_key(home)
    except OSError as error:
        warn(f"the local key cannot be stored, so these tokens match those of no other call: {error}")
        return os.urandom(KEY_BYTES)
