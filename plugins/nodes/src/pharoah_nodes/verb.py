"""`pharoah-provider nodes check` and `nodes service`: may a job use this node? They run on the node."""

import signal
import socket
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from federation.base.screen import show, show_json
from pharoah_nodes import check as checks
from pharoah_nodes.check import NodeCheck, NoReports, from_file, from_prometheus, served
from provider_server.fleet.hints.node_reports import FILE
from provider_server.program.verbs.console import Home, Reports, required, say_error

Url = Annotated[
    str, typer.Option("--prometheus", help="Ask this Prometheus for the provider's node metrics, instead of a file.")
]
Level = Annotated[int, typer.Option(min=1, max=3, help="Least wear level at which a node is refused.")]


def check(
    node: Annotated[str, typer.Argument(help="The node's name in telemetry; default: this machine's.")] = "",
    home: Home = None,
    file: Reports = None,
    prometheus: Url = "",
    level: Level = 2,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Say in one line whether telemetry shows signs of a failure on a node, for NHC, AzNHC and prologs.

    Exit codes: 0 no signs, or unknown; 1 signs at --level or above; 2 wrong usage. Errors of reading exit with 0.
    """
    answer = _answer(node or socket.gethostname(), home, file, prometheus, level)
    if as_json:
        show_json(answer)
    else:
        show(answer["line"])
    raise typer.Exit(answer["exit_code"])


def service(
    at: Annotated[Path, typer.Option("--socket", help="Unix socket to serve.")] = Path("/var/run/nvhcd.sock"),
    node: Annotated[str, typer.Option(help="The node's name in telemetry; default: this machine's.")] = "",
    home: Home = None,
    file: Reports = None,
    prometheus: Url = "",
    level: Level = 2,
) -> None:
    """Answer NVRx at a Unix socket, until stopped: `ft_launcher --ft-node-health-check-endpoint unix://SOCKET`."""
    name = node or socket.gethostname()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: sys.exit(0))
    with served(at, lambda: _answer(name, home, file, prometheus, level)):
        while True:
            signal.pause()


def _answer(node: str, home: Path | None, file: Path | None, prometheus: str, level: int) -> NodeCheck:
    """Fails open: what cannot be read is said on stderr, and the node passes."""
    try:
        report = from_prometheus(prometheus, node) if prometheus else from_file(file or required(home) / FILE, node)
    except NoReports as error:
        say_error(error.what, error.hint)
        report = None
    return checks.check(node, report, time.time(), level)
