"""The verb that stands between Kubernetes and a pod: `check admission`."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from federation.base import logs
from federation.base.console import InputFile
from federation.base.logs import Format
from tenant_client.program.admission.decision import AdmissionMode, Desk
from tenant_client.program.admission.serving import Certificate, listening
from tenant_client.program.verbs.console import Home

RENEW_S = 30.0


def admission(
    home: Home,
    certificate: Annotated[
        Path,
        typer.Option(
            click_type=InputFile(), help="The certificate under which it is served, PEM; its service's name is in it."
        ),
    ],
    key: Annotated[Path, typer.Option(click_type=InputFile(), help="The key of the certificate, PEM.")],
    listen: Annotated[str, typer.Option(help="Where to listen, host:port.")] = "0.0.0.0:8446",
    mode: Annotated[
        AdmissionMode,
        typer.Option(
            envvar="PHAROAH_ADMISSION",
            help="prefer other nodes; require them; refuse, too, pods that select such nodes; off does nothing at all.",
        ),
    ] = AdmissionMode.PREFER,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            help="Pods are checked that ask for a resource whose name begins so, or claim devices; repeatable. By"
            " default nvidia.com/ and amd.com/.",
            show_default=False,
        ),
    ] = None,
    log_format: Annotated[Format, typer.Option(help="Format of log lines: json or text.")] = Format.JSON,
) -> None:
    """Answer a cluster's questions about pods that are about to start, by the published bundle alone, until stopped.

    A pod with GPUs whose workload is known to fail in some contexts is kept from the nodes with their label. The
    workload is that of an earlier run of the same command, or of the lease in the annotation pharoah.dev/like. Fails
    open: whatever is missing or broken lets the pod start as it is. See docs/clusters.md.
    """
    logs.configure(log_format)
    stop = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: stop.set())
    desk = Desk(home, mode, tuple(resource or ("nvidia.com/", "amd.com/")))
    with listening(desk.answer, listen, Certificate(certificate, key)) as listening_at:
        while not stop.wait(RENEW_S):
            listening_at.renew()
