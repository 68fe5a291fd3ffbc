"""Samples from a Prometheus (or Thanos, Mimir, VictoriaMetrics) by its HTTP API, as they were scraped.

Asked are range selectors (`/api/v1/query` of `{…}[3600000ms]`), one bounded window and metric after the other, not
`/api/v1/query_range`: that one evaluates at steps, and would repeat the last value of a series for five minutes after
it vanished. An answer that is too large is asked for again in halves, down to a second.

Calls are retried where that can help (429, 5xx, no answer), redirects are refused, proxies of the environment are not
used, and a bearer token goes over TLS or to this machine only. Its file is read for each call, so that it may be
replaced.
"""

import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
import numpy as np
from numpy.typing import NDArray

from crypto.errors import DecodeError, PeerFault, Refusal, Unreachable
from federation.base.visible import visible
from provider_server.fleet.telemetry.catalogue import NAME, Metric
from provider_server.fleet.telemetry.quality import Reason
from provider_server.fleet.telemetry.samples import HOUR_S, UNKNOWN, Chunk, SeriesBook, Window

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
TOO_MUCH = frozenset({HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})
LEAST_WINDOW_MS = 1000
LONGEST_TEXT = 200
ADDRESS = "use the base address of Prometheus"


class TokenInTheClear(Refusal):
    """A bearer token would go over a network without TLS."""

    default_hint = "use an https:// address, or Prometheus on this machine"


class TooLarge(PeerFault):
    """An answer is larger than allowed, even for a second of one metric."""

    default_hint = "raise most_bytes, or select fewer nodes with matchers"


@dataclass(frozen=True)
class PrometheusSettings:
    """Where to ask and how. `matchers` go into every selector: `job="dcgm", rack="r7"`.

    `only` are the metrics to ask for, of those that a book knows; None: all.
    """

    url: str
    matchers: str = ""
    window_s: int = HOUR_S
    bearer_token_file: Path | None = None
    root_certificate: Path | None = None
    timeout_s: float = 60.0
    attempts: int = 4
    wait_s: float = 1.0
    most_bytes: int = 256 << 20
    only: frozenset[str] | None = None


