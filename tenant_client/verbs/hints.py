"""The verb that listens to the provider: watch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from federation.runtime.screen import say, show as show_line, show_json
from tenant_client.verbs.console import Home, Latest, failing, journalled, warn

if TYPE_CHECKING:
    from federation.protocol.service_messages import Hint
    from tenant_client.advice.hints import HintLog
    from tenant_client.network.provider_service import Online

    Show = Callable[[Hint, HintLog], None]

Lease = Annotated[
    str,
    typer.Option(
        envvar="PHAROAH_LEASE",
        help="Show hints of this lease only, or of the one that begins so; all are kept.",
        show_default=False,
    ),
]
WaitS = Annotated[
    float, typer.Option(min=0.1, help="With --once: how many seconds to listen to a provider that answers.")
]
FINE, STANDS, UNKNOWN = 0, 1, 3
PATIENCE_S = 5.0  # with --once, for a provider that does not answer


def watch(
    home: Home,
    lease: Lease = "",
    wait_s: WaitS = 2.0,
    *,
    latest: Latest = False,
    once: Annotated[bool, typer.Option("--once", help="Take what there is, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each hint.")] = False,
) -> None:
    """Take the provider's hints about your leases as they come, and keep them: a line each, with one thing to do.

    Hints that still stand come first. While the provider is away it is asked again. Nothing is done but said.
    Exit codes with --once: 0 fine, 1 a hint stands, 3 unknown, as when the provider did not answer.
    """
    from tenant_client.advice.hints import line_of, object_of

    def show(hint: "Hint", log: "HintLog") -> None:
        if not str(hint.lease).startswith(lease):
            return
        name = log.context_name(hint.lease)
        if as_json:
            show_json(object_of(hint, name))
        else:
            show_line(line_of(hint, name))

    with failing(UNKNOWN if once else 2):
        lease = _lease(home, lease, latest=latest)
    if once:
        with failing(UNKNOWN):
            code = _once(home, lease, wait_s, show)
        raise typer.Exit(code)
    _end_quietly_when_told()
    with failing(), _line(home) as (online, log):
        say("waiting for hints; Ctrl-C ends it")
        _take(online, log, show)


def _lease(home: Path, beginning: str, *, latest: bool) -> str:
    """The lease that is meant; one that nothing is known of yet stays as it was typed, for hints that are to come."""
    from contextlib import closing

    from federation.runtime.sqlite import reporting
    from tenant_client.advice.hints import HintLog
    from tenant_client.records.database import open_database
    from tenant_client.records.journal import UnknownUnit

    if beginning and latest:
        raise typer.BadParameter("name either a lease or --latest", param_hint="--lease")
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


def _once(home: Path, lease: str, wait_s: float, show: "Show") -> int:
    """Listens for a while; the exit code."""
    import time
    from threading import Thread

    with _line(home, PATIENCE_S) as (online, log):

        def close() -> None:
            if online.answered.wait(PATIENCE_S):
                time.sleep(wait_s)
            online.close()

        Thread(target=close, daemon=True).start()
        _take(online, log, show)
        if any(_standing(log, lease)):
            return STANDS
        if not online.answered.is_set():
            warn("the provider did not answer: what it knows is not known here")
            return UNKNOWN
        return FINE


def _take(online: "Online", log: "HintLog", show: "Show") -> None:
    """Shows what stands, then keeps and shows what comes, for as long as the line is open."""
    import time

    last = log.cursor()
    for hint in _standing(log):
        show(hint, log)
    for hint in online.watch(last):
        if hint.number > last + 1:
            warn(f"hints {last + 1} to {hint.number - 1} are kept by the provider no longer")
        last = hint.number
        log.take(hint, time.time())
        show(hint, log)


def _standing(log: "HintLog", lease: str = "") -> "Iterator[Hint]":
    from federation.runtime.clock import now_hour
    from tenant_client.advice.hints import standing

    return standing(log.hints(lease), now_hour())


@contextmanager
def _line(home: Path, deadline_s: float = 30.0) -> "Iterator[tuple[Online, HintLog]]":
    """The line to the provider, and where its hints are kept."""
    from contextlib import closing

    from federation.runtime.sqlite import reporting
    from tenant_client.advice.hints import HintLog
    from tenant_client.network.connect import connected
    from tenant_client.records.database import open_database

    with (
        reporting(),
        connected(home, deadline_s) as online,
        closing(open_database(home / "tenant.db")) as connection,
    ):
        yield online, HintLog(connection)


def _end_quietly_when_told() -> None:
    """SIGTERM and Ctrl-C end the verb with exit code 0; what was shown is kept."""
    import signal

    def end(*_: object) -> NoReturn:
        raise typer.Exit(FINE)

    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, end)
