"""Verbs that found a federation and run the provider's half of it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypedDict, cast

import typer

from crypto.errors import PharoahError
from federation.base.console import InputFile
from federation.base.logs import Format
from federation.base.screen import say, show, show_json
from federation.base.visible import counted_as, reason
from provider_server.program.verbs.console import AsRows, Database, Home, failing, print_rows, required, say_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crypto.ids import TenantId
    from provider_server.program.operations.admin import GivenUp, HeldRound

Files = Annotated[
    list[Path] | None, typer.Argument(click_type=InputFile(), help="Cards of the tenants.", show_default=False)
]
LogFormat = Annotated[Format, typer.Option(help="Format of log lines: json, or text for people.")]


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
    as_json: AsRows = False,
) -> None:
    """Make a home with fresh keys, and found a federation under a committee of trustees."""
    from datetime import UTC, datetime

    from crypto.codec import decode
    from crypto.signing import SigningKey
    from federation.base.key_files import read, read_key
    from federation.protocol.ceremony import Committee
    from provider_server.rounds import home as homes

    place = required(home)
    with failing():
        agreed = decode(Committee, read(committee))
        try:
            homes.create(place, host or ["localhost", "127.0.0.1"], os.urandom, datetime.now(UTC))
        except FileExistsError as error:
            say_error(f"{error.filename} exists already; nothing was changed")
            raise typer.Exit(2) from error
        homes.found(place, database, agreed)
        key = SigningKey(read_key(place / "signing.key")).public
    row: InitRow = {
        "home": str(place),
        "provider": str(key),
        "trustees": len(agreed.trustees),
        "threshold": agreed.threshold,
    }
    print_rows([row], _init_line, as_json=as_json)
    say(f"next: edit {place / 'provider.toml'}, then enrol tenants with `pharoah-provider enrol`")


def _init_line(row: InitRow) -> str:
    return (
        f"{row['home']}: provider {row['provider'][:16]}…, {row['threshold']} of {row['trustees']} trustees must sign"
    )


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
    from federation.base.key_files import read
    from federation.protocol.enrolment import fingerprint, open_member_card
    from provider_server.rounds import home as homes

    place = required(home)
    with failing():
        opened = [(path, open_member_card(read(path))) for path in cards or []]
        settings = homes.settings_of(place)
        provider = homes.open_provider(place, database, settings)
        try:
            welcomed = []
            if leaving := named_tenants(remove or []):
                provider.members.enrol([], left=leaving)
            for path, card in opened:
                is_new = provider.members.welcome(card.member, card.node_key.decode())
                welcomed.append((path, card.member.tenant, is_new))
            invited = homes.invitation(place, provider, settings)
            head = provider.directory.head
        finally:
            provider.close()
        _write(out, invited)
    rows: list[EnrolRow] = [
        {"card": str(path), "tenant": str(tenant), "new": is_new, "head": str(head)}
        for path, tenant, is_new in welcomed
    ]
    print_rows(rows, _enrol_line, as_json=as_json)
    say(f"fingerprint of the directory's head: {fingerprint(head)}")


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
    as_json: AsRows = False,
) -> None:
    """Make a new TLS key and certificate for this home. The server uses them from its next start.

    Tenants and trustees need no change: they trust every certificate that the provider's signing key has signed.
    """
    from datetime import UTC, datetime

    from federation.transport.certificates import ends, hosts_of
    from provider_server.rounds import home as homes

    place = required(home)
    with failing():
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


class RevokeRow(TypedDict):
    """A tenant whose sessions are revoked."""

    tenant: str


def revoke(
    tenants: Annotated[list[str], typer.Argument(help="Ids of tenants, as `enrol` printed them.", show_default=False)],
    home: Home = None,
    database: Database = None,
    *,
    as_json: AsRows = False,
) -> None:
    """Revoke all online sessions that these tenants have now, as after one was stolen. They sign in again.

    A running provider applies this within two seconds. To exclude a tenant for good, use `enrol --remove`.
    """
    from provider_server.rounds import home as homes

    place = required(home)
    with failing():
        named = named_tenants(tenants)
        provider = homes.open_provider(place, database, homes.settings_of(place))
        try:
            provider.members.revoke(named)
        finally:
            provider.close()
    rows: list[RevokeRow] = [{"tenant": str(tenant)} for tenant in named]
    print_rows(rows, _revoke_line, as_json=as_json)


def _revoke_line(row: RevokeRow) -> str:
    return f"{row['tenant']}: sessions revoked; a running provider applies this within two seconds"


def named_tenants(tenants: "Sequence[str]") -> "list[TenantId]":
    """Ids of tenants as they were printed; PharoahError for a text that is none."""
    from crypto.ids import TenantId

    try:
        return [TenantId(bytes.fromhex(tenant)) for tenant in tenants]
    except ValueError as error:
        raise PharoahError(f"not the id of a tenant: {error}", hint="copy the id that `enrol` printed") from error


def _write(file: Path, data: bytes) -> None:
    from federation.base.key_files import HomeError

    try:
        file.write_bytes(data)
    except OSError as error:
        raise HomeError(f"{reason(error)}: {file}", hint="run `enrol` again with another --out") from error


def _enrol_line(row: EnrolRow) -> str:
    return f"{row['card']}: tenant {row['tenant']} {'enrolled' if row['new'] else 'was enrolled already'}"


def serve(
    home: Home = None,
    database: Database = None,
    every: Annotated[str, typer.Option(help="When to hold rounds: window or manual. Overrides provider.toml.")] = "",
    log_format: LogFormat = Format.JSON,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only check settings, keys, certificate, database and ports.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check: print JSON with stable keys.")] = False,
) -> None:
    """Run the provider: the tenants' listener, the online service, metrics, and rounds when they are due.

    Exit codes with --check: 0 it can start, 2 it cannot, and the reason is printed.
    """
    import signal
    import sys

    from federation.base import logs
    from provider_server.program import service
    from provider_server.rounds import home as homes

    place = required(home)
    if every:
        os.environ["PHAROAH_ROUNDS_EVERY"] = every
    if check:
        _check(place, database, as_json=as_json)
    logs.configure(log_format)
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: sys.exit(0))  # an open round is in the store, and continues after a restart
    with failing():
        settings = homes.settings_of(place)
        provider = homes.open_provider(place, database, settings)
        try:
            with service.running(place, provider, settings) as (rounds, link, online_port):
                where = f"tenants at {link.address}, online at port {online_port}, operator at {link.control}"
                service.logger.info("serving %s", where, extra={"event": "serving"})
                service.serve(place, rounds, settings)
        finally:
            provider.close()


def _check(home: Path, database: str | None, *, as_json: bool) -> NoReturn:
    from datetime import UTC, datetime

    from provider_server.program.operations.preflight import looked_at
    from provider_server.rounds.home import founded

    with failing():
        founded(home)
        result = looked_at(home, database, datetime.now(UTC))
    if as_json:
        show_json(result)
    else:
        show(*(f"{'ok' if check.fine else 'FAILED':<6} {check.name:<13} {check.text}" for check in result.checks))
    raise typer.Exit(0 if result.fine else 2)


def round_(
    home: Home = None,
    start: Annotated[
        int | None, typer.Option(help="First hour of the window, in hours since 1970.", show_default=False)
    ] = None,
    end: Annotated[int | None, typer.Option(help="End of the window, exclusive.", show_default=False)] = None,
    timeout_s: Annotated[float, typer.Option(help="Seconds to wait for the outcome.")] = 7200.0,
    *,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Abandon the open round instead; its units count in the next one.")
    ] = False,
    as_json: AsRows = False,
) -> None:
    """Hold a round now on the running server, over the last whole window or another one of its epoch."""
    place = required(home)
    if (start is None) != (end is None):
        raise typer.BadParameter("pass both --start and --end, or neither")
    with failing():
        if give_up:
            abandoned = cast("GivenUp", _asked(place, "give-up", {}, timeout_s))
            print_rows([abandoned], lambda row: f"abandoned: {row['given_up'] or 'no round is open'}", as_json=as_json)
            return
        window = {"start": start, "end": end} if start is not None and end is not None else {}
        answer = cast("HeldRound", _asked(place, "round", window, timeout_s))
    print_rows([answer], _round_line, as_json=as_json)


def _asked(home: Path, what: str, window: dict[str, int], timeout_s: float) -> dict[str, Any]:
    """The running server's answer; its refusals are raised here."""
    import httpx

    from provider_server.rounds.home import CONTROL

    at, hint = home / CONTROL, "is `pharoah-provider serve` running on this machine, under your account?"
    if not os.access(at, os.W_OK):
        raise PharoahError(f"no server accepts your commands at {at}", hint=hint)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(at)), timeout=timeout_s) as client:
            answer = client.post(f"http://provider/pharoah/{what}", params=window)
    except httpx.HTTPError as error:
        raise PharoahError(f"{error}: {at}", hint=hint) from error
    if answer.status_code not in (httpx.codes.OK, httpx.codes.CONFLICT):
        raise PharoahError(f"the server failed ({answer.status_code}): {at}", hint="see the log of `serve`")
    body: dict[str, Any] = answer.json()
    if answer.status_code != httpx.codes.OK:
        raise PharoahError(f"{body['error']}: {body['what']}", hint=body["hint"])
    return body


def _round_line(row: "HeldRound") -> str:
    return (
        f"round {row['round_id'][:12]}: hours {row['start_hour']}–{row['end_hour']},"
        f" {counted_as(row['contributors'], 'contribution')}, {counted_as(row['cells'], 'cell')},"
        f" epsilon {row['epsilon']:.3f}, {row['seconds']:.1f} s"
    )
