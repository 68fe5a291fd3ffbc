"""Verbs by which trustees hand their shares over: to renew them at each epoch, or to replace one that is lost."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.codec import decode, is_labelled
from crypto.signing import Signed
from federation.base.console import AsJson, InputFile
from federation.base.screen import show, show_json
from federation.protocol import succession
from federation.protocol.ceremony import Committee
from federation.protocol.enrolment import TrusteeCard, fingerprint, open_trustee_card
from federation.protocol.seats import Handover
from trustee import home as trustee_home
from trustee.console import TrusteeHome, about, tell, write_new


class RenewedMask(TypedDict):
    """The card with the new mask key, and its fingerprint."""

    card: str
    fingerprint: str


def renew_mask_key(home: TrusteeHome, *, as_json: AsJson = False) -> None:
    """Make a new mask key, and a new card with it, for the next handover.

    A mask key serves one epoch: renew it after the last round of each. The one before is erased when the provider's
    directory shows the new one.
    """
    card = trustee_home.renew_mask_key(home, os.urandom, datetime.now(UTC))
    file, shown = home / trustee_home.CARD, fingerprint(card.name)
    if as_json:
        show_json(RenewedMask(card=str(file), fingerprint=shown))
        return
    show(f"card         {file}", f"fingerprint  {shown}")
    tell("give the card to every trustee, and read its fingerprint aloud to them; then hand over with the new cards")


class HandedOver(TypedDict):
    """A handover, and the fingerprint of the seats that it is for."""

    handover: str
    index: int
    seats_fingerprint: str


def give(
    cards: Annotated[
        list[Path],
        typer.Argument(
            metavar="CARD...", help="The cards of all who shall hold a seat.", click_type=InputFile(exists=True)
        ),
    ],
    home: TrusteeHome,
    out: Annotated[Path, typer.Option(help="The file to write the handover to; it must not exist yet.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Deal this trustee's share of the token key anew, sealed for the trustees on the cards.

    With the cards of the same trustees all shares are renewed. The card of a successor takes the seat of the trustee
    whose card is missing: pass it only if you know that this trustee is lost or leaves.
    """
    trustee_home.settle_pinned(home)
    committee, share = trustee_home.kept_committee(home), trustee_home.kept_share(home)
    seats, opened = succession.seated(committee, _cards(cards))
    key = trustee_home.signing_key(home)
    write_new(out, succession.hand_over(key, share, committee, opened, os.urandom))
    shown = fingerprint(seats.name)
    if as_json:
        show_json(HandedOver(handover=str(out), index=share.index, seats_fingerprint=shown))
        return
    show(f"handover     {out}", f"seats        {shown}")
    tell("check that every trustee has the same fingerprint of the seats; then give the handover to all of them")


class TakenOver(TypedDict):
    """The committee after a handover, and this trustee's number in it."""

    committee: str
    index: int
    fingerprint: str


def take(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="All cards, and handovers of at least the threshold.",
            click_type=InputFile(exists=True),
        ),
    ],
    home: TrusteeHome,
    committee: Annotated[
        Path | None,
        typer.Option(help="The committee before, for a successor.", click_type=InputFile(exists=True)),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Check all handovers, and keep this trustee's new share and the new committee for when they come into force.

    They do when the provider's directory shows them. The share before is erased then.
    """
    trustee_home.settle_pinned(home)
    before = _committee(committee) if committee else trustee_home.kept_committee(home)
    cards, handovers = _sorted(files)
    after = succession.succeeded(before, cards, handovers)
    key, sealing = trustee_home.signing_key(home), trustee_home.sealing_key(home)
    share = succession.own_new_share(before, cards, handovers, key.public, sealing)
    file = trustee_home.keep_next(home, share, after)
    shown = fingerprint(after.name)
    if as_json:
        show_json(TakenOver(committee=str(file), index=share.index, fingerprint=shown))
        return
    show(f"trustee      {share.index} of {len(after.trustees)}", f"committee    {file}", f"fingerprint  {shown}")
    tell(
        "check that every trustee has the same fingerprint; restart `pharoah-trustee serve`;"
        " then one gives the committee and all handovers to the provider, for `pharoah-provider trustees reseat`"
    )


def _committee(file: Path) -> Committee:
    with about(file):
        return decode(Committee, file.read_bytes())


def _cards(files: list[Path]) -> list[TrusteeCard]:
    cards = []
    for file in files:
        with about(file):
            cards.append(open_trustee_card(file.read_bytes()))
    return cards


def _sorted(files: list[Path]) -> tuple[list[TrusteeCard], list[bytes]]:
    """Separates cards and handovers by their labels."""
    cards, handovers = [], []
    for file in files:
        with about(file):
            body = decode(Signed, file.read_bytes()).body
            if is_labelled(Handover, body):
                handovers.append(file.read_bytes())
            else:
                cards.append(file)
    return _cards(cards), handovers
