"""A fake API server of a cluster, over HTTPS: lists in pages, watches with bookmarks, 410 Gone, changes, and a token.

It takes no object that is not of its published kind (`kubernetes_schema`), and no request that the published API does
not have. `expire` forgets what happened so far: who goes on from before is told 410 Gone. `late` lists are told so
after their first page. Before 1.35 no device taint may have the effect None: `refuses_effect_none`.
"""

import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from crypto.signing import SigningKey
from federation.transport.certificates import issue
from pharoah_kubernetes.objects import PATHS
from tests.support.kubernetes_schema import violations

PARAMETERS = {"limit", "continue", "watch", "resourceVersion", "allowWatchBookmarks", "timeoutSeconds", "labelSelector"}
TAINT_RULES = {f"/apis/resource.k8s.io/{version}/devicetaintrules" for version in ("v1", "v1beta2", "v1alpha3")}
NAMES = {
    **{path: kind.__name__ for kind, path in PATHS.items()},
    "/api/v1/nodes": "Node",
    **dict.fromkeys(TAINT_RULES, "DeviceTaintRule"),
}
MERGE = "application/merge-patch+json"


@dataclass
class FakeApi:
    """The objects of a cluster. `token` is what callers must show; `absent` are paths of kinds that it lacks."""

    token: str = "first"
    absent: frozenset[str] = frozenset()
    page: int = 2
    version: int = 100
    oldest: int = 0
    late: int = 0
    refuses_effect_none: bool = False
    objects: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {name: {} for name in NAMES.values()})
    writes: list[tuple[str, str]] = field(default_factory=list)
    log: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    stopping: bool = False
    logs: dict[str, bytes] = field(default_factory=dict)

    def put(self, told: dict[str, Any]) -> None:
        """Adds or changes an object."""
        assert violations(told) == []
        with self.changed:
            self.version += 1
            told = {**told, "metadata": {**told["metadata"], "resourceVersion": str(self.version)}}
            known = self.objects[told["kind"]]
            kind = "MODIFIED" if told["metadata"]["uid"] in known else "ADDED"
            known[told["metadata"]["uid"]] = told
            self.log.append((self.version, told["kind"], kind, told))
            self.changed.notify_all()

    def remove(self, kind: str, uid: str) -> None:
        """Removes an object."""
        with self.changed:
            self.version += 1
            gone = self.objects[kind].pop(uid)
            gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
            self.log.append((self.version, kind, "DELETED", gone))
            self.changed.notify_all()

    def named(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object of that name."""
        return next((one for one in self.objects[kind].values() if one["metadata"]["name"] == name), None)

    def write(self, method: str, path: str, kind: str, told: dict[str, Any]) -> int:
        """Makes, changes or removes an object as a caller asks; the status of the answer."""
        name = told["metadata"]["name"] if method == "POST" else path.rpartition("/")[2]
        known = self.named(kind, name)
        if (known is None) != (method == "POST"):
            return 409 if known else 404
        self.writes.append((method, name))
        if known and method == "DELETE":
            self.remove(kind, known["metadata"]["uid"])
            return 200
        read_at = told.get("metadata", {}).get("resourceVersion")
        if known and read_at not in (None, known["metadata"]["resourceVersion"]):
            return 409
        made = merged(known or {"metadata": {"uid": f"uid-{kind}-{name}"}}, told)
        effect = made["spec"].get("taint", {}).get("effect")
        if violations(made) or (effect == "None" and self.refuses_effect_none):
            return 422
        self.put(made)
        return 200 if known else 201

    def expire(self) -> None:
        """Forgets the log, as a server does after a while, and ends all watches."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.log.clear()
            self.changed.notify_all()

    def events(self, kind: str, after: int) -> Iterator[dict[str, Any]]:
        """What a watch tells: events in order, a bookmark after a pause, and an error at the end of a version."""
        while not self.stopping:
            with self.changed:
                if after < self.oldest:
                    yield {"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "code": 410}}
                    return
                new = [one for one in self.log if one[0] > after and one[1] == kind]
                if not new:
                    bookmark = {"kind": kind, "metadata": {"resourceVersion": str(self.version)}}
                    after = self.version
                    if not self.changed.wait(0.2):
                        yield {"type": "BOOKMARK", "object": bookmark}
                    continue
            for version, _kind, what, told in new:
                after = version
                yield {"type": what, "object": told}


def merged(target: Any, patch: Any) -> Any:
    """MergePatch of RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(target) if isinstance(target, dict) else {}
    for key, one in patch.items():
        if one is None:
            kept.pop(key, None)
        else:
            kept[key] = merged(kept.get(key), one)
    return kept


def of_all(path: str) -> str:
    """The path of a collection without its namespace: names are told apart by themselves here."""
    return re.sub(r"/namespaces/[^/]+", "", path)


def has_labels(told: dict[str, Any], selector: str) -> bool:
    """Whether an object has the labels of a selector of equalities."""
    wanted = dict(part.split("=") for part in selector.split(",") if part)
    return all(told["metadata"].get("labels", {}).get(key) == value for key, value in wanted.items())


def _refused(api: FakeApi, path: str, words: Mapping[str, str], shown: str | None) -> int:
    """The status of a request that is refused; 0 for one that is answered."""
    if shown != f"Bearer {api.token}":
        return 401
    if path not in NAMES or path in api.absent:
        return 404
    if "continue" in words and api.late:
        api.late -= 1
        return 410
    return 400 if words.keys() - PARAMETERS else 0


class _Handler(BaseHTTPRequestHandler):
    """Answers for the cluster of its class."""

    api: FakeApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the name that http.server looks for
        url = urlsplit(self.path)
        words = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.api.asked.append(self.path)
        path = of_all(url.path)
        if path.endswith("/log"):
            self._log(path.split("/")[-2])
            return
        refused = _refused(self.api, path, words, self.headers["authorization"])
        if refused:
            self._say(refused, {"kind": "Status", "code": refused})
        elif words.get("watch") == "true":
            self._watch(NAMES[path], int(words["resourceVersion"]))
        else:
            self._list(NAMES[path], words)

    def do_POST(self) -> None:
        self._write(of_all(urlsplit(self.path).path), "application/json")

    def do_PATCH(self) -> None:
        self._write(of_all(urlsplit(self.path).path).rpartition("/")[0], MERGE)

    def do_DELETE(self) -> None:
        self._write(of_all(urlsplit(self.path).path).rpartition("/")[0], None)

    def _write(self, collection: str, kind_of_body: str | None) -> None:
        """Makes, changes or removes an object of a collection."""
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        status = _refused(self.api, collection, {}, self.headers["authorization"])
        if not status and self.headers["content-type"] != kind_of_body:
            status = 415
        if not status:
            status = self.api.write(
                self.command, urlsplit(self.path).path, NAMES[collection], json.loads(body or b"{}")
            )
        self._say(status, {"kind": "Status", "code": status})

    def _log(self, pod: str) -> None:
        """What a pod printed; the container of one that never ran has no log."""
        if pod in self.api.logs:
            self._answer(200, "text/plain", self.api.logs[pod])
        else:
            self._say(404, {"kind": "Status", "code": 404})

    def _list(self, kind: str, words: dict[str, str]) -> None:
        first, size = int(words.get("continue", "0")), min(self.api.page, int(words["limit"]))
        with self.api.changed:
            chosen = words.get("labelSelector", "")
            items = [one for one in self.api.objects[kind].values() if has_labels(one, chosen)]
            rest = {"continue": str(first + size)} if first + size < len(items) else {}
            meta = {"resourceVersion": str(self.api.version), **rest}
        self._say(200, {"kind": f"{kind}List", "metadata": meta, "items": items[first : first + size]})

    def _watch(self, kind: str, after: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for event in self.api.events(kind, after):
                self.wfile.write(json.dumps(event).encode() + b"\n")
                self.wfile.flush()
        except OSError:
            pass  # the caller is gone
        self.close_connection = True

    def _say(self, status: int, answer: dict[str, Any]) -> None:
        self._answer(status, "application/json", json.dumps(answer).encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@dataclass(frozen=True)
class Served:
    """Where a fake API server is, and the files by which callers sign in."""

    url: str
    token_file: Path
    ca_file: Path


@contextmanager
def served(api: FakeApi, folder: Path) -> Iterator[Served]:
    """The address of the API server while it runs; the files are in the folder."""
    certificate = issue(SigningKey(bytes(32)), ["127.0.0.1"], datetime.now(UTC))
    (folder / "ca.crt").write_bytes(certificate.certificate_pem)
    (folder / "tls.key").write_bytes(certificate.key_pem)
    (folder / "token").write_text(api.token)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "ca.crt", folder / "tls.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    server.daemon_threads = True
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Served(f"https://127.0.0.1:{server.server_port}", folder / "token", folder / "ca.crt")
    finally:
        api.stopping = True
        with api.changed:
            api.changed.notify_all()
        server.shutdown()
        server.server_close()
        thread.join()
