"""The verb that makes a claim about a lease: `privacy evidence`."""

import os
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.errors import PharoahError
from crypto.signing import SigningKey
from federation.base.console import AsJson
from federation.base.key_files import read_key
from federation.base.pinned_directory import pinned
from federation.base.screen import say, show, show_json
from federation.base.sqlite import reporting
from federation.base.visible import json_text, reason, short
from federation.protocol.anchors import verification_keys
from pharoah_claims import packet
from pharoah_claims.packet import Claim, kind_of
from pharoah_claims.verify_claim import Refused, verified
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.program.anchors.anchoring import Anchoring, anchor
from tenant_client.program.anchors.chain import ChainEntry, FactChain
from tenant_client.program.verbs.console import Home, joined, journalled, warn
from tenant_client.rounds.home import member

UNSEEN = 1


class ClaimNotWritten(PharoahError):
    """The file of the claim cannot be written."""

    default_hint = "pass another --out"


class EntryRow(TypedDict):
    """An entry of a lease: its number, whether it is shown, what kind of fact, and the fact as JSON text."""

    number: int
    shown: bool
    kind: str
    fact: str


class EvidenceView(TypedDict):
    """The entries of a lease; with --out, the file, and why a verifier would refuse it as yet, or empty."""

    version: int
    lease: str
    entries: list[EntryRow]
    out: str
    refused: str


def evidence(
    lease: Annotated[str, typer.Argument(metavar="JOB", help="A job, or the start of its name.")],
    home: Home,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the claim to this file.", show_default=False)
    ] = None,
    add: Annotated[
        list[int] | None, typer.Option(help="Show this entry as well; may be repeated.", show_default=False)
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Show all entries of the lease.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a signed claim about a lease, for example for a service credit. You choose what it shows.

    Without --out: list the entries that it would show (+) and those that it would not (-), and write nothing. Lines of
    the log, words of the diagnosis and the job's name are shown only if you add them. With --out the trustees anchor
    the journal first. Entries of other leases are in the file as salted hashes.
    Exit code 1: written, but a verifier would refuse it as yet; the reason is printed.
    """
    name, entries = _entries(journalled(home), home, lease)
    shown = packet.chosen(entries, name, add or (), everything=everything)
    refused = _write(home, name, shown, out) if out else ""
    rows = [
        EntryRow(number=one.number, shown=one.number in shown, kind=kind_of(one.body), fact=one.body.decode())
        for one in entries
        if one.lease == name
    ]
    if as_json:
        show_json(EvidenceView(version=1, lease=name, entries=rows, out=str(out or ""), refused=refused))
    else:
        show(*(f"{'+' if row['shown'] else '-'} {row['number']:>6}  {row['fact']}" for row in rows))
    if out:
        say(f"written: {short(out)}; verify with `python verify_claim.py {short(out)} KEYS` (docs/check.md)")
    if refused:
        warn(f"a verifier would refuse it as yet: {refused}")
        raise typer.Exit(UNSEEN)


def _entries(database: Path, home: Path, beginning: str) -> tuple[str, list[ChainEntry]]:
    """The full name of the lease, and the whole chain, brought up to date."""
    with reporting(), closing(open_database(database)) as connection:
        chain = FactChain(connection, member(home).tenant)
        chain.seal(os.urandom)
        return Journal(connection).find(beginning), list(chain.entries())


def _write(home: Path, lease: str, shown: set[int], out: Path) -> str:
    """Writes the claim; why a verifier would refuse it, or nothing. What no quorum has seen is anchored first."""
    claim, refused = _claimed(home, lease, shown)
    if refused:
        anchor(home)
        claim, refused = _claimed(home, lease, shown)
    try:
        out.write_text(json_text(claim) + "\n", encoding="utf-8")
    except OSError as error:
        raise ClaimNotWritten(f"{reason(error)}: {out}") from error
    return refused


def _claimed(home: Path, lease: str, shown: set[int]) -> tuple[Claim, str]:
    """The claim, and why a verifier would refuse it, or nothing."""
    key = SigningKey(read_key(home / "signing.key"))
    with joined(home) as connection:
        chain = pinned(connection)
        anchoring = Anchoring(connection, key, chain.directory)
        entries = FactChain(connection, anchoring.tenant).entries()
        claim = packet.claim(key, lease, entries, shown, anchoring.messages())
    try:
        verified(dict(claim), dict(verification_keys(chain)))
    except Refused as refused:
        return claim, str(refused)
    return claim, ""
