"""`pharoah-provider kubernetes`: follows the leases of a cluster."""

from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from federation.runtime.logs import Format
from provider_server.verbs.console import AsRows, Database, Home, failing, print_rows, required

if TYPE_CHECKING:
    from pathlib import Path

    from provider_server.intake.kubernetes.api import Api
    from provider_server.settings import Kubernetes

LogFormat = Annotated[Format, typer.Option(help="Format of log lines: json, or text for people.")]


class KubernetesRow(TypedDict):
    """How many leases began, ended, were requeued or got another planned end since the last row."""

    begun: int
    changed: int
    ended: int
    requeued: int


def kubernetes(
    home: Home = None,
    database: Database = None,
    log_format: LogFormat = Format.JSON,
    *,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    as_json: AsRows = False,
) -> None:
    """Record leases of a Kubernetes cluster as pods with GPUs begin and end, until stopped.

    It reads pods, Jobs, JobSets, LeaderWorkerSets and Kueue's Workloads by watches. Which namespace is whose is in the
    section kubernetes of provider.toml, and whether nodes are labelled or their devices marked; else nothing is written
    to the cluster.
    """
    from contextlib import closing

    from federation.runtime import logs
    from federation.runtime.key_files import read_key
    from provider_server import home as homes
    from provider_server.intake.kubernetes.follow import Follower, follow, watching
    from provider_server.intake.recorder import LeaseRecorder, Recorded
    from provider_server.outputs.node_marks import Marks, marking

    place = required(home)
    logs.configure(log_format)

    def told(recorded: list[Recorded]) -> None:
        row: KubernetesRow = {
            "begun": recorded.count(Recorded.BEGUN),
            "changed": recorded.count(Recorded.CHANGED),
            "ended": recorded.count(Recorded.ENDED),
            "requeued": recorded.count(Recorded.REQUEUED),
        }
        if recorded or once:
            print_rows([row], _line, as_json=as_json)

    with failing():
        settings = homes.settings_of(place)
        api = _api(settings.kubernetes)
        with closing(homes.open_leases(place, database, settings)) as book, watching(api) as watches:
            marks = Marks(api, place, lambda hour, name: book.context_labels(hour, name, 0)["context"], settings)
            recorder = LeaseRecorder(book, place, settings.leases.contexts)
            follower = Follower(recorder, place, read_key(place / "context.key"), settings.kubernetes)
            with marking(marks, once=once):
                follow(watches, follower, told, once=once)


def _api(settings: "Kubernetes") -> "Api":
    import os
    from pathlib import Path

    from provider_server.intake.kubernetes.api import ACCOUNT, Api, Server

    def file(named: str, usual: str) -> "Path":
        return Path(named) if named else ACCOUNT / usual

    files = file(settings.token_file, "token"), file(settings.ca_file, "ca.crt")
    return Api(Server(settings.server or Server.inside(os.environ).url, *files))


def _line(row: KubernetesRow) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in row.items())
