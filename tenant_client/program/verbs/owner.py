"""Verbs that show owners their data: `privacy budget`, `privacy preview` and `privacy sent`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from crypto.errors import PharoahError
from federation.base.clock import SECONDS_PER_HOUR, date, dates
from federation.base.console import AsJson, InputFile
from federation.base.pinned_directory import NOT_JOINED, NotEnrolled
from federation.base.screen import show, show_json
from federation.base.visible import counted_as
from federation.protocol.noise import SystemSampler
from federation.protocol.plan import Plan
from tenant_client.program.verbs.console import Home, failing, say_error
from tenant_client.rounds.disclosure import owner_view
from tenant_client.rounds.disclosure.owner_view import Sent
from tenant_client.rounds.home import open_tenant
from tenant_client.rounds.tenant import Tenant


class UnreadablePlan(PharoahError):
    """The plan file cannot be read."""

    default_hint = "pass a signed plan with --plan, or omit it for the newest answered plan"


@contextmanager
def _opened(home: Path, *, as_json: bool, nothing: int = 0) -> Iterator[Tenant]:
    """Opens the tenant of `home` and closes it afterwards.

    Without a federation nothing leaves the machine: people are told so, with the exit code `nothing`.
    """
    with failing():
        try:
            tenant = open_tenant(home, (), os.urandom, SystemSampler())
        except NotEnrolled as error:
            if as_json:
                raise
            show(f"nothing leaves this machine: {NOT_JOINED}")
            raise typer.Exit(nothing) from error
        try:
            yield tenant
        finally:
            tenant.close()


def budget(home: Home, *, as_json: AsJson = False) -> None:
    """Show the privacy budget (epsilon) that a job spends in each window, and what is left."""
    with _opened(home, as_json=as_json) as tenant:
        view = owner_view.budget(tenant)
    if as_json:
        show_json(view)
        return
    show(f"limit per job and window: epsilon {view.limit_epsilon:g} at delta {view.delta:g}")
    for line in view.lines:
        start, end = line.window_hours
        back = f"  ({counted_as(line.given_back, 'round')} given back: not opened)" if line.given_back else ""
        show(
            f"{dates(start, end)}  {counted_as(line.rounds, 'round')}"
            f"  spent {line.epsilon:.3f}  left {line.remaining:.3f}{back}"
        )
    show(f"a job that ran in all these windows has spent epsilon {view.whole_job_epsilon:.3f} in total")


def preview(
    home: Home,
    plan: Annotated[
        Path | None,
        typer.Option(
            click_type=InputFile(),
            help="A signed plan; by default the newest answered plan.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show every count of a contribution, before noise and masks are added. Nothing is sent or charged."""
    with _opened(home, as_json=as_json) as tenant:
        view = owner_view.preview(tenant, _plan(tenant, plan))
    if as_json:
        show_json(view)
        return
    start, end = view.window_hours
    show(f"round {view.round_id}: {dates(start, end)}, epsilon {view.epsilon:.3f} at delta {view.delta:g}")
    if view.counts_from_hour != start:
        show(
            f"counts from {date(view.counts_from_hour)} on: windows that were not counted before are included;"
            f" a job that ran in all of them pays epsilon {view.whole_job_epsilon:.3f}"
        )
    show(f"one message of {view.message_bytes} bytes: {view.cells} cells, each count + noise + masks mod 2^64")
    for part in view.layout:
        show(f"  bytes {part.offset:>7}–{part.offset + part.length - 1:<7} {part.field}: {part.meaning}")
    for name, scale in view.noise_scales:
        show(f"  {name}: {view.mechanism} noise of scale {scale:.2f} in the sum")
    for cell in view.counts:
        meaning = ", ".join(f"{name} {level[:12]}" for name, level in cell.cell)
        show(f"  bytes {cell.offset:>7}–{cell.offset + 7:<7} {cell.marginal}: {cell.count} at {meaning}")
    show(f"the other {view.cells - len(view.counts)} cells count 0, with the same noise")


class SentPart(TypedDict):
    """A part of a sent message: where it lies, what it means to its owner, and its bytes."""

    offset: int
    length: int
    field: str
    meaning: str
    hex: str


