"""When the running provider records own failures. That it does, from a real Prometheus, is in `test_live`."""

import logging

import pytest

from crypto.ids import LeaseId
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.own_failures import OwnFailure
from provider_server.program.operations.own_recorder import OwnRecorder, recording
from provider_server.program.operations.poller import NotReady
from provider_server.rounds.settings import Telemetry
from tests.support.leasing import Scene, founded as founded, scene as scene

WEEK = 100 * HOURS_PER_WEEK


def recorder(scene: Scene, hour: float) -> OwnRecorder:
    return OwnRecorder(scene.provider, scene.home, Telemetry(), lambda: hour * 3600.0)


def test_hours_are_due_once_they_are_over_and_enough(scene: Scene) -> None:
    assert recorder(scene, WEEK + 80.0).due() == (WEEK + 80 - 1 - HOURS_PER_WEEK, WEEK + 79)  # settles for a while
    scene.provider.store.own.add(0, WEEK + 50, [OwnFailure(LeaseId(bytes(16)), WEEK + 1.0)])
    assert recorder(scene, WEEK + 60.5).due() is None
    assert recorder(scene, WEEK + 74.5).due() == (WEEK + 50, WEEK + 74)
    assert recorder(scene, WEEK + 40.5).due() is None


def test_a_week_is_recorded_as_soon_as_it_is_over(scene: Scene) -> None:
    scene.provider.store.own.add(0, WEEK + 160, [])
    assert recorder(scene, WEEK + 167.5).due() is None
    assert recorder(scene, WEEK + 168.5).due() == (WEEK + 160, WEEK + 168)


def test_without_telemetry_nothing_is_recorded_and_it_is_said_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    without = recorder(scene, WEEK + 80.0)
    with pytest.raises(NotReady):
        without.step()
    with caplog.at_level(logging.WARNING):
        assert [without._stepped(), without._stepped()] == [False, False]
    assert len([one for one in caplog.records if one.message.startswith("own failures not recorded")]) == 1
    assert scene.provider.store.own.looked_until() == 0


def test_it_is_on_as_soon_as_the_settings_name_a_source(scene: Scene) -> None:
    off = OwnRecorder(scene.provider, scene.home, Telemetry(), lambda: (WEEK + 80.0) * 3600.0)
    with recording(off, Telemetry()):
        pass
    assert not off._stopping.is_set()  # it never began
    settings = Telemetry(prometheus_url="http://127.0.0.1:9")
    with recording(off, settings):
        pass
    assert off._stopping.is_set()
