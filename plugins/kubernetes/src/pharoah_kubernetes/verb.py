"""`pharoah-provider kubernetes`: follows the leases of a cluster."""

import os
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from federation.base import logs
from federation.base.console import AsJson
from federation.base.key_files import read_key
from federation.base.logs import Format
from pharoah_kubernetes.api import ACCOUNT, Api, Server
from pharoah_kubernetes.follow import Follower, follow, watching
from pharoah_kubernetes.marks import Marks, marking
from pharoah_kubernetes.settings import Kubernetes, settings_of
from provider_server.program.verbs.console import Database, Home, failing, print_rows, required
from provider_server.rounds import home as homes
from provider_server.rounds.intake.recorder import LeaseRecorder, Recorded

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
    as_json: AsJson = False,
) -> None:
    """Record leases of a Kubernetes cluster as pods with GPUs begin and end, until stopped.

    It reads pods, Jobs, JobSets, LeaderWorkerSets and Kueue's Workloads by watches. Which namespace is whose is in the
    section kubernetes of provider.toml, and whether nodes are labelled or their devices marked; else nothing is written
    to the cluster.
    """
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
        settings, own = homes.settings_of(place), settings_of(place)
        api, named = _api(own), settings.leases.contexts
        with closing(homes.open_leases(place, database, settings)) as book, watching(api) as watches:
            marks = Marks(api, place, lambda hour, name: book.context_labels(hour, name, 0)["context"], own, named)
            recorder = LeaseRecorder(book, place, named)
            follower = Follower(recorder, place, read_key(place / "context.key"), own)
            with marking(marks, once=once):
                follow(watches, follower, told, once=once)


def _api(settings: Kubernetes) -> Api:
    def file(named: str, usual: str) -> Path:
        return Path(named) if named else ACCOUNT / usual

    files = file(settings.token_file, "token"), file(settings.ca_file, "ca.crt")
    return Api(Server(settings.server or Server.inside(os.environ).url, *files))


def _line(row: KubernetesRow) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in row.items())
