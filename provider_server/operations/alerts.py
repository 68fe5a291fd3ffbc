"""Sends alerts about the provider to a webhook in the format of Alertmanager's v2 API (POST /api/v2/alerts).

    active conditions ─ Board ─▶ alerts ─ Webhook.put ─▶ a thread that sends and retries

- `Board` records since when each condition is active, repeats its alert, and repeats its end. An alert that is not
  repeated ends after `STANDS_S`, so alerts of a provider that died do not stay.
- `Webhook` never blocks its caller. Failed sends are retried at growing intervals; a newer state of an alert replaces
  an older one. Alerts that the receiver rejects for good are logged and dropped.
- No alert names a tenant, a token or a lease, since more people read alerts than releases.

Not promised: delivery. Prometheus watches the provider from outside, see ops/prometheus/alerts.yml.
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
from federation.runtime.visible import counted_as

logger = logging.getLogger(__name__)

PATH = "/api/v2/alerts"
STANDS_S = 900.0  # after its last repetition
TIMEOUT_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0
GOOD, TRY_AGAIN, ERRORS_BEGIN, SERVER_ERRORS_BEGIN = 200, (408, 429), 300, 500
Alert = dict[str, Any]


class BadWebhook(PharoahError):
    """The address for alerts is not a usable URL."""

    default_hint = "set [alerts] webhook_url to a URL such as http://alertmanager.example:9093"


class AlertsNotTaken(PharoahError):
    """The receiver did not accept alerts."""

    default_hint = "check that the receiver at [alerts] webhook_url runs, and see its log"

    def __init__(self, what: str, *, for_good: bool) -> None:
        super().__init__(what)
        self.for_good = for_good


class Kind(StrEnum):
    """The kinds of alerts: the label `alertname`."""

    ROUND_WAITING = "PharoahRoundWaiting"
    TRUSTEE_AWAY = "PharoahTrusteeAway"
    SUSPECTS = "PharoahSuspects"
    DRIFT = "PharoahDrift"
    HELD_BACK = "PharoahBundleHeldBack"


_SEVERITY_AND_SUMMARY: Mapping[Kind, tuple[str, str]] = MappingProxyType(
    {
        Kind.ROUND_WAITING: ("warning", "An open round waits for a tenant or a trustee"),
        Kind.TRUSTEE_AWAY: ("warning", "A trustee does not answer"),
        Kind.SUSPECTS: ("critical", "Tenants may have sent false counts"),
        Kind.DRIFT: ("warning", "Failures differ from what bundles predicted"),
        Kind.HELD_BACK: ("warning", "A bundle was held back"),
    }
)


@dataclass(frozen=True)
class Condition:
    """A problem that exists now, identified by kind and labels; the text may change."""

    kind: Kind
    text: str
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """Its identity."""
        return (("alertname", self.kind.value), *sorted(self.labels.items()))


def round_waiting(stage: str, why: str) -> Condition:
    """`why` is the class of the error that stopped it."""
    return Condition(Kind.ROUND_WAITING, f"It stopped at stage {stage} with {why} and is retried automatically.")


def trustee_away(index: int) -> Condition:
    """By its number in the directory."""
    return Condition(Kind.TRUSTEE_AWAY, f"Trustee {index} did not answer its last request.", {"trustee": str(index)})


def suspects(count: int) -> Condition:
    """Only their number; the page shows who they are."""
    return Condition(Kind.SUSPECTS, f"{counted_as(count, 'tenant')} suspected; see docs/threat-model.md.")


def drift(alarms: int) -> Condition:
    """The number of alarms that the newest window raised."""
    return Condition(Kind.DRIFT, f"{counted_as(alarms, 'alarm')} in the newest window; see `pharoah-provider learn`.")


def held_back() -> Condition:
    """The newest model predicts the newest window worse than the bundle in force."""
    return Condition(
        Kind.HELD_BACK, "`pharoah-provider learn` shows why; `pharoah-provider publish --accept` publishes it."
    )


def alert(condition: Condition, *, since_s: float, until_s: float) -> Alert:
    """One alert as the API takes it; times in seconds since 1970. It is over at `until_s` unless repeated before.

    >>> away = alert(trustee_away(2), since_s=0.0, until_s=900.0)
    >>> away["labels"]["alertname"], away["labels"]["trustee"], away["startsAt"], away["endsAt"]
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
    """When a condition was active; `until_s` is None while it still is."""

    condition: Condition
    since_s: float
    until_s: float | None = None

    def alert(self, now_s: float) -> Alert:
        until_s = now_s + STANDS_S if self.until_s is None else self.until_s
        return alert(self.condition, since_s=self.since_s, until_s=until_s)


class Board:
    """The conditions that are active, since when, and those that ended lately."""

    def __init__(self) -> None:
        self._spells: dict[tuple[tuple[str, str], ...], _Spell] = {}

    def alerts(self, standing: Iterable[Condition], now_s: float) -> list[Alert]:
        """Alerts for all conditions that are active now, and for those that ended within `STANDS_S`.

        An end is repeated for `STANDS_S`: a receiver whose clock is behind sees the first notice as in the future, and
        keeps the later end that it was sent before.
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
    """The spell with the condition's current text, or with its end."""
    if spell.until_s is not None:
        return spell
    now = stands.get(spell.condition.key)
    return replace(spell, until_s=now_s) if now is None else replace(spell, condition=now)


def target(url: str) -> str:
    """Where alerts are posted: the address itself, or Alertmanager's path below a bare host. BadWebhook for others."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadWebhook("the address for alerts is not an http or https URL")
    return urlunsplit(parts if parts.path not in ("", "/") else parts._replace(path=PATH))


def send(client: httpx.Client, url: str, alerts: Sequence[Alert]) -> None:
    """Posts alerts once; AlertsNotTaken says whether to try again, and names no address, which may be a secret."""
    try:
        answer = client.post(url, json=list(alerts))
    except httpx.HTTPError as error:
        raise AlertsNotTaken(
            f"the receiver of alerts did not answer: {type(error).__name__}", for_good=False
        ) from error
    if not GOOD <= answer.status_code < ERRORS_BEGIN:
        again = answer.status_code >= SERVER_ERRORS_BEGIN or answer.status_code in TRY_AGAIN
        raise AlertsNotTaken(f"the receiver of alerts answered {answer.status_code}", for_good=not again)


class Webhook:
    """Sends alerts from its own thread, within `with`. A test passes a `wait` that returns at once."""

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
        """Drops what is not sent yet."""
        self._ended.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(TIMEOUT_S)

    def put(self, alerts: Sequence[Alert]) -> None:
        """Queues alerts and returns at once."""
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
        """The next batch, once there is one; None after `__exit__`."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._ended.is_set())
            batch, self._pending = self._pending, {}
        return None if self._ended.is_set() else batch

    def _put_back(self, batch: Mapping[str, Alert]) -> None:
        with self._changed:
            self._pending = {**batch, **self._pending}

    def _note(self, error: AlertsNotTaken, count: int) -> None:
        outcome = "dropped" if error.for_good else "kept"
        fields = {"event": "webhook", "outcome": outcome, "error": type(error).__name__, "hint": error.hint}
        logger.warning("alerts not sent (%d, %s): %s", count, outcome, error.what, extra=fields)
