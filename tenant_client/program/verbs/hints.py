"""The verb that receives hints from the provider: `watch`."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Annotated, NoReturn

import typer

from federation.base.clock import now_hour
from federation.base.screen import say, show as show_line, show_json
from federation.base.sqlite import reporting
from federation.protocol.service_messages import Hint, LeaseEnd, Notice
from tenant_client.doctor.advice.hints import HintLog, end_of, line_of, object_of, standing
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import UnknownUnit
from tenant_client.doctor.run.lease_ends import take
from tenant_client.program.verbs.console import Home, Latest, failing, journalled, warn
from tenant_client.rounds.network.connect import connected
from tenant_client.rounds.network.provider_service import Online

Show = Callable[[Notice, HintLog], None]

Lease = Annotated[
    str,
    typer.Option(
        envvar="PHAROAH_LEASE",
        help="Show hints of this lease only (its name or the start of it); all are stored.",
        show_default=False,
    ),
]
WaitS = Annotated[float, typer.Option(min=0.1, help="With --once: seconds to listen after the provider has answered.")]
FINE, STANDS, UNKNOWN = 0, 1, 3
PATIENCE_S = 5.0  # with --once, for a provider that does not answer


def watch(
    home: Home,
    lease: Lease = "",
    wait_s: WaitS = 2.0,
    *,
    latest: Latest = False,
    once: Annotated[bool, typer.Option("--once", help="Receive the hints that wait, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each hint.")] = False,
) -> None:
    """Receive the provider's hints about your jobs.

    Hints are one line each, with one action, and are stored in the home; watch takes no action itself. Ends of leases
    come with them, as lines; on stderr with --json. Open hints are shown first. If the provider is away, watch
    reconnects.

    Exit codes with --once: 0 no open hint, 1 an open hint, 3 unknown, for example no answer.
    """

    def show(notice: Notice, log: HintLog) -> None:
        if not str(notice.lease).startswith(lease):
            return
        if isinstance(notice, LeaseEnd):
            (say if as_json else show_line)(f"lease {notice.lease} {end_of(notice)}")
            return
        name = log.context_name(notice.lease)
        if as_json:
            show_json(object_of(notice, name))
        else:
            show_line(line_of(notice, name))

    with failing(UNKNOWN if once else 2):
        lease = _lease(home, lease, latest=latest)
    if once:
        with failing(UNKNOWN):
            code = _once(home, lease, wait_s, show)
        raise typer.Exit(code)
    _end_quietly_when_told()
    with _line(home) as (online, log):
        say("waiting for hints; stop with Ctrl-C")
        _take(home, online, log, show)


def _lease(home: Path, beginning: str, *, latest: bool) -> str:
    """The full name of the lease. An unknown name is returned unchanged, since its hints may come later."""
    if beginning and latest:
        raise typer.BadParameter("pass either --lease or --latest", param_hint="--lease")
    if not (beginning or latest):
        return ""
    database = journalled(home) if latest else home / "tenant.db"
    if not database.exists():
        return beginning
    with reporting(), closing(open_database(database)) as connection:
        try:
            return HintLog(connection).find(beginning)
        except UnknownUnit:
            if latest:
                raise
            return beginning


def _once(home: Path, lease: str, wait_s: float, show: Show) -> int:
    """Listens for `wait_s` seconds and returns the exit code."""
    with _line(home, PATIENCE_S) as (online, log):

        def close() -> None:
            if online.answered.wait(PATIENCE_S):
                time.sleep(wait_s)
            online.close()

        Thread(target=close, daemon=True).start()
        _take(home, online, log, show)
        if any(_standing(log, lease)):
            return STANDS
        if not online.answered.is_set():
            warn("the provider did not answer: there may be newer hints")
            return UNKNOWN
        return FINE


def _take(home: Path, online: Online, log: HintLog, show: Show) -> None:
    """Shows open hints, then stores and shows new ones, and ends of leases, until the stream ends."""
    last = log.cursor()
    for hint in _standing(log):
        show(hint, log)
    for notice, signature in online.watch(last):
        if notice.number > last + 1:
            warn(f"hints {last + 1} to {notice.number - 1} are lost: the provider no longer stores them")
        last = notice.number
        take(home, log, notice, time.time(), signature)
        show(notice, log)


def _standing(log: HintLog, lease: str = "") -> Iterator[Hint]:
    return standing(log.hints(lease), now_hour(), log.over())


@contextmanager
def _line(home: Path, deadline_s: float = 30.0) -> Iterator[tuple[Online, HintLog]]:
    """The connection to the provider and the local log of hints."""
    with (
        reporting(),
        connected(home, deadline_s) as online,
        closing(open_database(home / "tenant.db")) as connection,
    ):
        yield online, HintLog(connection)


def _end_quietly_when_told() -> None:
    """SIGTERM and Ctrl-C end the verb with exit code 0; hints shown so far are stored."""

    def end(*_: object) -> NoReturn:
        raise typer.Exit(FINE)

    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, end)
