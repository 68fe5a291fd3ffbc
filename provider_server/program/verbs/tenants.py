"""`pharoah-provider tenants`: who is enrolled, by cards and names, who left, and whose sessions are revoked."""

from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from federation.base.console import AsJson, InputFile
from federation.base.key_files import HomeError, read
from federation.base.screen import say
from federation.base.visible import reason
from federation.protocol.enrolment import fingerprint, open_member_card
from provider_server.program.verbs.console import Database, Home, print_rows, required
from provider_server.rounds import home as homes
from provider_server.rounds.lease_book import NameTaken
from provider_server.rounds.looking import look
from provider_server.rounds.readiness import lacking

Files = Annotated[
    list[Path] | None, typer.Argument(click_type=InputFile(), help="Cards of the tenants.", show_default=False)
]


class TenantRow(TypedDict):
    """A tenant, its name, the accounts of Slurm that provider.toml gives it, and whether it has left."""

    tenant: str
    name: str
    accounts: list[str]
    left: bool


def list_(home: Home = None, database: Database = None, *, as_json: AsJson = False) -> None:
    """List the tenants: names, ids, accounts of Slurm, and who has left."""
    place = required(home)
    settings = homes.settings_of(place)
    with closing(homes.open_provider(place, database, settings)) as provider:
        directory, names = provider.directory, provider.members.names()
    owners = settings.leases.tenants()
    rows: list[TenantRow] = [
        {
            "tenant": str(one),
            "name": names[one],
            "accounts": sorted(account for account, owner in owners.items() if owner == one),
            "left": one not in directory.by_id,
        }
        for one in sorted(names, key=lambda one: (one not in directory.by_id, names[one]))
    ]
    print_rows(rows, _tenant_line, as_json=as_json)


def _tenant_line(row: TenantRow) -> str:
    return "  ".join([f"{row['name']:<13}", row["tenant"], *row["accounts"], *(["left"] if row["left"] else [])])


class EnrolRow(TypedDict):
    """A card, its tenant and the name of that; `head` is the directory's head after all of them."""

    card: str
    tenant: str
    name: str
    new: bool
    head: str


def enrol(
    out: Annotated[Path, typer.Option(help="Where to write the invitation.", show_default=False)],
    cards: Files = None,
    home: Home = None,
    database: Database = None,
    remove: Annotated[
        list[str] | None, typer.Option(help="Name of a tenant to remove, or the first digits of its id.")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="What you call the tenant of a card, in the order of the cards; by default the file's name."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Add tenants to the directory by their cards, and write the invitation for tenants and trustees.

    Names stay with the provider. At the end it says what the next round lacks.
    """
    place = required(home)
    if name and len(name) != len(cards or []):
        raise typer.BadParameter("pass as many names as cards, or none", param_hint="--name")
    opened = [(path, open_member_card(read(path))) for path in cards or []]
    settings = homes.settings_of(place)
    with closing(homes.open_provider(place, database, settings)) as provider:
        welcomed = []
        members = provider.members
        if leaving := [members.find(one) for one in remove or []]:
            members.enrol([], left=leaving)
        for at, (path, card) in enumerate(opened):
            tenant = card.member.tenant
            is_new = members.welcome(card.member, card.node_key.decode())
            if name:
                members.name(tenant, name[at])
            elif is_new:
                with suppress(NameTaken):
                    members.name(tenant, path.stem)
            welcomed.append((path, tenant, is_new))
        names = members.names()
        invited = homes.invitation(place, provider, settings)
        head = provider.directory.head
        known = look(place, provider.store, provider.directory, settings, provider.now_h())
    _write(out, invited)
    rows: list[EnrolRow] = [
        {"card": str(path), "tenant": str(tenant), "name": names[tenant], "new": is_new, "head": str(head)}
        for path, tenant, is_new in welcomed
    ]
    print_rows(rows, _enrol_line, as_json=as_json)
    for one in leaving:
        say(f"{names[one]} ({one}) has left")
    say(f"fingerprint of the directory's head: {fingerprint(head)}")
    for lack in filter(lambda lack: lack.urgent, lacking(known)):
        say(f"the next round lacks {lack}")


def _enrol_line(row: EnrolRow) -> str:
    done = "enrolled" if row["new"] else "was enrolled already"
    return f"{row['card']}: tenant {row['tenant']} {done}, called {row['name']}"


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise HomeError(f"{reason(error)}: {file}", hint="run `tenants enrol` again with another --out") from error


class RevokeRow(TypedDict):
    """A tenant whose sessions are revoked."""

    tenant: str


def revoke(
    tenants: Annotated[
        list[str], typer.Argument(help="Names of tenants, or first digits of ids: see `tenants`.", show_default=False)
    ],
    home: Home = None,
    database: Database = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Revoke all online sessions that these tenants have now, as after one was stolen. They sign in again.

    A running provider applies this within two seconds. To exclude a tenant for good, use `tenants enrol --remove`.
    """
    place = required(home)
    with closing(homes.open_provider(place, database, homes.settings_of(place))) as provider:
        named = [provider.members.find(tenant) for tenant in tenants]
        provider.members.revoke(named)
    rows: list[RevokeRow] = [{"tenant": str(tenant)} for tenant in named]
    print_rows(rows, _revoke_line, as_json=as_json)


def _revoke_line(row: RevokeRow) -> str:
    return f"{row['tenant']}: sessions revoked; a running provider applies this within two seconds"
