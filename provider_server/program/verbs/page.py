"""The verb that serves the operator's page in a browser: page."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from federation.base.console import ask_secret
from federation.base.screen import say
from federation.protocol.life_table import PER_NODE_HOURS
from provider_server.fleet.analysis.spares import down_share, spares_needed
from provider_server.fleet.hints import node_probes, node_reports, node_risk
from provider_server.program.pages import login
from provider_server.program.pages.plans import PICTURED_H, SHORT, PlacedView, PlansView, VisitView
from provider_server.program.pages.serving import listening
from provider_server.program.verbs.console import Database, Home, required
from provider_server.program.verbs.nodes import busy_until

SALT_BYTES = 16
REPAIR_HOURS, AVAILABILITY = 24.0, 0.99  # the defaults of `nodes spares`


def page(
    action: Annotated[
        Literal["serve", "password"], typer.Argument(help="serve: start the page; password: set its password.")
    ] = "serve",
    home: Home = None,
    database: Database = None,
    host: Annotated[str, typer.Option(help="Address to listen on; over TLS unless it is local.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8446,
) -> None:
    """Show rounds, findings and the fleet in a browser.

    Hazards, the fabric and plans as well. `serve` may run or not.
    """
    place = required(home)
    if action == "password":
        _set_password(place)
        return
    with listening(place, database, host, port, plans=lambda now_h: plans(place, database, now_h)) as address:
        say(f"the page is at {address}")
        _wait()


def plans(home: Path, database: str | None, now_h: float) -> PlansView | None:
    """What `nodes risk`, `probes` and `spares` say with their defaults; None while no node is known."""
    reports = node_reports.newest(home)
    if not reports:
        return None
    facts = node_risk.Facts.of_home(home, now_h)
    rows = node_risk.risks(reports, facts)
    hours, budget = node_probes.HOURS, node_probes.BUDGET
    suspicions = {one.node: one.suspicion for one in reports if one.suspicion}
    visits = node_probes.probes(rows, suspicions, {}, busy_until(home, database, now_h), now_h, hours, budget)
    rates = np.array([row.failures_per_1000_node_hours for row in rows])
    down = down_share(rates / PER_NODE_HOURS, np.full(len(rows), REPAIR_HOURS))
    return PlansView(
        max(one.hour for one in reports),
        tuple(
            PlacedView(row.node, row.jobs, row.probabilities, row.times_usual, row.bucket, row.reason) for row in rows
        ),
        sum(row.jobs == SHORT for row in rows),
        tuple(VisitView(**visit) for visit in visits),
        budget,
        hours,
        spares_needed(down, float(down.mean()), AVAILABILITY),
        round(float(down.sum()), 3),
        AVAILABILITY,
        REPAIR_HOURS,
        tuple(one for one in facts.history.reliability if one.hours == PICTURED_H),
        next((one for one in facts.history.calibrations if one.hours == PICTURED_H), None),
    )


def _set_password(home: Path) -> None:
    """Asks for a new password; from a pipe, the first line is read."""
    password = ask_secret("Password of the page") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    login.set_password(home, password, os.urandom(SALT_BYTES))
    say("password set; everyone who was logged in must log in again")


def _wait() -> None:
    """Waits for SIGTERM or SIGINT."""
    stop = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: stop.set())
    stop.wait()
