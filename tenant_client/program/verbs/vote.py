"""The verb that keeps a vote for a pair of nodes: `patterns vote`."""

from contextlib import closing
from typing import Annotated

import typer

from federation.base.clock import now_hour
from federation.base.screen import say
from federation.base.sqlite import reporting
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.votes import Vote, Votes
from tenant_client.program.verbs.console import Home, journalled


def vote(
    lease: Annotated[str, typer.Argument(metavar="JOB", help="The job; the start of its name is enough.")],
    node: Annotated[str, typer.Argument(help="One of its nodes.")],
    other: Annotated[str, typer.Argument(help="Another one: between both a collective was slow or hung.")],
    home: Home,
    rail: Annotated[
        int | None, typer.Option(min=0, help="The rail, as the provider counts them from 0.", show_default="not known")
    ] = None,
    at: Annotated[
        float | None,
        typer.Option(min=0, help="When it was, in hours since 1970: it counts in that week.", show_default="now"),
    ] = None,
    why: Annotated[str, typer.Option(help="What shows it, for yourself.")] = "by hand",
) -> None:
    """Note that a collective was slow, or hung, between two nodes of a lease.

    It leaves this machine only under a plan that counts votes, if your policy lists `part`: at most one a lease and
    week, as a part of a noisy sum over all tenants. The provider learns which leaf switches are suspect, not by whom.
    """
    with reporting(), closing(open_database(journalled(home))) as connection:
        unit = Journal(connection).find(lease)
        Votes(connection).cast(Vote(unit, now_hour() if at is None else at, (node, other), rail, why))
    say(f"pharoah-tenant: noted for {unit}: {node} and {other}")
