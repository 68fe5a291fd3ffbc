"""Another account of the provider's machine: it finds every door of a program and says the same words at each.

`doors` reads from /proc where a process listens: TCP ports, and Unix sockets by path. `say` runs a child under the
account that is named, with nothing but Python's own library, and returns what each door answered to each request.

    answers = say(doors(os.getpid()), [("POST", "/v1/control/unregister-node", body)], NOBODY)
    assert not any(answer.was_obeyed for answer in answers)
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

Request = tuple[str, str, bytes]

NOBODY = 65534
HERE = "127.0.0.1"  # what listens everywhere listens here too
LISTENS = "0A"
TALK_S = 60.0

CHILD = """
import encodings.idna, http.client, json, os, socket, ssl, sys

asked = json.load(sys.stdin)
os.setgroups([])  # after the imports: the other account may not be able to read this interpreter
os.setgid(asked["account"])
os.setuid(asked["account"])

def connected(door):
    if door[0] == "unix":
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(5)
        line.connect(door[1])
        return line
    return socket.create_connection((door[1], door[2]), 5)

def wrapped(line):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(line)

def said(door, tls, host, method, path, body):
    line = connected(door)
    try:
        line = wrapped(line) if tls else line
        head = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/protobuf",
                f"Content-Length: {len(body)}", "Connection: close"]
        line.sendall("\\r\\n".join([*head, "", ""]).encode() + body)
        answer = http.client.HTTPResponse(line)
        answer.begin()
        return answer.status
    finally:
        line.close()

answers = []
for door in asked["doors"]:
    for tls in (False, True):
        for host in asked["hosts"]:
            for method, path, body in asked["requests"]:
                try:
                    status, error = said(door, tls, host, method, path, bytes.fromhex(body)), ""
                except Exception as caught:
                    status, error = 0, type(caught).__name__
                answers.append([door, host, method, path, status, error])
json.dump({"uid": os.getuid(), "answers": answers}, sys.stdout)
"""


@dataclass(frozen=True)
class Answer:
    """What one door said to one request: a status, or the name of the error that kept it from being said."""

    door: tuple[object, ...]
    host: str
    method: str
    path: str
    status: int
    error: str

    @property
    def was_obeyed(self) -> bool:
        """Whether something was done."""
        return 200 <= self.status < 300


def doors(pid: int) -> list[tuple[object, ...]]:
    """Where a process listens: ("tcp", host, port) or ("unix", path)."""
    inodes = {link[len("socket:[") : -1] for link in _links(pid) if link.startswith("socket:[")}
    found: list[tuple[object, ...]] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.append(("tcp", _host(address), int(port, 16)))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[6] in inodes and not fields[7].startswith("@"):
            found.append(("unix", fields[7]))
    return sorted(set(found), key=str)


def _host(address: str) -> str:
    """The address that a line of /proc/net/tcp or tcp6 has in groups of four bytes, each back to front."""
    data = b"".join(struct.pack("<I", int(address[at : at + 8], 16)) for at in range(0, len(address), 8))
    ip = ip_address(data)
    ip = (ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else ip
    return HERE if ip.is_unspecified else str(ip)


def _links(pid: int) -> list[str]:
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    return links


def say(at: Sequence[tuple[object, ...]], requests: Sequence[Request], account: int, *hosts: str) -> list[Answer]:
    """Says every request at every door, with and without TLS, as the account with this number."""
    asked = {
        "account": account,
        "doors": at,
        "hosts": hosts or ("127.0.0.1",),
        "requests": [(method, path, body.hex()) for method, path, body in requests],
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CHILD],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=TALK_S,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["uid"] == account
    return [Answer(tuple(door), *rest) for door, *rest in told["answers"]]


def can_be_others() -> bool:
    """Whether this process may start others under another account."""
    return os.geteuid() == 0
