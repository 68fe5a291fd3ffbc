"""The verbs by which owners see what is theirs: journal, budget, preview, sent."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crypto.errors import PharoahError
from federation.runtime.clock import SECONDS_PER_HOUR
from federation.runtime.console import AsJson, InputFile
from federation.runtime.screen import show, show_json
from federation.runtime.visible import counted_as
from tenant_client.verbs.console import Home, journalled, opened, say_error

if TYPE_CHECKING:
    from federation.protocol.plan import Plan
    from tenant_client.disclosure.happened import Happened
    from tenant_client.disclosure.owner_view import Sent
    from tenant_client.rounds.tenant import Tenant


class UnreadablePlan(PharoahError):
    """The file that should hold a plan cannot be read."""

    default_hint = "name a signed plan with --plan, or none for the newest one that was answered"


def journal(home: Home, *, as_json: AsJson = False) -> None:
    """Show what happened: leases, attempts and why they ended.

    Exit code 3: nothing is journalled yet. How the last attempt ended is the exit code of `status`.
    """
    from contextlib import closing

    from tenant_client.disclosure.happened import what_happened
    from tenant_client.records.database import open_database

    with closing(open_database(journalled(home))) as connection:
        view = what_happened(connection)
    if as_json:
        show_json(view)
    else:
        _tell(view)
    if not view.leases:
        raise typer.Exit(3)


def _tell(view: "Happened") -> None:
    for workload in view.workloads:
        job = f" ({view.jobs[workload.lease]})" if workload.lease in view.jobs else ""
        what = ", ".join((workload.precision or "precision unknown", workload.parallelism, *workload.versions))
        show(f"{workload.lease}{job}: {what}", f"    {', '.join(workload.structure)}")
    for attempt in view.attempts:
        began = datetime.fromtimestamp(attempt.started_at_s, UTC).astimezone()
        steps = f", {attempt.steps} steps" if attempt.steps else ""
        job = f" ({view.jobs[attempt.unit]})" if attempt.unit in view.jobs else ""
        show(f"{began:%Y-%m-%d %H:%M:%S}  {attempt.unit}{job} attempt {attempt.attempt}: {attempt.state}{steps}")
        show(*([f"    {attempt.cause.sentence}"] if attempt.cause.sentence else []))
        show(*(f"    {finding['kind']}: {finding['text']}" for finding in attempt.findings))
    reasons = Counter(labelled.failure.reason for labelled in view.failures)
    counted = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common())
    show(f"{counted_as(len(view.leases), 'lease')}; failures to be counted: {counted or 'none'}")


def budget(home: Home, *, as_json: AsJson = False) -> None:
    """Show what each week's jobs have paid in privacy, and what is left."""
    from tenant_client.disclosure import owner_view

    with opened(home) as tenant:
        view = owner_view.budget(tenant)
    if as_json:
        show_json(view)
        return
    show(f"limit per job-week: epsilon {view.limit_epsilon:g} at delta {view.delta:g}")
    for line in view.lines:
        start, end = line.window_hours
        show(
            f"hours {start:>6}–{end:<6} {counted_as(line.rounds, 'round')}"
            f"  spent {line.epsilon:.3f}  left {line.remaining:.3f}"
        )
    show(f"a job present in all of them has paid, as one unit: epsilon {view.whole_job_epsilon:.3f}")


