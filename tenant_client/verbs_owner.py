"""The verbs by which owners see what is theirs: budget, preview, check."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenant_client.console import AsJson, Home, opened, print_json

if TYPE_CHECKING:
    from crypto.plan import Plan
    from tenant_client.tenant import Tenant


def budget(home: Home, *, as_json: AsJson = False) -> None:
    """Show what each week's jobs have paid in privacy, and what is left."""
    from tenant_client import owner_view

    with opened(home) as tenant:
        view = owner_view.budget(tenant)
    if as_json:
        print_json(view)
        return
    sys.stdout.write(f"limit per job-week: epsilon {view.limit_epsilon:g} at delta {view.delta:g}\n")
    for line in view.lines:
        start, end = line.window_hours
        sys.stdout.write(
            f"hours {start:>6}–{end:<6} {line.rounds} round(s)  spent {line.epsilon:.3f}  left {line.remaining:.3f}\n"
        )
    sys.stdout.write(f"a job present in all of them has paid, as one unit: epsilon {view.whole_job_epsilon:.3f}\n")


def preview(
    home: Home,
    plan: Annotated[
        Path | None,
        typer.Option(help="A signed plan; by default the newest one that was answered.", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show every count that a contribution consists of, before noise and masks hide it. Nothing is sent or charged."""
    from tenant_client import owner_view

    with opened(home) as tenant:
        view = owner_view.preview(tenant, _plan(tenant, plan))
    if as_json:
        print_json(view)
        return
    start, end = view.window_hours
    sys.stdout.write(
        f"round {view.round_id}: hours {start}–{end}, epsilon {view.epsilon:.3f} at delta {view.delta:g}\n"
    )
    sys.stdout.write(
        f"one message of {view.message_bytes} bytes: {view.cells} cells, each count + noise + masks mod 2^64\n"
    )
    for name, scale in view.noise_scales:
        sys.stdout.write(f"  {name}: {view.mechanism} noise of scale {scale:.2f} in the sum\n")
    for cell in view.counts:
        meaning = ", ".join(f"{name} {level[:12]}" for name, level in cell.cell)
        sys.stdout.write(f"  {cell.marginal}: {cell.count} at {meaning}\n")
    sys.stdout.write(f"the other {view.cells - len(view.counts)} cells count 0 and carry noise all the same\n")


def check(
    lease: Annotated[str, typer.Argument(help="The lease that the job would run on, as journalled.")],
    home: Home,
    *,
    as_json: AsJson = False,
) -> None:
    """Ask the newest bundle whether a workload fits its lease. Answered on this machine: the provider learns nothing.

    Exit code 0: fits. 1: warning. 2: mismatch. 3: unknown.
    """
    from tenant_client import check as checking

    with opened(home) as tenant:
        result = checking.check(tenant.bundle(), tenant.journal.labels(lease))
    if as_json:
        print_json(result)
    else:
        sys.stdout.write(f"{result.verdict.name.lower()}: {result.reason}\n")
        if result.better_context:
            sys.stdout.write(f"a context where this workload does well: {result.better_context}\n")
    raise typer.Exit(int(result.verdict))


def _plan(tenant: "Tenant", file: Path | None) -> "Plan":
    """The plan in `file`, its signature checked, or the newest answered one."""
    if file is not None:
        return tenant.open_plan(file.read_bytes())
    answered = tenant.plans()
    if not answered:
        typer.echo("pharoah-tenant: error: no plan was answered yet\nhint: name a signed plan with --plan", err=True)
        raise typer.Exit(3)
    return answered[-1]
