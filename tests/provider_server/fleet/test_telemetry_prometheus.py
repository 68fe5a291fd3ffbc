"""The Prometheus source: a real Prometheus that scrapes an exporter of DCGM's shape, and servers at fault."""

import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import httpx
import msgspec
import polars as pl
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from crypto.errors import DecodeError, PeerFault, Unreachable
from federation.transport.certificates import make_certificate
from provider_server.fleet.telemetry.catalogue import METRICS
from provider_server.fleet.telemetry.prometheus import PrometheusSettings, PrometheusSource, TokenInTheClear, TooLarge
from provider_server.fleet.telemetry.quality import Reason, Tally
from provider_server.fleet.telemetry.samples import HOUR_S, SeriesBook, Window
from provider_server.fleet.telemetry.summaries import summarise
from simulation.run.processes import free_ports
from tests import needs
from tests.support.waiting import PATIENCE_S, until

HOST = "127.0.0.1"
SCRAPE_S = 0.5
SOME_HOUR = Window(490_000, 490_001, 490_001.0 * HOUR_S)
LABELS = ("gpu", "UUID", "device", "modelName", "Hostname")


# ---- a real Prometheus ---------------------------------------------------------------------------------------------


class Exporter:
    """What DCGM's exporter shows of a node, on a port of its own."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.registry = CollectorRegistry()
        self.power = Gauge("DCGM_FI_DEV_POWER_USAGE", "W", LABELS, registry=self.registry)
        self.xid = Gauge("DCGM_FI_DEV_XID_ERRORS", "last", LABELS, registry=self.registry)
        self.memory_temperature = Gauge("DCGM_FI_DEV_MEMORY_TEMP", "C", LABELS, registry=self.registry)
        self.downed = Counter("node_infiniband_link_downed_total", "times", ["device", "port"], registry=self.registry)
        self.other = Gauge("DCGM_FI_DEV_VIDEO_CLOCK", "MHz", LABELS, registry=self.registry)
        self.server, self._thread = start_http_server(0, HOST, self.registry)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.server.server_port}"

    def labels(self, gpu: int) -> tuple[str, ...]:
        return str(gpu), f"GPU-{self._node}-{gpu}", f"nvidia{gpu}", "NVIDIA H100 80GB HBM3", self._node

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    program = str(needs.program("prometheus"))
    job = {"job_name": "dcgm", "static_configs": [{"targets": targets}]}
    every = {"scrape_interval": f"{int(1000 * SCRAPE_S)}ms", "scrape_timeout": f"{int(1000 * SCRAPE_S)}ms"}
    (folder / "prometheus.yml").write_text(json.dumps({"global": every, "scrape_configs": [job]}))  # JSON is YAML
    options = ["--config.file", folder / "prometheus.yml", "--storage.tsdb.path", folder / "tsdb"]
    with free_ports(HOST, 1) as (port,), (folder / "log").open("wb") as log:
        url = f"http://{HOST}:{port}"
        command = [program, *map(str, options), "--web.listen-address", f"{HOST}:{port}"]
        with subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                until(lambda: ready(f"{url}/-/ready"), "Prometheus is ready")
                yield url
            finally:
                process.terminate()


def ready(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=PATIENCE_S).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def last_s(url: str, selector: str) -> float:
    """When a series was scraped last."""
    form = {"query": f"max(max_over_time(timestamp({selector})[1h:100ms]))"}
    found = httpx.post(f"{url}/api/v1/query", data=form, trust_env=False, timeout=PATIENCE_S).json()["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0


def test_a_real_prometheus_tells_values_events_and_who_vanished(tmp_path: Path) -> None:
    one, two = Exporter("n1"), Exporter("n2")
    for gpu in (0, 1):
        one.power.labels(*one.labels(gpu)).set(100 * (gpu + 1))
        one.xid.labels(*one.labels(gpu)).set(0)
    one.memory_temperature.labels(*one.labels(0)).set(9223372036854775794)
    one.other.labels(*one.labels(0)).set(1)
    one.downed.labels("mlx5_0", "1").inc(3)
    two.power.labels(*two.labels(0)).set(700)
    began_s = time.time()
    with prometheus(tmp_path, [one.address, two.address]) as url:
        until(
            lambda: (
                last_s(url, 'DCGM_FI_DEV_POWER_USAGE{Hostname="n2"}') > 0
                and last_s(url, 'DCGM_FI_DEV_XID_ERRORS{gpu="1"}') > 0
            )
        )
        seen_s = time.time()
        until(lambda: last_s(url, 'DCGM_FI_DEV_XID_ERRORS{gpu="0"}') > seen_s)
        struck_s = time.time()  # between two scrapes: a sample has the time at which its scrape began
        one.xid.labels(*one.labels(0)).set(79)
        one.downed.labels("mlx5_0", "1").inc(2)
        until(lambda: last_s(url, 'DCGM_FI_DEV_XID_ERRORS{gpu="0"} == 79') > 0)
        vanished_s = time.time()
        one.power.remove(*one.labels(1))
        two.stop()
        later_s = time.time() + 6 * SCRAPE_S
        until(lambda: last_s(url, 'DCGM_FI_DEV_POWER_USAGE{gpu="0", Hostname="n1"}') > later_s)
        window = Window(int(began_s) // HOUR_S, int(time.time()) // HOUR_S + 2, time.time())
        book = SeriesBook(Tally(), nodes={HOST: "n1"})
        source = PrometheusSource(PrometheusSettings(url))
        hours = list(summarise(source, book, window, ["n1", "n2", "n3"]))
        latest = latest_by_slot(source, window)
    one.stop()

    rows = pl.concat(hour.rows for hour in hours[:-1]).filter(pl.col("count") > 0)
    power = rows.filter(pl.col("metric") == "power")
    assert dict(power.select("device", "last").iter_rows()) == {"GPU-n1-0": 100, "GPU-n1-1": 200, "GPU-n2-0": 700}
    downed = rows.filter(pl.col("metric") == "ib_link_downed")
    assert (downed["increase"].sum(), set(downed["node"]), set(downed["device"])) == (2, {"n1"}, {"mlx5_0:1"})
    assert "NVIDIA H100 80GB HBM3" in {dict(series.labels).get("modelName") for series in book.series}

    [event] = pl.concat(hour.events for hour in hours).rows()
    assert event[:3] == ("n1", "GPU-n1-0", "xid")
    assert (struck_s <= event[3] <= vanished_s, event[4]) == (True, 79)

    assert latest["power", "GPU-n1-0"] > later_s
    for vanished in ("GPU-n1-1", "GPU-n2-0"):
        assert began_s < latest["power", vanished] < later_s - 5 * SCRAPE_S
    assert hours[-1].nodes["status"].to_list() == ["missing"] * 3
    quality = book.tally.quality()
    assert quality.of(Reason.BLANK, "memory_temperature") > 2
    assert quality.used + quality.dropped == quality.read


def latest_by_slot(source: PrometheusSource, window: Window) -> dict[tuple[str, str], float]:
    book, latest = SeriesBook(Tally()), dict[tuple[str, str], float]()
    for chunk in source.chunks(book, window):
        for number, time_s in zip(chunk.series.tolist(), chunk.time_s.tolist(), strict=True):
            slot = book.slots[book.series[number].slot]
            latest[slot.metric.name, slot.device] = max(time_s, latest.get((slot.metric.name, slot.device), 0))
    return latest


# ---- servers at fault ----------------------------------------------------------------------------------------------


@dataclass
class Played:
    """What a server answers, in order, the last one for good; and what it was asked."""

    answers: list[tuple[int, bytes]]
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def next(self) -> tuple[int, bytes]:
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


@contextmanager
def played(*answers: tuple[int, bytes], tls: ssl.SSLContext | None = None) -> Iterator[Played]:
    play = Played(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            asked = {name: values[0] for name, values in form.items()}
            play.asked.append(asked | {"authorization": self.headers.get("Authorization", ""), "path": self.path})
            status, body = play.next()
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True) if tls else server.socket
        play.url = f"{'https' if tls else 'http'}://{HOST}:{server.server_port}/prom"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield play
        finally:
            server.shutdown()
            thread.join()


def matrix(*values: tuple[float, str]) -> tuple[int, bytes]:
    metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "Hostname": "n1", "gpu": "0"}
    result = [{"metric": metric, "values": values}]
    return 200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


def ask(settings: PrometheusSettings, sleeps: list[float] | None = None) -> SeriesBook:
    power = msgspec.structs.replace(METRICS["power"], names={"DCGM_FI_DEV_POWER_USAGE": 1.0})  # one question
    book = SeriesBook(Tally(), {"power": power})
    naps = [] if sleeps is None else sleeps
    list(summarise(PrometheusSource(settings, naps.append), book, SOME_HOUR))
    return book


EDGE_S = SOME_HOUR.start_s


def test_a_window_is_half_open_and_bounded() -> None:
    with played(matrix((EDGE_S - 0.001, "1"), (EDGE_S, "2"), (EDGE_S + 1, "NaN"))) as play:
        book = ask(PrometheusSettings(play.url, matchers='job="dcgm"'))
    assert play.asked[0]["path"] == "/prom/api/v1/query"
    assert play.asked[0]["time"] == f"{SOME_HOUR.end_s - 0.001:.3f}"
    assert play.asked[0]["query"].endswith(', job="dcgm"}[3600000ms]')
    assert (book.tally.quality().read, book.tally.quality().of(Reason.NOT_A_NUMBER)) == (2, 1)


def test_a_busy_server_is_asked_again_and_a_silent_one_is_unreachable() -> None:
    sleeps: list[float] = []
    with played((503, b""), (429, b""), matrix((EDGE_S, "2"))) as play:
        assert ask(PrometheusSettings(play.url), sleeps).tally.quality().used == 1
    assert sleeps == [1, 2]
    with played((503, b"")) as play, pytest.raises(Unreachable, match="4 attempts: HTTP status 503"):
        ask(PrometheusSettings(play.url))
    assert len(play.asked) == 4
    with pytest.raises(Unreachable, match="ConnectError"):
        ask(PrometheusSettings(play.url, attempts=2))


def test_a_redirect_is_refused_and_the_token_stays(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("canary-1\n")
    with played((302, b"")) as play, pytest.raises(PeerFault, match="redirects") as caught:
        ask(PrometheusSettings(play.url, bearer_token_file=tmp_path / "token"))
    assert [asked["authorization"] for asked in play.asked] == ["Bearer canary-1"]
    assert "canary" not in caught.value.diagnostics()


def test_no_token_goes_over_a_network_in_the_clear(tmp_path: Path) -> None:
    with pytest.raises(TokenInTheClear):
        PrometheusSource(PrometheusSettings("http://metrics.example", bearer_token_file=tmp_path / "token"))
    PrometheusSource(PrometheusSettings("https://metrics.example", bearer_token_file=tmp_path / "token"))


def test_a_wrong_question_tells_what_the_server_said() -> None:
    with (
        played((400, b'{"status":"error","error":"parse error"}')) as play,
        pytest.raises(PeerFault, match="parse error"),
    ):
        ask(PrometheusSettings(play.url))
    assert len(play.asked) == 1


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"status":"success","data":{"resultType":"vector","result":[]}}'])
def test_what_is_no_prometheus_is_a_decode_error(body: bytes) -> None:
    with played((200, body)) as play, pytest.raises(DecodeError):
        ask(PrometheusSettings(play.url))


def test_a_value_that_is_no_number_is_a_decode_error() -> None:
    with played(matrix((EDGE_S, "many"))) as play, pytest.raises(DecodeError, match="power"):
        ask(PrometheusSettings(play.url))


def test_too_large_an_answer_is_asked_for_in_halves_down_to_a_second() -> None:
    small = matrix((EDGE_S, "2"))
    with played((422, b""), small) as play:
        ask(PrometheusSettings(play.url))
    assert [asked["query"].partition("}")[2] for asked in play.asked] == ["[3600000ms]", "[1800000ms]", "[1800000ms]"]
    with played(small) as play, pytest.raises(TooLarge, match="power"):
        ask(PrometheusSettings(play.url, most_bytes=10))
    assert len(play.asked) == 13


def test_tls_is_checked_against_the_root_that_is_named(tmp_path: Path) -> None:
    right, wrong = (make_certificate([HOST], datetime.now(UTC)) for _ in range(2))
    for name, certificate in (("right", right), ("wrong", wrong)):
        (tmp_path / f"{name}.pem").write_bytes(certificate.certificate_pem)
    (tmp_path / "key").write_bytes(right.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "right.pem", tmp_path / "key")
    with played(matrix((EDGE_S, "2")), tls=context) as play:
        assert ask(PrometheusSettings(play.url, root_certificate=tmp_path / "right.pem")).tally.quality().used == 1
        with pytest.raises(Unreachable, match="certificate"):
            ask(PrometheusSettings(play.url, root_certificate=tmp_path / "wrong.pem", attempts=1))
