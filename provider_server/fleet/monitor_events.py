"""Outages as monitoring tells them: alerts of Alertmanager, and what Prometheus has of whether targets were up.

- The body of a webhook of Alertmanager or Grafana, `amtool alert -o json`, one or one a line: an alert of a node from
  `startsAt` to `endsAt`. Its name is the kind.
- An answer of Prometheus' `query_range` for a metric that says what was up (`up`, `probe_success`, `…_ready`): from the
  first sample of 0 to the next of another value. The metric is the kind.

An alert that fires has not ended, whatever its `endsAt` is (the year 1, or when it expires). The node is a label that
names one, without its port. Told again, an alert is one outage.

>>> rows_of([{"labels": {"node": "n1"}, "startsAt": "1970-01-01T05:00:00Z", "endsAt": "0001-01-01T00:00:00Z"}], [])
[('n1', 5.0, None, 'unknown')]
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from crypto.errors import DecodeError
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.foreign import LATEST_S

Row = tuple[str, float, float | None, str]
UNKNOWN = "unknown"
_NODE = (
    "node",
    "nodename",
    "node_name",
    "kubernetes_node",
    "Hostname",
    "hostname",
    "host",
    "exported_instance",
    "instance",
)
_PORT = re.compile(r":\d{1,5}$")
_IS_UP = re.compile(r"(?:^|_)(?:up|ready|healthy?|alive|success|online|reachable)$|^kube_node_status_condition$")


class _Alert(msgspec.Struct, frozen=True, rename={"starts_at": "startsAt", "ends_at": "endsAt"}):
    labels: dict[str, str]
    starts_at: datetime
    ends_at: datetime | None = None
    status: str | dict[str, object] = ""


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


def rows_of(documents: Sequence[object], left_out: list[str]) -> list[Row] | None:
    """The outages of JSON documents, in order; None for those of another kind, DecodeError where they tell none."""
    alerts = [one for document in documents for one in _alerts(document)]
    if alerts:
        return _of_alerts(alerts, left_out)
    data = documents[0].get("data") if len(documents) == 1 and isinstance(documents[0], dict) else None
    if isinstance(data, dict) and "resultType" in data:
        return sorted(_of_answer(data, left_out), key=lambda row: (row[1], row[0]))
    return None


def _alerts(document: object) -> Iterator[object]:
    if isinstance(document, list):
        yield from (one for inner in document for one in _alerts(inner))
    elif isinstance(document, dict) and isinstance(document.get("alerts"), list):
        yield from document["alerts"]
    elif isinstance(document, dict) and {"startsAt", "labels"} <= document.keys():
        yield document


def _of_alerts(alerts: Sequence[object], left_out: list[str]) -> list[Row]:
    found: dict[tuple[str, float, str, str], Row] = {}
    for place, raw in enumerate(alerts, start=1):
        try:
            alert = msgspec.convert(raw, type=_Alert, strict=False)
        except msgspec.ValidationError as error:
            left_out.append(f"alert {place}: {error}")
            continue
        node, start_h = _node(alert.labels), _hour(alert.starts_at)
        if not node or start_h is None:
            left_out.append(f"alert {place}: no label that names a node" if not node else f"alert {place}: no start")
            continue
        state = alert.status.get("state") if isinstance(alert.status, dict) else alert.status
        end_h = None if state in ("firing", "active") or alert.ends_at is None else _hour(alert.ends_at)
        kind = alert.labels.get("alertname", UNKNOWN)
        key = node, start_h, kind, repr(sorted(alert.labels.items()))
        if key not in found or found[key][2] is None:
            found[key] = node, start_h, end_h, kind
    if not found:
        raise DecodeError(f"alerts, but none of a node: {left_out[0]}")
    return sorted(found.values(), key=lambda row: (row[1], row[0]))


def _of_answer(data: Mapping[str, object], left_out: list[str]) -> Iterator[Row]:
    if data["resultType"] != "matrix":
        raise DecodeError(f"an answer of Prometheus of one moment ({data['resultType']}); ask query_range")
    for series in msgspec.convert(data.get("result"), type=list[_Series], strict=False):
        name, node = series.metric.get("__name__", ""), _node(series.metric)
        if not _IS_UP.search(name):
            raise DecodeError(f"an answer of Prometheus of {name or 'an expression'}, which does not say what was up")
        if not node:
            left_out.append("a series without a label that names a node")
            continue
        since: float | None = None
        for at_s, value in series.values:
            is_up = value not in ("0", "0.0")
            if not is_up and since is None:
                since = at_s / SECONDS_PER_HOUR
            elif is_up and since is not None:
                yield node, since, at_s / SECONDS_PER_HOUR, name
                since = None
        if since is not None:
            yield node, since, None, name


def _node(labels: Mapping[str, str]) -> str:
    return _PORT.sub("", next((labels[name] for name in _NODE if labels.get(name)), ""))


def _hour(time: datetime) -> float | None:
    """Hours since 1970; None for a time that is none, as the year 1."""
    if time.tzinfo is None or time.year < 1970:
        return None
    seconds = time.timestamp()
    return seconds / SECONDS_PER_HOUR if seconds < LATEST_S else None
