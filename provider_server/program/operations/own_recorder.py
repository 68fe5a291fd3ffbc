"""Records the provider's own failures from telemetry while it serves, as `nodes own-failures` does by hand.

It begins as soon as `[telemetry] prometheus_url` is set: it costs no tenant anything, since only operators see what it
makes of findings. Hours count once, and only those that are over: what is due is whatever lies between the last
recorded hour and now, every day and as soon as a week is over, so that learning finds it whole. Error codes of GPUs are
judged then, too (`node_codes`). What fails is said once and tried again.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from crypto.errors import PharoahError
from federation.base.meanwhile import meanwhile
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet import node_codes
from provider_server.fleet.learning import hardware
from provider_server.fleet.telemetry.samples import HOUR_S, Window
from provider_server.program.operations.poller import SETTLE_S, STOP_S, inventory_of, source_of
from provider_server.rounds.own_events import OwnFailuresRow, failures_seen, first_open, record
from provider_server.rounds.provider import Provider
from provider_server.rounds.settings import Telemetry
from provider_server.rounds.store.own_store import HoursClosed
from provider_server.rounds.store.store import reporting

logger = logging.getLogger(__name__)

EVERY_H = 24
LOOK_S = 60.0
RETRY_S = 600.0


class OwnRecorder:
    """Records what is due, step by step."""

    def __init__(
        self, provider: Provider, home: Path, settings: Telemetry, now_s: Callable[[], float] = time.time
    ) -> None:
        self._provider = provider
        self._home = home
        self._settings = settings
        self._now_s = now_s
        self._stopping = threading.Event()
        self._said = ""

    def due(self) -> tuple[int, int] | None:
        """The hours to record now, if there are any."""
        last = int((self._now_s() - SETTLE_S) // HOUR_S)
        try:
            first = first_open(self._provider, max(0, last - HOURS_PER_WEEK), last)
        except HoursClosed:
            return None
        is_long = last - first >= EVERY_H
        return (first, last) if is_long or first // HOURS_PER_WEEK < last // HOURS_PER_WEEK else None

    def step(self) -> OwnFailuresRow | None:
        """Records the hours that are due, and returns what was recorded; PharoahError where telemetry is away."""
        hours = self.due()
        if hours is None:
            return None
        source, inventory = source_of(self._settings), inventory_of(self._settings)
        kept, repairs = hardware.load(self._home), hardware.load_repairs(self._home)
        followed = hardware.follow_warm(source, Window(*hours, self._now_s()), inventory, kept, repairs)
        with reporting():
            row = record(self._provider, failures_seen(followed, hours[0]), *hours)
            placed = self._provider.store.placed(max(0.0, hours[1] - float(node_codes.KEPT_H)), float(hours[1]))
        mended = [(one.node, float(one.from_hour)) for one in repairs]
        codes = node_codes.codes_in(followed.events)
        node_codes.remember(self._home, codes, node_codes.held(placed), mended, float(hours[1]))
        logger.info("own failures of hours %d–%d recorded", *hours, extra={"event": "own_failures", **row})
        return row

    def run(self) -> None:
        """Records until `stop`; failures are logged once per text, and tried again."""
        while not self._stopping.is_set():
            self._stopping.wait(LOOK_S if self._stepped() else RETRY_S)

    def _stepped(self) -> bool:
        try:
            self.step()
        except PharoahError as error:
            if error.what != self._said:
                fields = {"event": "own_failures", "error": type(error).__name__, "hint": error.hint}
                logger.warning("own failures not recorded: %s", error.what, extra=fields)
                self._said = error.what
            return False
        self._said = ""
        return True

    def stop(self) -> None:
        """Ends `run` after the current step."""
        self._stopping.set()


def recording(recorder: OwnRecorder, settings: Telemetry) -> AbstractContextManager[None]:
    """Within it own failures are recorded in a thread of its own, if the settings name a source."""
    if not settings.prometheus_url:
        return nullcontext()
    return meanwhile(recorder.run, recorder.stop, "pharoah-own-failures", STOP_S)
