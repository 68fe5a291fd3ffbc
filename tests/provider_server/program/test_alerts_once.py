"""A real Prometheus and a real Alertmanager with the shipped files: an alert arrives once."""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from email.message import Message
from pathlib import Path

import pytest
import yaml
from prometheus_client import start_http_server

from provider_server.program.metrics import Metrics
from simulation.run.processes import free_ports
from tests import needs
from tests.support.receiver import receiver
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[3]
WATCHED_S = 12.0  # longer than several scrapes, evaluations and group intervals of a second


@contextlib.contextmanager
def pager() -> Iterator[tuple[str, list[str]]]:
    """A webhook: its URL, and the status and name of every alert of every notification that came."""
    arrived: list[str] = []

    def take(_path: str, _header: Message, body: bytes) -> int:
        arrived.extend(f"{one['status']} {one['labels']['alertname']}" for one in json.loads(body)["alerts"])
        return 200

    with receiver(take) as url:
        yield f"{url}/", arrived


@contextlib.contextmanager
def programs(commands: Sequence[Sequence[str]]) -> Iterator[None]:
    with contextlib.ExitStack() as running:
        for command in commands:
            program = running.enter_context(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
            running.callback(program.terminate)
        yield


def shipped(folder: Path, ports: Sequence[int], metrics: int, url: str) -> list[list[str]]:
    """The two programs over the shipped files, with seconds for minutes and ports of this test."""
    settings = yaml.safe_load((ROOT / "ops/prometheus/prometheus.yml").read_text("utf-8"))
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(ROOT / "ops/prometheus/alerts.yml")]
    settings["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{metrics}"]
    settings["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{ports[1]}"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    routes = yaml.safe_load((ROOT / "ops/alertmanager/alertmanager.yml").read_text("utf-8"))
    routes["route"] |= {"group_wait": "1s", "group_interval": "1s"}
    routes["receivers"][0]["webhook_configs"][0]["url"] = url
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(routes))
    at = f"--web.listen-address=127.0.0.1:{ports[0]}", f"--web.listen-address=127.0.0.1:{ports[1]}"
    return [
        [
            str(needs.program("prometheus")),
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            at[0],
        ],
        [
            str(needs.program("prometheus-alertmanager")),
            f"--config.file={folder}/alertmanager.yml",
            f"--storage.path={folder}/silences",
            "--cluster.listen-address=",
            at[1],
        ],
    ]


@pytest.mark.nightly
def test_an_alert_arrives_once_while_it_stands(tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.suspects.set(2)
    metrics.nodes.labels("online").set(40)
    metrics.certificate_end_s.set(time.time() + 90 * 86_400)
    server, thread = start_http_server(0, "127.0.0.1", metrics.registry)
    with (
        pager() as (url, arrived),
        free_ports("127.0.0.1", 2) as ports,
        programs(shipped(tmp_path, ports, server.server_port, url)),
    ):
        until(lambda: arrived, "a first notification")
        time.sleep(WATCHED_S)
    server.shutdown()
    server.server_close()
    thread.join()
    assert arrived == ["firing PharoahSuspects"]
