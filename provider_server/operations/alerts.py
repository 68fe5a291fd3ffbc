"""Alerts to whoever is called when something is wrong, in the format of Alertmanager's v2 API (POST /api/v2/alerts).

    conditions that stand ─ Board ─▶ alerts ─ Webhook.put ─▶ a thread that sends, and tries again

`Board` says of each condition since when it stands, repeats it, and then repeats that it is over. An alert that is not
repeated ends by itself after `STANDS_S`: so one that a dead provider raised does not stand for ever. `Webhook` never
makes anybody wait: what cannot be sent is tried again, ever more slowly, and the newest word on each alert replaces the
one before. What the receiver refuses for good is logged and dropped.

No alert names a tenant, a token or a lease: it is read by more people than a release.

Not promised: that an alert arrives at all. Prometheus watches the provider from outside, see ops/prometheus/alerts.yml.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType, TracebackType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from crypto.errors import PharoahError

logger = logging.getLogger(__name__)

PATH = "/api/v2/alerts"
STANDS_S = 900.0  # after its last repetition
TIMEOUT_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0
GOOD, TRY_AGAIN, ERRORS_BEGIN, SERVER_ERRORS_BEGIN = 200, (408, 429), 300, 500
Alert = dict[str, Any]


class BadWebhook(PharoahError):
    """The address for alerts is none that can be posted to."""

    default_hint = "[alerts] webhook_url is like http://alertmanager.example:9093"


class AlertsNotTaken(PharoahError):
    """Alerts could not be handed over."""

    default_hint = "see whether the receiver of [alerts] webhook_url runs, and what its log says"

    def __init__(self, what: str, *, for_good: bool) -> None:
        super().__init__(what)
        self.for_good = for_good


class Kind(StrEnum):
    """What alerts are about: the label `alertname`."""

    ROUND_WAITING = "PharoahRoundWaiting"
    TRUSTEE_AWAY = "PharoahTrusteeAway"
    SUSPECTS = "PharoahSuspects"
    DRIFT = "PharoahDrift"
    HELD_BACK = "PharoahBundleHeldBack"


_SEVERITY_AND_SUMMARY: Mapping[Kind, tuple[str, str]] = MappingProxyType(
    {
        Kind.ROUND_WAITING: ("warning", "A round is open and waits for somebody"),
        Kind.TRUSTEE_AWAY: ("warning", "A trustee does not answer"),
        Kind.SUSPECTS: ("critical", "Tenants may have sent false counts"),
        Kind.DRIFT: ("warning", "Failures differ from what bundles said in advance"),
        Kind.HELD_BACK: ("warning", "A bundle was held back"),
    }
)


@dataclass(frozen=True)
class Condition:
    """Something that is wrong now. Equal kinds with equal labels are the same thing, whatever the text says of it."""

    kind: Kind
    text: str
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """What tells it from others."""
        return (("alertname", self.kind.value), *sorted(self.labels.items()))


def round_waiting(stage: str, why: str) -> Condition:
    """`why` is the class of the error that stopped it."""
    return Condition(Kind.ROUND_WAITING, f"It stopped at {stage} with {why} and goes on by itself.")


def trustee_away(index: int) -> Condition:
    """By its number in the directory."""
    return Condition(Kind.TRUSTEE_AWAY, f"Trustee {index} did not answer when last asked.", {"trustee": str(index)})


def suspects(count: int) -> Condition:
    """How many; who they are is for those who may see the page."""
    return Condition(Kind.SUSPECTS, f"{count} suspected; see docs/defences.md.")


def drift(alarms: int) -> Condition:
    """How many alarms the newest week raised."""
    return Condition(Kind.DRIFT, f"{alarms} alarms in the newest week; `pharoah-provider learn` shows them.")


def held_back() -> Condition:
    """The newest model predicts the newest week worse than the bundle in force."""
    return Condition(Kind.HELD_BACK, "`pharoah-provider learn` shows why; `publish --accept` overrules.")


def alert(condition: Condition, *, since_s: float, until_s: float) -> Alert:
    """One alert as the API takes it; times in seconds since 1970. It is over at `until_s` unless repeated before.

    >>> told = alert(trustee_away(2), since_s=0.0, until_s=900.0)
    >>> told["labels"]["alertname"], told["labels"]["trustee"], told["startsAt"], told["endsAt"]
    ('PharoahTrusteeAway', '2', '1970-01-01T00:00:00.000Z', '1970-01-01T00:15:00.000Z')
    """
    severity, summary = _SEVERITY_AND_SUMMARY[condition.kind]
    return {
        "labels": {**dict(condition.key), "severity": severity, "job": "pharoah-provider"},
        "annotations": {"summary": summary, "description": condition.text},
        "startsAt": _rfc3339(since_s),
        "endsAt": _rfc3339(until_s),
    }


def _rfc3339(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class _Spell:
    """How long a condition stood; `until_s` is None while it does."""

    condition: Condition
    since_s: float
    until_s: float | None = None

    def alert(self, now_s: float) -> Alert:
        until_s = now_s + STANDS_S if self.until_s is None else self.until_s
        return alert(self.condition, since_s=self.since_s, until_s=until_s)


class Board:
    """Which conditions stand and since when, and which stood lately."""

    def __init__(self) -> None:
        self._spells: dict[tuple[tuple[str, str], ...], _Spell] = {}

    def alerts(self, standing: Iterable[Condition], now_s: float) -> list[Alert]:
        """Alerts for all that stand now, and for what has stood until a moment ago.

        An end is repeated for as long as an alert would have stood: a receiver whose clock is behind takes it for the
        future the first time, and keeps to the later end that it was told before.
        """
        stands = {one.key: one for one in standing}
        kept = {key: _at(spell, stands, now_s) for key, spell in self._spells.items()}
        begun = {
            key: _Spell(one, now_s) for key, one in stands.items() if key not in kept or kept[key].until_s is not None
        }
        self._spells = {
            key: spell
            for key, spell in {**kept, **begun}.items()
            if spell.until_s is None or now_s - spell.until_s <= STANDS_S
        }
        return [spell.alert(now_s) for spell in self._spells.values()]


def _at(spell: _Spell, stands: Mapping[tuple[tuple[str, str], ...], Condition], now_s: float) -> _Spell:
    """A spell that goes on says what is so now; one that does not ends."""
    if spell.until_s is not None:
        return spell
    now = stands.get(spell.condition.key)
    return replace(spell, until_s=now_s) if now is None else replace(spell, condition=now)


def target(url: str) -> str:
    """Where alerts are posted: the address itself, or Alertmanager's path below a bare host. BadWebhook for others."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadWebhook("the address for alerts is no http or https address of a host")
    return urlunsplit(parts if parts.path not in ("", "/") else parts._replace(path=PATH))


