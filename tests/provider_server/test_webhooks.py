"""Alerts over real HTTP: Alertmanager takes what is sent, nobody waits for it, and what fails is tried again."""

import json
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from provider_server.operations.alerts import (
    LONGEST_WAIT_S,
    PATH,
    STANDS_S,
    TIMEOUT_S,
    Alert,
    AlertsNotTaken,
    BadWebhook,
    Board,
    Kind,
    Webhook,
    alert,
    drift,
    held_back,
    round_waiting,
    send,
    suspects,
    target,
    trustee_away,
)
from simulation.run.processes import free_ports
from tests import needs
from tests.support.waiting import PATIENCE_S, until

EVERY = (round_waiting("unmask", "Unreachable"), trustee_away(2), suspects(3), drift(1), held_back())


class Receiver:
    """A server that answers with the statuses it is given, and then 200; it keeps what it was sent."""

    def __init__(self, statuses: Sequence[int] = ()) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[str, str, list[Alert]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the name that http.server looks for
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append((self.path, self.headers["content-type"], json.loads(body)))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as it is there
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def waited_for(self, count: int) -> bool:
        return until(lambda: len(self.got) >= count, f"{count} posts")


@contextmanager
def receiving(statuses: Sequence[int] = ()) -> Iterator[Receiver]:
    receiver = Receiver(statuses)
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()


def told(*conditions: object) -> list[Alert]:
    return Board().alerts(conditions, 1000.0)  # type: ignore[arg-type]


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_every_kind_has_an_alert_with_all_that_the_api_asks_for() -> None:
    made = told(*EVERY)
    assert {one["labels"]["alertname"] for one in made} == set(Kind)
    for one in made:
        assert set(one) == {"labels", "annotations", "startsAt", "endsAt"}
        assert all(
            isinstance(value, str) and value for part in ("labels", "annotations") for value in one[part].values()
        )
        assert one["labels"]["severity"] in ("warning", "critical")
        start, end = (datetime.fromisoformat(one[name]) for name in ("startsAt", "endsAt"))
        assert (end - start).total_seconds() == STANDS_S


def test_alerts_stand_since_they_began_and_their_end_is_repeated() -> None:
    board = Board()
    (first,) = board.alerts([trustee_away(1)], 0.0)
    again, other = board.alerts([trustee_away(1), suspects(2)], 60.0)
    assert (again["startsAt"], again["labels"]) == (first["startsAt"], first["labels"])
    assert again["endsAt"] > first["endsAt"]
    (over, more) = board.alerts([suspects(5)], 120.0)
    assert (more["startsAt"], more["labels"]) == (other["startsAt"], other["labels"])  # another number, the same alert
    assert "5 tenants suspected" in more["annotations"]["description"]
    assert (over["labels"], over["endsAt"]) == (
        first["labels"],
        alert(trustee_away(1), since_s=0, until_s=120)["endsAt"],
    )
    assert board.alerts([], 180.0)[0] == over  # or a receiver whose clock is behind would take it for the future
    (ended,) = board.alerts([], 120.0 + STANDS_S + 1)
    assert ended == alert(suspects(5), since_s=60.0, until_s=180.0)
    assert board.alerts([], 180.0 + STANDS_S + 1) == []
    (anew,) = board.alerts([trustee_away(1)], 3000.0)
    assert anew["startsAt"] != first["startsAt"]
    board.alerts([], 3060.0)
    (again,) = board.alerts([trustee_away(1)], 3120.0)
    assert again == alert(trustee_away(1), since_s=3120.0, until_s=3120.0 + STANDS_S)


def test_two_trustees_are_two_alerts() -> None:
    one, other = told(trustee_away(1), trustee_away(2))
    assert one["labels"] != other["labels"]
    assert len(told(trustee_away(1), trustee_away(1))) == 1


@pytest.mark.parametrize(
    ("given", "posted"),
    [
        ("http://alerts.example:9093", f"http://alerts.example:9093{PATH}"),
        ("http://alerts.example/", f"http://alerts.example{PATH}"),
        ("https://alerts.example/prefix/api/v2/alerts", "https://alerts.example/prefix/api/v2/alerts"),
    ],
)
def test_a_bare_host_gets_the_path_of_alertmanager(given: str, posted: str) -> None:
    assert target(given) == posted


@pytest.mark.parametrize("url", ["", "alerts.example", "ftp://user:secret@alerts", "http://", "file:///etc/passwd"])
def test_what_is_no_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadWebhook) as raised:
        target(url)
    assert not any(part in raised.value.diagnostics() for part in ("secret", "passwd"))


