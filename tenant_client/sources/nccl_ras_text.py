"""What `ncclras` prints without `-f json`: processes that do not answer or are dead, errors, and counts that differ.

Only symptoms, in the order of the text. It names outliers alone and has no time, so two of them are not compared: that
ranks differ is told, who is behind is not. Ranks are those of a communicator, so a GPU is named by host and process.

What `ncclras -m` prints while it watches is read too, as text and as JSON: which processes were lost and did not come
back, the first one first.

Source: NCCL 2.24 to 2.30.7, `src/ras/client_support.cc` (`rasOutAppend`, `rasClientsNotifyEvent`), `src/ras/rasnet.cc`
(the events), and its user guide's page on RAS.

>>> _PROCESS.match("  Process 3487984 on node 172.16.64.213 managing GPU 5").groups()
('3487984', '172.16.64.213', '5')
"""

import re
from collections.abc import Iterator

import msgspec

from federation.runtime.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, lines
from tenant_client.sources.evidence import Evidence, Role
from tenant_client.sources.nccl_ras import SOURCE
from tenant_client.sources.prefixes import stamp

_MOST, _MOST_OF_EVENT = 4096, 1 << 14
_SECTION = re.compile(r"(?:#\d{1,9}-\d{1,9} \([0-9a-f]{1,16}\) )?(?:DEAD|INCOMPLETE|ERROR|MISMATCH|TIMEOUT)")
_PROCESS = re.compile(r"  Process (\d{1,9}) on node (\S{1,256}) managing GPUs? (\S{1,64})", re.ASCII)
_ERROR = re.compile(r"  (?:Rank \d{1,9}|\d{1,9} ranks) reported (nccl\w{1,40})", re.ASCII)
_DIFFERENT = re.compile(r"  Communicator ranks have different \w{1,40} operation counts", re.ASCII)
_EVENT = re.compile(
    r"\[(?P<at>[\d: -]{19})\] (?P<event>PEER_[A-Z_]{2,40}): "
    r"(?:Process (?P<pid>\d{1,9}) on node (?P<host>\S{1,256}) managing GPUs? (?P<gpu>[\d,]{1,256})"
    r"|(?P<addr>\S{1,256}))",
    re.ASCII,
)
_WATCHING = re.compile(
    r"(?:OK\n|RAS Monitor Mode.*\n|=+\n|\s)*"
    r"(?:\[[\d: -]{19}\] PEER_[A-Z_]+: |\{\s*\"timestamp\": ?\"[^\"]*\",\s*\"group\": ?\"(?:LIFECYCLE|TRACE)\")"
)
_LOST = {
    "PEER_DEAD": "dead",
    "PEER_TIMEOUT_DEAD": "dead",
    "PEER_UNRESPONSIVE": "unresponsive",
    "PEER_KEEPALIVE_TIMEOUT": "unresponsive",
    "PEER_SEND_STUCK": "unresponsive",
}
_BACK = ("PEER_RECOVERED", "PEER_CONNECTED")
_REASONS = {"ncclSystemError": "network_error", "ncclRemoteError": "peer_lost"}


class _Peer(msgspec.Struct):
    host: str = ""
    addr: str = ""
    pid: int = -1
    cuda_devs: tuple[int, ...] = ()


class _MonitorEvent(msgspec.Struct):
    """An event as JSON; without a peer it tells of none."""

    timestamp: str
    event: str
    peer: _Peer | None = None


def looks_like(head: str) -> bool:
    """Whether a file that begins so is the text of RAS."""
    return _WATCHING.match(head) is not None or ("Job summary\n===========\n" in head and "\nCommunicators..." in head)


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Evidence]:
    """The symptoms that RAS tells, each process and each section once."""
    if _WATCHING.match(reader.peek().decode("utf-8", "replace")):
        yield from _watched(reader, limits)
        return
    section, seen = "", set[tuple[str, str]]()
    for number, raw in lines(reader, limits):
        line = raw.decode("utf-8", "replace")
        if _SECTION.fullmatch(line):
            section = line
        found = _evidence(line, section, reader.file, number)
        if found is None or len(seen) >= _MOST:
            continue
        kind = ("", line) if found.gpu else (section, found.reason)
        if kind not in seen:
            seen.add(kind)
            yield found


def _evidence(line: str, section: str, file: str, number: int) -> Evidence | None:
    if process := _PROCESS.match(line):
        pid, host, gpu = process.groups()
        return _lost(section.lower(), file, number, pid, host, gpu)
    if error := _ERROR.match(line):
        reason = _REASONS.get(error[1], "runtime_error")
        return Evidence(reason, Role.SYMPTOM, SOURCE, file, number, f"{section}: {line.strip()[:300]}")
    if _DIFFERENT.match(line):
        text = f"{section}: {line.strip()}; a moment may show that: ask again with `-f json` (NCCL 2.28.7 or later)"
        return Evidence("nccl_timeout_error", Role.SYMPTOM, SOURCE, file, number, text)
    return None


def _lost(how: str, file: str, number: int, pid: str, host: str, gpu: str, at_s: float | None = None) -> Evidence:
    text = f"process {pid} on {host}, GPU {gpu}: {how}, it does not answer RAS" if pid else f"{host}: {how}"
    return Evidence("peer_lost", Role.SYMPTOM, SOURCE, file, number, text, at_s, None, host, gpu)


# ---- what a monitor sees ---------------------------------------------------------------------------------------------


def _watched(reader: CappedReader, limits: ReadLimits) -> Iterator[Evidence]:
    lost: dict[tuple[str, str], Evidence] = {}
    for number, at, event, (pid, host, gpu) in _events(reader, limits):
        if event in _BACK:
            lost.pop((pid, host), None)
        elif event in _LOST and len(lost) < _MOST:
            lost.setdefault((pid, host), _lost(_LOST[event], reader.file, number, pid, host, gpu, stamp(at)))
    yield from lost.values()


def _events(reader: CappedReader, limits: ReadLimits) -> Iterator[tuple[int, str, str, tuple[str, str, str]]]:
    """Line, time, kind, and the process, host and GPUs of each event; an event that is cut off is left out."""
    told = b""
    for number, raw in lines(reader, limits):
        told = raw if raw.startswith(b"{") else (told + raw)[:_MOST_OF_EVENT]
        if found := _EVENT.match(raw.decode("utf-8", "replace")):
            pid, host, gpu, addr = found["pid"] or "", found["host"] or "", found["gpu"] or "", found["addr"] or ""
            yield number, found["at"], found["event"], (pid, host or addr.partition("<")[0], gpu)
        elif raw.endswith(b"}") and (one := _decoded(told)) and one.peer:
            pid, gpu = str(max(one.peer.pid, 0) or ""), ",".join(map(str, one.peer.cuda_devs))
            yield number, one.timestamp, one.event, (pid, one.peer.host or one.peer.addr.partition("<")[0], gpu)


def _decoded(data: bytes) -> _MonitorEvent | None:
    """The event; None where more of it is to come, or where it is none."""
    try:
        return msgspec.json.decode(data, type=_MonitorEvent)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