def send(client: httpx.Client, url: str, alerts: Sequence[Alert]) -> None:
    """Posts alerts once; AlertsNotTaken says whether to try again, and names no address, which may be a secret."""
    try:
        answer = client.post(url, json=list(alerts))
    except httpx.HTTPError as error:
        raise AlertsNotTaken(f"the receiver of alerts: {type(error).__name__}", for_good=False) from error
    if not GOOD <= answer.status_code < ERRORS_BEGIN:
        again = answer.status_code >= SERVER_ERRORS_BEGIN or answer.status_code in TRY_AGAIN
        raise AlertsNotTaken(f"the receiver of alerts answered {answer.status_code}", for_good=not again)


class Webhook:
    """Sends alerts from a thread of its own, within `with`. `wait` may be replaced by a test that does not wait."""

    def __init__(self, url: str, wait: Callable[[threading.Event, float], object] = threading.Event.wait) -> None:
        self._url = target(url)
        self._wait = wait
        self._pending: dict[str, Alert] = {}
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="webhook")

    def __enter__(self) -> "Webhook":
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        """Gives up what is not sent yet."""
        self._ended.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(TIMEOUT_S)

    def put(self, alerts: Sequence[Alert]) -> None:
        """Has alerts sent as soon as may be; returns at once."""
        with self._changed:
            self._pending |= {str(sorted(one["labels"].items())): one for one in alerts}
            self._changed.notify()

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        with httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client:
            while (batch := self._next()) is not None:
                try:
                    send(client, self._url, list(batch.values()))
                    wait_s = FIRST_WAIT_S
                except AlertsNotTaken as error:
                    self._note(error, len(batch))
                    if not error.for_good:
                        self._put_back(batch)
                        self._wait(self._ended, wait_s)
                        wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _next(self) -> dict[str, Alert] | None:
        """What is to be sent, once there is something; None in the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._ended.is_set())
            batch, self._pending = self._pending, {}
        return None if self._ended.is_set() else batch

    def _put_back(self, batch: Mapping[str, Alert]) -> None:
        with self._changed:
            self._pending = {**batch, **self._pending}

    def _note(self, error: AlertsNotTaken, count: int) -> None:
        outcome = "dropped" if error.for_good else "kept"
        said = {"event": "webhook", "outcome": outcome, "error": type(error).__name__, "hint": error.hint}
        logger.warning("%d alerts are %s: %s", count, outcome, error.what, extra=said)