class SentParts(TypedDict):
    """A whole contribution, byte for byte."""

    parts: list[SentPart]


def sent(
    home: Home,
    round_id: Annotated[
        str | None,
        typer.Option("--round", help="Show every byte of the contribution to this round.", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show all data that left this machine: contributions, tokens, receipts, outcomes, requests to others.

    Exit code 3: nothing was sent yet.
    """
    with _opened(home, as_json=as_json, nothing=3) as tenant:
        if round_id is not None:
            _show_bytes(tenant, round_id, as_json=as_json)
            return
        view = owner_view.sent(tenant)
    if as_json:
        show_json(view)
    else:
        _show_sent(view)
    if not (view.contributions or view.registrations or view.evaluations or view.outcomes or view.questions):
        raise typer.Exit(3)


def _show_sent(view: Sent) -> None:
    for row in view.contributions:
        start, end = row.window_hours
        show(f"contribution {row.round_id}: {dates(start, end)}, {row.message_bytes} bytes, {row.sha256[:16]}")
    for registration in view.registrations:
        show(
            f"lease {registration.lease[:12]} from {date(registration.start_h)}:"
            f" archetype {registration.archetype[:12]}, sub-archetype {registration.subarchetype[:12]}, 3 more tokens"
        )
    for ownership in view.ownerships:
        tokens = ", ".join(token[:12] for token in ownership.tokens)
        show(f"epoch {ownership.epoch}: signed ownership of {counted_as(len(ownership.tokens), 'token')}: {tokens}")
    for link in view.links:
        show(f"epoch {link.epoch}: token {link.token_now[:12]} was {link.token_before[:12]} in the epoch before")
    for evaluation in view.evaluations:
        elements = counted_as(evaluation.elements, "blinded element")
        show(f"epoch {evaluation.epoch}: {elements} to trustee {evaluation.trustee}")
    for receipt in view.receipts:
        show(f"directory entry {receipt.entry}: receipt with the pinned digest {receipt.head[:16]}, on request")
    for outcome in view.outcomes:
        word = "confirmed" if outcome.confirmed else "not confirmed"
        short = f"{outcome.shortfall_percent:.1f}% short"
        show(f"hint {outcome.hint}, lease {outcome.lease}: outcome {outcome.suspicion} {word}, {short}")
    for group in view.questions:
        began = datetime.fromtimestamp(SECONDS_PER_HOUR * group.hour, UTC).astimezone()
        many = f"{group.questions} × {group.kind}, {group.sent_bytes} bytes"
        show(f"hour of {began:%Y-%m-%d %H:%M}: requests to {group.receiver}: {many}")
    show("each received bundle or list of rounds that are over: a receipt with its digest")


def _show_bytes(tenant: Tenant, round_id: str, *, as_json: bool) -> None:
    known = {str(plan.round_id): plan.round_id for plan in tenant.plans()}
    if round_id not in known:
        say_error(f"round {round_id} was not answered", "list answered rounds with `pharoah-tenant privacy sent`")
        raise typer.Exit(3)
    parts = owner_view.sent_bytes(tenant, known[round_id])
    if as_json:
        show_json({"parts": [{**vars(row.part), "hex": row.hex} for row in parts]})
        return
    for row in parts:
        end = row.part.offset + row.part.length - 1
        shown = row.hex if row.part.length <= 64 else f"{row.hex[:64]}… (--json shows all)"
        show(f"bytes {row.part.offset:>7}–{end:<7} {row.part.field}: {row.part.meaning}", f"    {shown}")


def _plan(tenant: Tenant, file: Path | None) -> Plan:
    """The plan in `file` with its signature checked, or the newest answered plan."""
    if file is not None:
        try:
            return tenant.open_plan(file.read_bytes())
        except OSError as error:
            raise UnreadablePlan(f"{error.strerror}: {file}") from error
    answered = tenant.plans()
    if not answered:
        say_error("no plan was answered yet", "pass a signed plan with --plan")
        raise typer.Exit(3)
    return answered[-1]
