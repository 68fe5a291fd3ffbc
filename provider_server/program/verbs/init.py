"""Verbs that make what a provider is known by: its home and its certificate."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.codec import decode
from crypto.signing import SigningKey
from federation.base.console import AsJson, InputFile
from federation.base.key_files import read, read_key
from federation.base.screen import say
from federation.protocol.ceremony import Committee
from federation.transport.certificates import ends, hosts_of
from provider_server.program.verbs.console import Database, Home, print_rows, required, say_error
from provider_server.rounds import home as homes, pilot


class InitRow(TypedDict):
    """The home, the provider's public key, and its committee."""

    home: str
    provider: str
    trustees: int
    threshold: int


def init(
    committee: Annotated[
        Path,
        typer.Option(
            click_type=InputFile(), help="The committee file; the trustees all made the same one.", show_default=False
        ),
    ],
    home: Home = None,
    database: Database = None,
    host: Annotated[list[str] | None, typer.Option(help="Host names and addresses in the certificate.")] = None,
    *,
    with_pilot: Annotated[
        bool, typer.Option("--pilot", help="Begin with a pilot: rounds of 3 tenants or more, every week.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a home with fresh keys, and found a federation.

    Its trustees are those of the committee. A pilot ends with `rounds pilot --end`.
    """
    place = required(home)
    agreed = decode(Committee, read(committee))
    try:
        homes.create(place, host or ["localhost", "127.0.0.1"], os.urandom, datetime.now(UTC))
    except FileExistsError as error:
        say_error(f"{error.filename} exists already; nothing was changed")
        raise typer.Exit(2) from error
    if with_pilot:
        pilot.begin(place, homes.settings_of(place).plan.weeks_per_epoch)
    homes.found(place, database, agreed)
    key = SigningKey(read_key(place / "signing.key")).public
    row: InitRow = {
        "home": str(place),
        "provider": str(key),
        "trustees": len(agreed.trustees),
        "threshold": agreed.threshold,
    }
    print_rows([row], _init_line, as_json=as_json)
    for line in pilot.LESS if with_pilot else ():
        say(f"pilot: {line}")
    say(f"next: edit {place / 'provider.toml'}, then enrol tenants with `pharoah-provider tenants enrol`")


def _init_line(row: InitRow) -> str:
    trustees = f"any {row['threshold']} of {row['trustees']} trustees make tokens"
    return f"{row['home']}: provider {row['provider'][:16]}…, {trustees}"


class CertificateRow(TypedDict):
    """The new certificate, the hosts that it names, and when it ends."""

    certificate: str
    hosts: list[str]
    ends: str


def renew_certificate(
    home: Home = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Host names and addresses in the certificate; default: as before.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3652, help="Days until the certificate expires.")] = 366,
    *,
    as_json: AsJson = False,
) -> None:
    """Make a new TLS key and certificate for this home.

    The server uses them from its next start. Tenants and trustees need no change: they trust every certificate that the
    provider's signing key has signed.
    """
    place = required(home)
    certificate = homes.renew_certificate(place, host or [], datetime.now(UTC), days).certificate_pem
    row: CertificateRow = {
        "certificate": str(place / "tls.pem"),
        "hosts": hosts_of(certificate),
        "ends": ends(certificate).isoformat(),
    }
    print_rows([row], _certificate_line, as_json=as_json)
    say("next: restart `pharoah-provider serve`")


def _certificate_line(row: CertificateRow) -> str:
    return f"{row['certificate']}: for {', '.join(row['hosts'])}, until {row['ends']}"