def preview(
    home: Home,
    plan: Annotated[
        Path | None,
        typer.Option(
            click_type=InputFile(),
            help="A signed plan; by default the newest one that was answered.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show every count that a contribution consists of, before noise and masks hide it. Nothing is sent or charged."""
    from tenant_client.disclosure import owner_view
    from tenant_client.disclosure.message_layout import NOISE

    with opened(home) as tenant:
        view = owner_view.preview(tenant, _plan(tenant, plan))
    if as_json:
        show_json(view)
        return
    start, end = view.window_hours
    show(f"round {view.round_id}: hours {start}–{end}, epsilon {view.epsilon:.3f} at delta {view.delta:g}")
    if view.counts_from_hour != start:
        show(f"counts from hour {view.counts_from_hour}: weeks without an answer are carried over")
    apart = any(part.field.startswith(NOISE) for part in view.layout)
    words = "count + masks, behind all of them each noise + masks" if apart else "count + noise + masks"
    show(f"one message of {view.message_bytes} bytes: {view.cells} cells, each {words} mod 2^64")
    for part in view.layout:
        show(f"  bytes {part.offset:>7}–{part.offset + part.length - 1:<7} {part.field}: {part.meaning}")
    for name, scale in view.noise_scales:
        show(f"  {name}: {view.mechanism} noise of scale {scale:.2f} in the sum")
    for cell in view.counts:
        meaning = ", ".join(f"{name} {level[:12]}" for name, level in cell.cell)
        show(f"  bytes {cell.offset:>7}–{cell.offset + 7:<7} {cell.marginal}: {cell.count} at {meaning}")
    show(f"the other {view.cells - len(view.counts)} cells count 0 and carry noise all the same")


def sent(
    home: Home,
    round_id: Annotated[
        str | None,
        typer.Option("--round", help="Show every byte of the contribution to this round.", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show what did leave this house: contributions, tokens, requests to trustees, receipts, outcomes, questions.

    Exit code 3: nothing has left yet.
    """
    from tenant_client.disclosure import owner_view

    with opened(home) as tenant:
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


def _show_sent(view: "Sent") -> None:
    for row in view.contributions:
        start, end = row.window_hours
        show(f"contribution {row.round_id}: hours {start}–{end}, {row.message_bytes} bytes, {row.sha256[:16]}")
    for told in view.registrations:
        show(
            f"lease {told.lease[:12]} from hour {told.start_h:.1f}: archetype {told.archetype[:12]},"
            f" sub-archetype {told.subarchetype[:12]}, 3 more tokens"
        )
    for owned in view.ownerships:
        tokens = ", ".join(token[:12] for token in owned.tokens)
        show(f"epoch {owned.epoch}: signed that leases here hold {len(owned.tokens)} tokens: {tokens}")
    for asked in view.evaluations:
        show(f"epoch {asked.epoch}: trustee {asked.trustee} was sent {asked.elements} blinded elements")
    for receipt in view.receipts:
        show(f"directory entry {receipt.entry}, when asked: its digest {receipt.head[:16]} is pinned here")
    for outcome in view.outcomes:
        word = "confirmed" if outcome.confirmed else "not confirmed"
        short = f"{outcome.shortfall_percent:.1f}% short"
        show(f"hint {outcome.hint}, lease {outcome.lease}: told that {outcome.suspicion} was {word}, {short}")
    for group in view.questions:
        began = datetime.fromtimestamp(SECONDS_PER_HOUR * group.hour, UTC).astimezone()
        many = f"{group.questions} × {group.kind}, {group.sent_bytes} bytes"
        show(f"hour of {began:%Y-%m-%d %H:%M}: {group.receiver} was asked {many}")
    show("each bundle that came: its digest is held here")


def _show_bytes(tenant: "Tenant", round_id: str, *, as_json: bool) -> None:
    from tenant_client.disclosure import owner_view

    known = {str(plan.round_id): plan.round_id for plan in tenant.plans()}
    if round_id not in known:
        say_error(f"round {round_id} was not answered", "list them with sent")
        raise typer.Exit(3)
    parts = owner_view.sent_bytes(tenant, known[round_id])
    if as_json:
        show_json({"parts": [{**vars(row.part), "hex": row.hex} for row in parts]})
        return
    for row in parts:
        end = row.part.offset + row.part.length - 1
        shown = row.hex if row.part.length <= 64 else f"{row.hex[:64]}… (--json shows all)"
        show(f"bytes {row.part.offset:>7}–{end:<7} {row.part.field}: {row.part.meaning}", f"    {shown}")


def _plan(tenant: "Tenant", file: Path | None) -> "Plan":
    """The plan in `file`, its signature checked, or the newest answered one."""
    if file is not None:
        try:
            return tenant.open_plan(file.read_bytes())
        except OSError as error:
            raise UnreadablePlan(f"{file}: {error.strerror}") from error
    answered = tenant.plans()
    if not answered:
        say_error("no plan was answered yet", "name a signed plan with --plan")
        raise typer.Exit(3)
    return answered[-1]
