"""The verbs of a trustee, but for those of a handover. docs/operate.md#the-ceremony has the steps of the ceremony.

Parties exchange files by any channel and compare fingerprints aloud. No verb overwrites a file.
"""

import math
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from federation.base import logs
from federation.base.console import AsJson, InputFile
from federation.base.logs import Format
from federation.base.screen import show, show_json
from federation.base.settings import load
from federation.base.settings_schema import write_schema
from federation.base.visible import counted_as, short
from federation.protocol import ceremony
from federation.protocol.ceremony import CeremonyRefused, kind_of
from federation.protocol.enrolment import (
    CardList,
    TrusteeCard,
    card_list,
    check_fingerprint,
    fingerprint,
    host_of,
    open_trustee_card,
)
from federation.protocol.invitation import accept
from federation.protocol.round_record import opened_record
from federation.protocol.warnings import Verdict, judged, line_of
from federation.transport.certificates import ends, hosts_of
from trustee import home as trustee_home, overview, service
from trustee.console import TrusteeHome, about, tell, warn, write_new
from trustee.overview import TrusteeStatus
from trustee.settings import TrusteeSettings
from trustee.trustee import TrusteeLimits

FEW_TRUSTEES = 5
Records = Annotated[
    list[Path] | None,
    typer.Option(
        "--record", help="The record of a round; repeatable.", click_type=InputFile(exists=True), show_default=False
    ),
]


def _address(text: str) -> str:
    try:
        host_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return text


def _names(texts: list[str] | None) -> list[str]:
    for text in texts or []:
        _address(f"[{text}]:1" if ":" in text else f"{text}:1")
    return texts or []


class Card(TypedDict):
    """A trustee's card and its fingerprint."""

    card: str
    address: str
    fingerprint: str


def init(
    home: TrusteeHome,
    address: Annotated[str, typer.Option(help="host:port at which others reach this trustee.", callback=_address)],
    name: Annotated[
        list[str] | None, typer.Option(help="Another DNS name or IP address of it; repeatable.", callback=_names)
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Make a trustee's keys, its card for all other parties (trustee.card), and its settings (trustee.toml).

    It will listen at the port of the address.
    """
    card = trustee_home.create(home, address, name or [], os.urandom, datetime.now(UTC))
    file, shown = home / trustee_home.CARD, fingerprint(card.name)
    if as_json:
        show_json(Card(card=str(file), address=card.address, fingerprint=shown))
        return
    show(f"card         {file}", f"fingerprint  {shown}")
    tell("give the card to every trustee and to the provider, and read its fingerprint aloud to them")


class Certificate(TypedDict):
    """The new certificate, the hosts that it names, and when it ends."""

    certificate: str
    hosts: list[str]
    ends: str


def renew_certificate(
    home: TrusteeHome,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="Another DNS name or IP address beside the card's; by default those of the old certificate.",
            callback=_names,
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3652, help="Days that the certificate is valid.")] = 366,
    *,
    as_json: AsJson = False,
) -> None:
    """Make a new TLS key and certificate for this trustee. Restart the server to use them.

    Card, committee and directory stay: callers trust every certificate signed by the trustee's signing key.
    """
    renewed = trustee_home.renew_certificate(home, name or [], datetime.now(UTC), days).certificate_pem
    file, hosts, end = home / trustee_home.TLS_CERTIFICATE, hosts_of(renewed), ends(renewed).isoformat()
    if as_json:
        show_json(Certificate(certificate=str(file), hosts=hosts, ends=end))
        return
    show(f"{file}: for {', '.join(hosts)}, until {end}")
    tell("restart `pharoah-trustee serve`")


class Dealt(TypedDict):
    """A dealing, and the fingerprint of the cards that it was made for."""

    dealing: str
    trustees: int
    threshold: int
    cards_fingerprint: str


def deal(
    cards: Annotated[
        list[Path],
        typer.Argument(metavar="CARD...", help="The cards of all trustees.", click_type=InputFile(exists=True)),
    ],
    home: TrusteeHome,
    threshold: Annotated[int, typer.Option(help="The number of trustees needed for a token; at most a majority.")],
    out: Annotated[Path, typer.Option(help="The file to write the dealing to; it must not exist yet.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Make this trustee's part of the token key, sealed for each trustee on the cards."""
    everybody, _ = _sorted(cards)
    _check_own(everybody, home)
    write_new(out, ceremony.deal(trustee_home.signing_key(home), everybody, threshold, os.urandom))
    count, shown = len(everybody.cards), fingerprint(everybody.name)
    if count < FEW_TRUSTEES:
        warn(f"only {count} trustees: any {threshold} that collude know the key; use five or more")
    if as_json:
        show_json(Dealt(dealing=str(out), trustees=count, threshold=threshold, cards_fingerprint=shown))
        return
    trustees = f"trustees     {count}, any {threshold} of which can make tokens"
    show(f"dealing      {out}", trustees, f"list         {shown}")
    tell("check that every trustee has the same fingerprint of the list; then give the dealing to every trustee")


class Combined(TypedDict):
    """The committee, and this trustee's number in it."""

    committee: str
    index: int
    trustees: int
    threshold: int
    fingerprint: str


def combine(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="All cards and dealings, in any order.", click_type=InputFile(exists=True)
        ),
    ],
    home: TrusteeHome,
    *,
    as_json: AsJson = False,
) -> None:
    """Check all dealings, and write this trustee's share and the committee (share.key, committee) to the home."""
    everybody, dealings = _sorted(files)
    card = _check_own(everybody, home)
    committee = ceremony.committee(everybody, dealings)
    share = ceremony.own_share(everybody, dealings, card.verify_key, trustee_home.sealing_key(home))
    trustee_home.keep(home, share, committee)
    file, shown = home / trustee_home.COMMITTEE, fingerprint(committee.name)
    trustees, threshold = len(committee.trustees), committee.threshold
    if as_json:
        show_json(
            Combined(committee=str(file), index=share.index, trustees=trustees, threshold=threshold, fingerprint=shown)
        )
        return
    show(f"trustee      {share.index} of {trustees}, any {threshold} of which can make tokens")
    show(f"committee    {file}", f"fingerprint  {shown}")
    tell("check that every trustee has the same fingerprint; then give the committee to the provider")


