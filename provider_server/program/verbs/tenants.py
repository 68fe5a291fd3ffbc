"""`pharoah-provider tenants`: who is enrolled, by cards, and whose sessions are revoked."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.errors import PharoahError
from crypto.ids import TenantId
from federation.base.console import InputFile
from federation.base.key_files import HomeError, read
from federation.base.screen import say
from federation.base.visible import reason
from federation.protocol.enrolment import fingerprint, open_member_card
from provider_server.program.verbs.console import AsRows, Database, Home, print_rows, required
from provider_server.rounds import home as homes

Files = Annotated[
    list[Path] | None, typer.Argument(click_type=InputFile(), help="Cards of the tenants.", show_default=False)
]


class TenantRow(TypedDict):
    """A member of the directory, and the accounts of Slurm that provider.toml gives it."""

    tenant: str
    accounts: list[str]


def list_(home: Home = None, database: Database = None, *, as_json: AsRows = False) -> None:
    """List the tenants that are enrolled, with their accounts of Slurm."""
    place = required(home)
    settings = homes.settings_of(place)
    with closing(homes.open_provider(place, database, settings)) as provider:
        members = sorted(provider.directory.by_id)
    owners = settings.leases.tenants()
    rows: list[TenantRow] = [
        {"tenant": str(one), "accounts": sorted(account for account, owner in owners.items() if owner == one)}
        for one in members
    ]
    print_rows(rows, lambda row: " ".join([row["tenant"], *row["accounts"]]), as_json=as_json)


class EnrolRow(TypedDict):
    """A card and its tenant; `head` is the directory's head after all of them."""

    card: str
    tenant: str
    new: bool
    head: str


def enrol(
    out: Annotated[Path, typer.Option(help="Where to write the invitation.", show_default=False)],
    cards: Files = None,
    home: Home = None,
    database: Database = None,
    remove: Annotated[list[str] | None, typer.Option(help="Id of a tenant to remove.")] = None,
    *,
    as_json: AsRows = False,
) -> None:
    """Add tenants to the directory by their cards, and write the invitation for tenants and trustees."""
    place = required(home)
    opened = [(path, open_member_card(read(path))) for path in cards or []]
    settings = homes.settings_of(place)
    with closing(homes.open_provider(place, database, settings)) as provider:
        welcomed = []
        if leaving := named_tenants(remove or []):
            provider.members.enrol([], left=leaving)
        for path, card in opened:
            is_new = provider.members.welcome(card.member, card.node_key.decode())
            welcomed.append((path, card.member.tenant, is_new))
        invited = homes.invitation(place, provider, settings)
        head = provider.directory.head
    _write(out, invited)
    rows: list[EnrolRow] = [
        {"card": str(path), "tenant": str(tenant), "new": is_new, "head": str(head)}
        for path, tenant, is_new in welcomed
    ]
    print_rows(rows, _enrol_line, as_json=as_json)
    say(f"fingerprint of the directory's head: {fingerprint(head)}")


def _enrol_line(row: EnrolRow) -> str:
    return f"{row['card']}: tenant {row['tenant']} {'enrolled' if row['new'] else 'was enrolled already'}"


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise HomeError(f"{reason(error)}: {file}", hint="run `tenants enrol` again with another --out") from error


class RevokeRow(TypedDict):
    """A tenant whose sessions are revoked."""

    tenant: str


def revoke(
    tenants: Annotated[list[str], typer.Argument(help="Ids of tenants: see `tenants list`.", show_default=False)],
    home: Home = None,
    database: Database = None,
    *,
    as_json: AsRows = False,
) -> None:
    """Revoke all online sessions that these tenants have now, as after one was stolen. They sign in again.

    A running provider applies this within two seconds. To exclude a tenant for good, use `tenants enrol --remove`.
    """
    place = required(home)
    named = named_tenants(tenants)
    with closing(homes.open_provider(place, database, homes.settings_of(place))) as provider:
        provider.members.revoke(named)
    rows: list[RevokeRow] = [{"tenant": str(tenant)} for tenant in named]
    print_rows(rows, _revoke_line, as_json=as_json)


def _revoke_line(row: RevokeRow) -> str:
    return f"{row['tenant']}: sessions revoked; a running provider applies this within two seconds"


def named_tenants(tenants: Sequence[str]) -> list[TenantId]:
    """Ids of tenants as they were printed; PharoahError for a text that is none."""
    try:
        return [TenantId(bytes.fromhex(tenant)) for tenant in tenants]
    except ValueError as error:
        raise PharoahError(f"not the id of a tenant: {error}", hint="copy the id that `tenants list` shows") from error