class _Result(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    resultType: str  # noqa: N815  # Prometheus' own name
    result: list[_Result]


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""
    warnings: list[str] = []


class _Values(msgspec.Struct):
    status: Literal["success"]
    data: list[str]


class PrometheusSource:
    """The samples of every metric of the book, hour by hour."""

    def __init__(self, settings: PrometheusSettings, sleep: Callable[[float], None] = time.sleep) -> None:
        url = httpx.URL(settings.url)
        if settings.bearer_token_file is not None and url.scheme != "https" and url.host not in LOOPBACK:
            raise TokenInTheClear(f"the bearer token would be sent without TLS to {settings.url}")
        self._settings = settings
        self._sleep = sleep

    def _wanted(self, metric: Metric) -> bool:
        return self._settings.only is None or metric.name in self._settings.only

    def chunks(self, book: SeriesBook, window: Window) -> Iterator[Chunk]:
        """One chunk per metric and window of time; Unreachable, PeerFault or TooLarge when it cannot go on."""
        with closing(self._client()) as client:
            for start_ms, end_ms in _windows(window, self._settings.window_s):
                for metric in filter(self._wanted, book.metrics.values()):
                    for matchers, names in metric.selectors().items():
                        selector = self._selector(names, matchers)
                        for series in self._asked(client, book, metric, selector, start_ms, end_ms):
                            yield _chunk(book, series, start_ms, end_ms)

    def names(self, start_s: float, end_s: float) -> frozenset[str]:
        """The names of all metrics that have samples in a window; errors as of `chunks`."""
        asked = {"start": f"{start_s:.0f}", "end": f"{end_s:.0f}"}
        if self._settings.matchers:
            asked["match[]"] = self._selector([".+"], "")
        with closing(self._client()) as client:
            body = self._answered(client, "GET", f"api/v1/label/{NAME}/values", asked)
            if body is None:
                raise TooLarge(f"the names of all metrics of {client.base_url} are too many")
            try:
                return frozenset(msgspec.json.decode(body, type=_Values).data)
            except msgspec.DecodeError as error:
                raise DecodeError(f"{client.base_url} is not Prometheus: {error}", hint=ADDRESS) from error

    def _selector(self, names: Sequence[str], matchers: str) -> str:
        own = self._settings.matchers
        return f'{{{NAME}=~"{"|".join(names)}"{"".join(f", {one}" for one in (matchers, own) if one)}}}'

    def _client(self) -> httpx.Client:
        root = self._settings.root_certificate
        verify = ssl.create_default_context(cafile=root) if root else ssl.create_default_context()
        return httpx.Client(
            base_url=self._settings.url.rstrip("/") + "/",
            verify=verify,
            timeout=self._settings.timeout_s,
            follow_redirects=False,
            trust_env=False,
        )

    def _asked(
        self, client: httpx.Client, book: SeriesBook, metric: Metric, selector: str, start_ms: int, end_ms: int
    ) -> Iterator[list[_Result]]:
        """What was scraped in [start, end), in as many answers as it takes."""
        asked = {"query": f"{selector}[{end_ms - start_ms}ms]", "time": f"{(end_ms - 1) / 1000:.3f}"}
        body = self._answered(client, "POST", "api/v1/query", asked)
        if body is None and end_ms - start_ms <= LEAST_WINDOW_MS:
            raise TooLarge(f"the answer of {client.base_url} for one second of {metric.name} is too large")
        if body is None:
            middle = (start_ms + end_ms) // 2
            yield from self._asked(client, book, metric, selector, start_ms, middle)
            yield from self._asked(client, book, metric, selector, middle, end_ms)
            return
        answer = _decoded(body, str(client.base_url))
        book.tally.count(Reason.PARTIAL_ANSWER, metric.name, len(answer.warnings))
        if answer.data is not None and answer.data.result:
            yield answer.data.result

    def _answered(self, client: httpx.Client, method: str, path: str, form: Mapping[str, str]) -> bytes | None:
        """The body of the answer; None for one that is too large."""
        fault = ""
        for attempt in range(self._settings.attempts):
            if attempt:
                self._sleep(self._settings.wait_s * 2 ** (attempt - 1))
            try:
                sent: dict[str, Any] = {"params" if method == "GET" else "data": dict(form)}
                with client.stream(method, path, headers=self._headers(), **sent) as response:
                    if response.status_code in TOO_MUCH:
                        return None
                    if not _may_change(response.status_code):
                        return self._body(response)
                    fault = f"HTTP status {response.status_code}"
            except httpx.TransportError as error:
                fault = f"{type(error).__name__}: {error}"
        raise Unreachable(f"{client.base_url} did not answer in {self._settings.attempts} attempts: {fault}")

    def _body(self, response: httpx.Response) -> bytes | None:
        if response.is_redirect:
            raise PeerFault(
                f"{response.request.url} redirects elsewhere", hint="use the final address; redirects are not followed"
            )
        parts, size = [], 0
        for part in response.iter_bytes():
            size += len(part)
            if size > self._settings.most_bytes:
                return None
            parts.append(part)
        body = b"".join(parts)
        if response.status_code != HTTPStatus.OK:
            text = visible(body.decode("utf-8", "replace")[:LONGEST_TEXT])
            raise PeerFault(
                f"{response.request.url} answers with status {response.status_code}: {text}",
                hint="check address, token and matchers",
            )
        return body

    def _headers(self) -> dict[str, str]:
        file = self._settings.bearer_token_file
        return {"Authorization": f"Bearer {file.read_text(encoding='ascii').strip()}"} if file else {}


def _may_change(status: int) -> bool:
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _windows(window: Window, window_s: int) -> Iterator[tuple[int, int]]:
    """Milliseconds, in order; none crosses an hour."""
    for hour in range(window.start_hour, window.end_hour):
        for start_s in range(HOUR_S * hour, HOUR_S * (hour + 1), window_s):
            yield 1000 * start_s, 1000 * min(start_s + window_s, HOUR_S * (hour + 1))


def _decoded(body: bytes, url: str) -> _Answer:
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError as error:
        raise DecodeError(f"{url} is not Prometheus: {error}", hint=ADDRESS) from error
    if answer.status != "success" or answer.data is None or answer.data.resultType != "matrix":
        cause = visible(answer.error[:LONGEST_TEXT])
        raise DecodeError(f"{url} returned no samples: {cause}", hint="try the query by hand")
    return answer


def _chunk(book: SeriesBook, results: list[_Result], start_ms: int, end_ms: int) -> Chunk:
    """Columns of an answer, without what the selector gives before its window (before Prometheus 3, its very edge)."""
    numbers = [book.number(result.metric, len(result.values)) for result in results]
    known = [(number, result) for number, result in zip(numbers, results, strict=True) if number != UNKNOWN]
    lengths = [len(result.values) for _number, result in known]
    series = np.repeat(np.array([number for number, _result in known], np.uint32), lengths)
    time_s = np.array([at for _number, result in known for at, _text in result.values], np.float64)
    texts = [text for _number, result in known for _at, text in result.values]
    inside = (time_s >= start_ms / 1000) & (time_s < end_ms / 1000)
    return Chunk(series[inside], time_s[inside], _numbers(texts, series, book)[inside], start_ms / 1000)


def _numbers(texts: list[str], series: NDArray[np.uint32], book: SeriesBook) -> NDArray[np.float64]:
    try:
        return np.array([float(text) for text in texts], np.float64)
    except ValueError as error:
        metric = book.slots[book.series[int(series[0])].slot].metric.name
        raise DecodeError(f"a sample of {metric} is not a number", hint="the server may not be Prometheus") from error