class Joined(TypedDict):
    """The directory that was pinned: its head, the fingerprint of that, and how many tenants are in it."""

    head: str
    fingerprint: str
    members: int


def join(
    invitation: Annotated[Path, typer.Argument(help="The provider's invitation.", click_type=InputFile(exists=True))],
    home: TrusteeHome,
    head: Annotated[
        str, typer.Option(help="The expected fingerprint of the directory's head, from other members.")
    ] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Pin the provider's directory, after a check that its trustees and key are those of the ceremony."""
    with about(invitation):
        invited, chain = accept(invitation.read_bytes())
    if head:
        check_fingerprint(head, chain.directory.head)
    trustee_home.enrol(home, chain, os.urandom)
    members, shown = len(chain.directory.members), fingerprint(chain.directory.head)
    if as_json:
        show_json(Joined(head=str(chain.directory.head), fingerprint=shown, members=members))
        return
    show(f"provider     {invited.provider.hex()[:16]}… at {invited.online}")
    show(f"tenants      {members}", f"head         {shown}")
    if not head:
        tell("compare the head with other trustees and tenants (or pass theirs with --head)")


class Evaluations(TypedDict):
    """Blinded elements that a tenant had evaluated in an epoch."""

    tenant: str
    epoch: int
    elements: int


class Endorsed(TypedDict):
    """A round that was endorsed: the digest of its set, and whether it was unmasked too."""

    round_id: str
    request: str
    unmasked: bool


class Conflict(TypedDict):
    """The proof, in hexadecimal, that the provider signed two sets for one round."""

    round_id: str
    proof: str


class Log(TypedDict):
    """All requests to a trustee."""

    evaluations: list[Evaluations]
    rounds: list[Endorsed]
    conflicts: list[Conflict]
    warnings: Verdict | None


def log(home: TrusteeHome, records: Records = None, *, as_json: AsJson = False) -> None:
    """Show requests to this trustee: evaluations by tenant and epoch, rounds, and proofs of conflicts.

    With records of rounds that count warnings, whether the provider's warnings came true.

    Exit code 1: the provider signed two sets of contributions for one round, or its warnings are below what it claims.
    """
    with closing(trustee_home.open_trustee(home, os.urandom, TrusteeLimits())) as trustee:
        evaluations, rounds, conflicts = trustee.evaluations(), trustee.rounds(), trustee.conflicts()
        proven = [opened_record(file.read_bytes(), trustee.chain).warned for file in records or ()]
    found = judged(one for one in proven if one is not None)
    if as_json:
        show_json(
            Log(
                evaluations=[
                    {"tenant": str(of), "epoch": epoch, "elements": n} for (of, epoch), n in sorted(evaluations.items())
                ],
                rounds=[{"round_id": str(name), "request": str(of), "unmasked": done} for name, of, done in rounds],
                conflicts=[{"round_id": str(name), "proof": proof.hex()} for name, proof in conflicts],
                warnings=found,
            )
        )
    else:
        for (tenant, epoch), elements in sorted(evaluations.items()):
            show(f"tenant {tenant.hex()[:12]}… epoch {epoch}: {counted_as(elements, 'blinded element')}")
        for name, request, done in rounds:
            show(f"round {name}: set {request.hex()[:16]}… {'unmasked' if done else 'endorsed'}")
        for name, proof in conflicts:
            show(f"round {name}: the provider signed another set too, {len(proof)} bytes of proof (see --json)")
        if found:
            show(f"the provider's warnings: {line_of(found)}")
    if conflicts:
        warn("the provider signed two sets for one round", "keep this log as proof, and inform the tenants")
    if conflicts or (found and found.alarm):
        raise typer.Exit(1)


def status(home: TrusteeHome, *, as_json: AsJson = False) -> None:
    """Show the state of this trustee: ceremony, federation, requests of this epoch, certificate, what is due.

    Exit code 0: ok. 1: attention needed; the output says why. 2: the home is unreadable. 3: the home is empty.
    """
    granted = load(TrusteeSettings, home / "trustee.toml", os.environ).trustee.evaluations_per_epoch
    found = overview.status(home, os.urandom, TrusteeLimits(granted), datetime.now(UTC))
    if as_json:
        show_json(found)
    else:
        show(*_status_lines(found))
    raise typer.Exit(found.exit_code)


def _status_lines(found: TrusteeStatus) -> Iterator[str]:
    yield f"home        {short(Path(found.home))}{'' if found.exists else ' (missing)'}"
    if found.address:
        yield f"address     {found.address}"
    seat, asked = found.seat, found.federation
    tokens = f", any {seat.threshold} of which can make tokens" if seat else ""
    yield f"ceremony    {f'trustee {seat.index} of {seat.trustees}{tokens}' if seat else 'not done'}"
    if asked:
        yield f"federation  joined: {counted_as(asked.members, 'tenant')}, head {asked.head}"
        granted = f"at most {asked.evaluations_per_tenant:,} per tenant"
        yield f"epoch {asked.epoch:<6}{counted_as(asked.evaluations, 'evaluation')}, {granted}"
        rounds = f"{counted_as(asked.rounds_endorsed, 'round')} endorsed, {asked.rounds_unmasked} unmasked"
        yield f"rounds      {rounds}{f', last {asked.last_round_id}' if asked.last_round_id else ''}"
    else:
        yield "federation  none"
    if found.certificate_days_left is not None:
        yield f"certificate {counted_as(math.floor(found.certificate_days_left), 'day')} left"
    yield f"due         {found.due or 'nothing'}"
    yield from (f"attention   {one}" for one in found.attention)


def _sorted(files: list[Path]) -> tuple[CardList, list[bytes]]:
    """Separates `files` into cards and dealings by their labels; errors name the file."""
    cards, dealings = [], []
    for file in files:
        with about(file):
            signed = file.read_bytes()
            if kind_of(signed) is TrusteeCard:
                cards.append(open_trustee_card(signed))
            else:
                dealings.append(signed)
    return card_list(cards), dealings


def _check_own(cards: CardList, home: Path) -> TrusteeCard:
    """The home's own card; CeremonyRefused unless the list has exactly this card."""
    own = trustee_home.own_card(home)
    if own not in cards.cards:
        raise CeremonyRefused(
            f"none of the {len(cards.cards)} cards is that of {home}",
            hint=f"add {home / trustee_home.CARD}; if another card has your address, it is forged",
        )
    return own


def serve(
    home: TrusteeHome,
    log_format: Annotated[Format, typer.Option(help="Format of log lines: json or text.")] = Format.JSON,
) -> None:
    """Run the trustee: make tokens, endorse and unmask, within its own limits, until SIGTERM or Ctrl-C."""
    logs.configure(log_format)
    stop = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: stop.set())
    settings = load(TrusteeSettings, home / trustee_home.SETTINGS, os.environ)
    write_schema(home, TrusteeSettings, trustee_home.SAMPLE)
    service.serve(home, settings, stop)
