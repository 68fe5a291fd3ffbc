"""The Kubernetes API over HTTPS: lists, watches and changes, as its documentation describes them ("API concepts").

- A list comes in pages; a watch goes on from its resource version, and bookmarks move that on.
- 410 Gone, of a list's next page, as a status of a watch or as its event, means that it is too late: it is listed anew.
- A kind that the cluster does not have (404) is an empty list.
- The token is read for each request, since a cluster replaces it; it is in no error.
- A change of an object is a JSON merge patch (RFC 7386).
"""

import logging
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import httpx
import msgspec

from crypto.errors import DecodeError, PharoahError, Unreachable
from federation.base.foreign import MALFORMED
from pharoah_kubernetes.objects import PATHS, Kind, Watched, read_as

logger = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE = 500
WATCH_S = 300
TIMEOUT = httpx.Timeout(30.0, read=WATCH_S + 30.0)
GONE = 410
MERGE = "application/merge-patch+json"
Part = TypeVar("Part", bound=msgspec.Struct)


class ApiRefused(PharoahError):
    """The Kubernetes API refused a request."""

    default_hint = "check the role of the service account: what it may do with which kinds is in docs/clusters.md"


class VersionGone(Exception):
    """The API no longer knows the version from which a watch was to go on."""


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: tuple[msgspec.Raw, ...] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _Versioned(msgspec.Struct, frozen=True, rename="camel"):
    class Metadata(msgspec.Struct, frozen=True, rename="camel"):
        resource_version: str = ""

    metadata: Metadata = Metadata()


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class Listed(NamedTuple):
    """All objects of a kind, and the version that a watch goes on from; None where the cluster has no such kind."""

    objects: list[Watched]
    version: str | None


class Seen(NamedTuple):
    """An object that was added or changed, or is gone; None for a bookmark. `version` is where a watch goes on."""

    version: str
    found: Watched | None = None
    is_gone: bool = False


@dataclass(frozen=True)
class Server:
    """Where the API is, and how to sign in: files of a service account."""

    url: str
    token_file: Path = ACCOUNT / "token"
    ca_file: Path = ACCOUNT / "ca.crt"

    @classmethod
    def inside(cls, environ: Mapping[str, str]) -> "Server":
        """The cluster in whose pod this runs; Unreachable outside of one."""
        host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise Unreachable("this is no pod of a cluster", hint="set [kubernetes] server, token_file and ca_file")
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}")


class Api:
    """Lists and watches of one cluster. Threads may share it."""

    def __init__(self, server: Server) -> None:
        if not server.url.startswith("https://"):
            raise ApiRefused("the API is asked over https only", hint="[kubernetes] server begins with https://")
        self._server = server
        self._client = httpx.Client(base_url=server.url, verify=_trusted(server.ca_file), timeout=TIMEOUT)

    def close(self) -> None:
        """Ends all connections, and the watches on them."""
        self._client.close()

    def objects(self, path: str, kind: type[Kind], labels: str = "") -> tuple[list[Kind], str | None]:
        """The objects at a path, with these labels (a selector) if there are any, and the version; as `list` says."""
        found: list[Kind] = []
        words = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
        going_on = ""
        while True:
            with self._asked("GET", path, words | ({"continue": going_on} if going_on else {})) as answer:
                if answer.status_code == httpx.codes.NOT_FOUND:
                    return [], None
                _check(answer)
                page = _read(_Page, answer.read())
            found += [one for raw in page.items or () if (one := _readable(kind, raw)) is not None]
            going_on = page.metadata.continue_
            if not going_on:
                return found, page.metadata.resource_version

    def list(self, kind: type[Watched]) -> Listed:
        """All objects of a kind; ApiRefused, Unreachable; VersionGone where it took too long.

        One that cannot be read is left out, with a warning.
        """
        found, version = self.objects(PATHS[kind], kind)
        return Listed(list(found), version)

    def watch(self, kind: type[Watched], version: str) -> Iterator[Seen]:
        """What happens after a version, until the API ends the watch; VersionGone where it must be listed anew."""
        words = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        with self._asked("GET", PATHS[kind], words | {"timeoutSeconds": str(WATCH_S)}) as answer:
            _check(answer)
            for line in answer.iter_lines():
                if line:
                    yield from _seen(kind, _read(_Event, line.encode()))

    def create(self, path: str, made: Mapping[str, object]) -> None:
        """Makes an object; ApiRefused, Unreachable. One of that name may be there already."""
        with self._asked("POST", path, {}, made) as answer:
            if answer.status_code != httpx.codes.CONFLICT:
                _check(answer)

    def change(self, path: str, change: Mapping[str, object]) -> None:
        """Merges a change into an object; ApiRefused, Unreachable. The object may be gone."""
        with self._asked("PATCH", path, {}, change) as answer:
            if answer.status_code != httpx.codes.NOT_FOUND:
                _check(answer)

    def delete(self, path: str) -> None:
        """Removes an object; ApiRefused, Unreachable. It may be gone."""
        with self._asked("DELETE", path, {}) as answer:
            if answer.status_code != httpx.codes.NOT_FOUND:
                _check(answer)

    @contextmanager
    def _asked(
        self, method: str, path: str, words: Mapping[str, str], body: Mapping[str, object] | None = None
    ) -> Iterator[httpx.Response]:
        try:
            token = self._server.token_file.read_text(encoding="ascii").strip()
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            if body is not None:
                headers["Content-Type"] = MERGE if method == "PATCH" else "application/json"
            content = None if body is None else msgspec.json.encode(body)
            with self._client.stream(method, path, params=dict(words), headers=headers, content=content) as answer:
                yield answer
        except httpx.HTTPError as error:
            raise Unreachable(f"the Kubernetes API does not answer: {type(error).__name__}: {error}") from error
        except RuntimeError as error:
            if not self._client.is_closed:
                raise
            # Another thread closed the client between two requests of this one: httpx has no error of its own for that.
            raise Unreachable("the connections to the Kubernetes API are closed") from error
        except (OSError, UnicodeDecodeError) as error:
            raise Unreachable(f"no token for the Kubernetes API: {self._server.token_file}") from error


def _seen(kind: type[Watched], event: _Event) -> Iterator[Seen]:
    if event.type == "ERROR":
        status = _read(_Status, event.object)
        if status.code == GONE:
            raise VersionGone
        raise ApiRefused(f"the watch ended with {status.code}: {status.message}")
    version = _read(_Versioned, event.object).metadata.resource_version
    if event.type == "BOOKMARK":
        yield Seen(version)
    else:
        yield Seen(version, _readable(kind, event.object), event.type == "DELETED")


def _check(answer: httpx.Response) -> None:
    if answer.status_code == GONE:
        raise VersionGone
    if not answer.is_success:
        raise ApiRefused(f"the Kubernetes API answers {answer.status_code} to {answer.request.url.path}")


def _readable(kind: type[Kind], raw: msgspec.Raw) -> Kind | None:
    try:
        return read_as(kind, raw)
    except DecodeError as error:
        logger.warning("left out: %s", error.what, extra={"event": "kubernetes", "error": "DecodeError", "hint": ""})
        return None


def _read(kind: type[Part], told: msgspec.Raw | bytes) -> Part:
    try:
        return msgspec.json.decode(told, type=kind)
    except MALFORMED as error:
        raise DecodeError(f"no answer of the Kubernetes API: {error}") from error


def _trusted(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise Unreachable(f"no certificate of the Kubernetes API: {ca_file}") from error
