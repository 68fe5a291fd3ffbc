"""What systemd is told, by a socket of our own in its place: ready, alive while nothing hangs, stopping."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from federation.base.service_manager import announced

EVERY_S = 0.05


@pytest.fixture(params=["file", "abstract"])
def manager(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    address = str(tmp_path / "notify") if request.param == "file" else f"@{tmp_path.name}-{id(tmp_path)}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(address.replace("@", "\0", 1))
        listening.settimeout(20.0)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", str(round(2e6 * EVERY_S)))
        yield listening


def broken() -> None:
    raise OSError("the disk is full")


@pytest.mark.parametrize("probe", [lambda: None, broken])
def test_ready_alive_and_stopping_are_told(manager: socket.socket, probe: object) -> None:
    with announced(probe):  # type: ignore[arg-type]
        assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    told = manager.recv(100)
    while told == b"WATCHDOG=1":
        told = manager.recv(100)
    assert told == b"STOPPING=1"


def test_who_hangs_is_not_said_to_be_alive(manager: socket.socket) -> None:
    going_on = threading.Event()
    with announced(going_on.wait):
        assert manager.recv(100) == b"READY=1"
        manager.settimeout(6 * EVERY_S)
        with pytest.raises(TimeoutError):
            manager.recv(100)
        going_on.set()


def test_without_a_service_manager_nothing_is_told_and_one_that_went_away_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ("", str(tmp_path / "away")):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        with announced(lambda: None):
            pass