# ---- how it is sent --------------------------------------------------------------------------------------------------


def test_alerts_arrive_as_json_at_the_path(caplog: pytest.LogCaptureFixture) -> None:
    made = told(*EVERY)
    with receiving() as receiver, Webhook(receiver.url) as webhook:
        webhook.put(made)
        assert receiver.waited_for(1)
    ((path, kind, got),) = receiver.got
    assert (path, kind, got) == (PATH, "application/json", made)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_what_may_pass_is_tried_again_ever_more_slowly(status: int, caplog: pytest.LogCaptureFixture) -> None:
    waits: list[float] = []
    with (
        receiving([status] * 12) as receiver,
        Webhook(receiver.url, lambda _event, wait_s: waits.append(wait_s)) as webhook,
    ):
        webhook.put(told(held_back()))
        assert receiver.waited_for(13)
        webhook.put(told(suspects(1)))
        assert receiver.waited_for(14)
    assert len(receiver.got) == 14
    assert waits[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert max(waits) == LONGEST_WAIT_S == waits[-1]
    notes = [vars(record) for record in caplog.records if vars(record).get("event") == "webhook"]
    assert {(note["outcome"], note["error"]) for note in notes} == {("kept", "AlertsNotTaken")}
    assert receiver.url not in caplog.text


def test_what_is_refused_for_good_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with receiving([400]) as receiver, Webhook(receiver.url) as webhook:
        webhook.put(told(held_back()))
        assert receiver.waited_for(1)
        until(lambda: "dropped" in caplog.text)
        webhook.put(told(suspects(1)))
        assert receiver.waited_for(2)
    assert [one["labels"]["alertname"] for _, _, got in receiver.got for one in got] == [Kind.HELD_BACK, Kind.SUSPECTS]


def test_a_redirection_is_not_followed() -> None:
    with receiving([302]) as receiver, httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
        with pytest.raises(AlertsNotTaken, match="302") as raised:
            send(client, target(receiver.url), told(held_back()))
        assert raised.value.for_good


def test_the_newest_word_replaces_what_could_not_be_sent() -> None:
    held, go_on = threading.Event(), threading.Event()

    def wait(_event: threading.Event, _wait_s: float) -> None:
        held.set()
        go_on.wait(PATIENCE_S)

    board = Board()
    with receiving([503]) as receiver, Webhook(receiver.url, wait) as webhook:
        webhook.put(board.alerts([trustee_away(1), suspects(1)], 0.0))
        assert held.wait(PATIENCE_S)
        newest = board.alerts([suspects(2)], 60.0)
        webhook.put(newest)
        go_on.set()
        assert receiver.waited_for(2)
    got = receiver.got[1][2]
    assert len(got) == 2
    assert all(one in newest for one in got)


def test_nobody_waits_for_a_receiver_that_is_away() -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # accepts by its backlog and never answers
    with silent, Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}") as webhook:
        began_s = time.monotonic()
        for _ in range(100):
            webhook.put(told(*EVERY))
        assert time.monotonic() - began_s < 5 * TIMEOUT_S  # a hundred that waited would take a hundred
        silent.close()


def test_a_real_alertmanager_takes_every_alert_and_its_end(tmp_path: Path) -> None:
    program = str(needs.program("prometheus-alertmanager"))
    settings = tmp_path / "alertmanager.yml"
    settings.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    with free_ports("127.0.0.1", 1) as (port,):
        with_alertmanager(program, settings, f"127.0.0.1:{port}")


def with_alertmanager(program: str, settings: Path, at: str) -> None:
    listens = f"--web.listen-address={at}", "--cluster.listen-address="
    command = [program, f"--config.file={settings}", f"--storage.path={settings.parent}", *listens]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            board = Board()
            with Webhook(f"http://{at}") as webhook:
                webhook.put(board.alerts(EVERY, time.time()))
                until(lambda: names(at) == set(Kind), "every alert")
                webhook.put(board.alerts(EVERY[:2], time.time()))
                until(lambda: names(at) == {Kind.ROUND_WAITING, Kind.TRUSTEE_AWAY}, "the ends of the others")
        finally:
            running.terminate()


def names(at: str) -> set[str]:
    """The alerts that an Alertmanager has; nothing while it is not up."""
    with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
        try:
            return {one["labels"]["alertname"] for one in client.get(f"http://{at}{PATH}").json()}
        except httpx.TransportError:
            return set()
