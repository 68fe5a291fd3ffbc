"""`pharoah-provider leases record` takes leases as they are granted; by `leases key` a tenant's jobs find theirs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypedDict

import msgspec
import typer
from sqlalchemy.exc import IntegrityError

from crypto.errors import PharoahError
from crypto.ids import LeaseId, TenantId
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.console import AsJson, InputFile
from federation.base.foreign import LATEST_S, MALFORMED
from federation.base.key_files import HomeError, read, read_key, write_secret
from federation.base.screen import say
from federation.base.visible import counted_as, reason
from federation.protocol import job_leases
from provider_server.fleet.learning import hardware, on_probation
from provider_server.fleet.learning.hardware import Kept
from provider_server.fleet.learning.on_probation import OnProbation
from provider_server.fleet.leases import Lease
from provider_server.program.verbs.console import Database, Home, print_rows, required
from provider_server.rounds import home as homes
from provider_server.rounds.intake.lease_events import MOST_LEVEL, MOST_NODES, BadLeases
from provider_server.rounds.intake.recorder import context_of
from provider_server.rounds.lease_book import LeaseBook

NOTHING = "nothing was recorded; correct or remove the line"


class LeaseRow(TypedDict):
    """A file, and how many leases of it were recorded."""

    file: str
    leases: int


def record(
    file: Annotated[
        Path,
        typer.Argument(
            click_type=InputFile(), help="JSON lines, one per lease; see docs/operate.md.", show_default=False
        ),
    ],
    home: Home = None,
    database: Database = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Record granted leases, each with lease, tenant, start_h, end_h, and node_names or nodes, context and level."""
    place = required(home)
    book = homes.open_leases(place, database, homes.settings_of(place))
    try:
        granted = list(_leases(book, file, hardware.load(place), on_probation.load(place)))
        placed = {one.lease: nodes for one, nodes, _ in granted if nodes}
        book.record_leases([one for one, _, _ in granted], placed)
        book.note_hardware({context for _, nodes, context in granted if not nodes})
    except IntegrityError as error:
        raise BadLeases(f"a lease is recorded already: {file}", hint=NOTHING) from error
    finally:
        book.close()
    rows: list[LeaseRow] = [{"file": str(file), "leases": len(granted)}]
    print_rows(rows, lambda row: f"{row['file']}: {counted_as(row['leases'], 'lease')}", as_json=as_json)


def _leases(
    book: LeaseBook, file: Path, kept: Kept | None, probation: OnProbation
) -> Iterator[tuple[Lease, tuple[str, ...], str]]:
    """The leases of a file, their nodes and hardware; a lease with node names has those of telemetry and repairs."""

    class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        lease: str
        tenant: str
        start_h: Annotated[float, msgspec.Meta(ge=0)]
        end_h: float
        nodes: Annotated[int, msgspec.Meta(ge=0, le=MOST_NODES)] = 0
        context: str = ""
        level: Annotated[int, msgspec.Meta(ge=0, le=MOST_LEVEL)] = 0
        node_names: tuple[str, ...] = ()

        def __post_init__(self) -> None:
            if not self.start_h < self.end_h < LATEST_S / SECONDS_PER_HOUR:
                raise ValueError("end_h must be after start_h, and before the year 2200")
            if bool(self.node_names) == bool(self.nodes and self.context):
                raise ValueError("give either node_names, or context and nodes, at least 1")

    seen = set()
    for number, line in enumerate(read(file).splitlines(), start=1):
        try:
            row = msgspec.json.decode(line, type=Line)
            ids = LeaseId(bytes.fromhex(row.lease)), TenantId(bytes.fromhex(row.tenant))
            if ids[0] in seen:
                raise ValueError("this lease is on an earlier line")
            if ids[1] not in book.directory.by_id:
                raise ValueError("this tenant is not enrolled")
            context, level = row.context, row.level
            if row.node_names:
                least = {node: probation.level(node, row.start_h) for node in row.node_names}
                context, level = context_of(kept, row.node_names, least)
        except (*MALFORMED, ValueError, BadLeases) as error:
            raise BadLeases(f"{file}, line {number}: {error}", hint=NOTHING) from error
        seen.add(ids[0])
        labels = book.context_labels(row.start_h, context, level)
        nodes = row.nodes or len(row.node_names)
        yield Lease(*ids, nodes, row.start_h, row.end_h, labels), row.node_names, context


class LeaseKeyRow(TypedDict):
    """A tenant, and the file with its lease key."""

    tenant: str
    file: str


def key(
    tenant: Annotated[str, typer.Argument(help="The tenant's id: see `tenants list`.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The file to write the key to, readable by you only.", show_default=False)],
    home: Home = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Write the key by which a tenant's jobs find their leases. Give the file to that tenant alone, secretly.

    The key is the same each time. Who has it can tell which of the tenant's leases is which job, and nothing else.
    """
    place = required(home)
    try:
        name = TenantId(bytes.fromhex(tenant))
    except ValueError as error:
        raise PharoahError(f"not the id of a tenant: {error}", hint="copy the id that `tenants` shows") from error
    secret = job_leases.lease_key(read_key(place / "context.key"), name)
    try:
        write_secret(out, secret)
    except OSError as error:
        raise HomeError(f"{reason(error)}: {out}", hint="pass another --out") from error
    row: LeaseKeyRow = {"tenant": str(name), "file": str(out)}
    print_rows([row], lambda row: f"{row['file']}: lease key of tenant {row['tenant']}", as_json=as_json)
    say("next: the tenant takes it with `pharoah-tenant join --lease-key FILE`, and deletes the file")
