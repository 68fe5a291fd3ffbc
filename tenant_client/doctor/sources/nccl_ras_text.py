"""What `ncclras` prints without `-f json`: processes that do not answer or are dead, errors, and counts that differ.

Only symptoms, in the order of the text. It has no time, so two of them are not compared. It names outliers: ranks that
launched fewer collectives than the others are told where it is one, or an eighth of them at most; where more are
behind, as in a job that goes on, only that counts differ. Ranks are those of a communicator, so a process that is lost
is named by host and GPU alone.

What `ncclras -m` prints while it watches is read too, as text and as JSON: which processes were lost and did not come
back, the first one first.

Source: NCCL 2.24 to 2.30.7, `src/ras/client_support.cc` (`rasOutAppend`, `rasClientsNotifyEvent`), `src/ras/rasnet.cc`
(the events), and its user guide's page on RAS.

>>> _PROCESS.match("  Process 3487984 on node 172.16.64.213 managing GPU 5").groups()
('3487984', '172.16.64.213', '5')
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, lines
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.nccl_ras import SOURCE
from tenant_client.doctor.sources.prefixes import stamp

_MOST, _MOST_LATE, _MOST_BYTES = 4096, 8, 1 << 26
_AGAIN = "a moment may show that: ask again with `-f json` (NCCL 2.28.7 or later)"
_SECTION = re.compile(r"(?:#\d{1,9}-\d{1,9} \([0-9a-f]{1,16}\) )?(?:DEAD|INCOMPLETE|ERROR|MISMATCH|TIMEOUT)")
_PROCESS = re.compile(r"  Process (\d{1,9}) on node (\S{1,256}) managing GPUs? (\S{1,64})", re.ASCII)
_ERROR = re.compile(r"  (?:Rank \d{1,9}|\d{1,9} ranks) reported (nccl\w{1,40})", re.ASCII)
_DIFFERENT = re.compile(r"  Communicator ranks have different (\w{1,40}) operation counts", re.ASCII)
_LAUNCHED = re.compile(
    r"  (?:(?P<ranks>\d{1,9}) ranks|Rank (?P<rank>\d{1,9})) ha(?:ve|s) (?:launched up to operation (?P<count>\d{1,19})"
    r"|not launched any operations)(?P<rest>.*)",
    re.ASCII,
)
_OUTLIER = re.compile(
    r"(?:  Rank (?P<rank>\d{1,9}))? -- GPUs? (?P<gpu>\S{1,64}) managed by process (?P<pid>\d{1,9})"
    r" on node (?P<host>\S{1,256})",
    re.ASCII,
)
_AS_TEXT = re.compile(
    r"\[(?P<at>[\d: -]{19})\] (?P<event>PEER_[A-Z_]+): (?:Process (?P<pid>\d{1,9}) on node (?P<host>\S{1,256}) managing"
    r" GPUs? (?P<gpu>[\d,]{1,256})|(?P<addr>[^\s<]{1,256}))",
    re.ASCII,
)
_AS_JSON = re.compile(
    r'\{\s*"timestamp": ?"(?P<at>[\d: -]{19})",\s*"group": ?"\w+",\s*"event": ?"(?P<event>PEER_[A-Z_]+)",'
    r'\s*"peer": ?\{\s*(?:"host": ?"(?P<host>[^"]{1,256})",\s*"pid": ?(?P<pid>\d{1,9}),'
    r'\s*"cuda_devs": ?\[(?P<gpu>[\d, ]{0,256})\]|"addr": ?"(?P<addr>[^"<]{1,256}))',
    re.ASCII,
)
_BANNER = re.compile(r"(?:OK\n|RAS Monitor Mode.*\n|=+\n|\s)*")
_LOST = {
    "PEER_DEAD": "dead",
    "PEER_TIMEOUT_DEAD": "dead",
    "PEER_UNRESPONSIVE": "unresponsive",
    "PEER_KEEPALIVE_TIMEOUT": "unresponsive",
    "PEER_SEND_STUCK": "unresponsive",
}
_BACK = ("PEER_RECOVERED", "PEER_CONNECTED")
_REASONS = {"ncclSystemError": "network_error", "ncclRemoteError": "peer_lost"}


def looks_like(head: str) -> bool:
    """Whether a file that begins so is the text of RAS."""
    return _event_of(head) is not None or ("Job summary\n===========\n" in head and "\nCommunicators..." in head)


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Evidence]:
    """The symptoms that RAS tells, each process and each section once."""
    if event := _event_of(reader.peek().decode("utf-8", "replace")):
        yield from _watched(reader, event)
        return
    section, seen, counts = "", set[tuple[str, str]](), _Counts("", "", 0)
    for number, raw in lines(reader, limits):
        line = raw.decode("utf-8", "replace")
        if _SECTION.fullmatch(line):
            yield from counts.evidence(reader.file)
            section, counts = line, _Counts("", "", 0)
        if different := _DIFFERENT.match(line):
            yield from counts.evidence(reader.file)
            counts = _Counts(section, different[1], number)
        elif counts.kind and counts.take(line, number):
            continue
        found = _evidence(line, section, reader.file, number)
        if found is None or len(seen) >= _MOST:
            continue
        kind = ("", line) if found.gpu else (section, found.reason)
        if kind not in seen:
            seen.add(kind)
            yield found
    yield from counts.evidence(reader.file)


@dataclass
class _Group:
    """Ranks that launched the same number, and those of them that the text names: (rank, GPU, process, host, line)."""

    count: int
    ranks: int
    named: list[tuple[int, str, str, str, int]] = field(default_factory=list)


@dataclass
class _Counts:
    """How many collectives of a kind the ranks of a communicator launched."""

    section: str
    kind: str
    line: int
    groups: list[_Group] = field(default_factory=list)

    def take(self, line: str, number: int) -> bool:
        """Whether a line tells counts, or names a rank of the last one."""
        if launched := _LAUNCHED.match(line):
            self.groups.append(_Group(int(launched["count"] or 0), int(launched["ranks"] or 1)))
            line = f"  Rank {launched['rank']}{launched['rest']}" if launched["rank"] else ""
        found = _OUTLIER.match(line)
        if found and self.groups and found["rank"] and len(self.groups[-1].named) < _MOST:
            named = int(found["rank"]), found["gpu"], found["pid"], found["host"], number
            self.groups[-1].named.append(named)
        return bool(launched or found)

    def evidence(self, file: str) -> Iterator[Evidence]:
        """The ranks behind, where they are few; else that counts differ."""
        if not self.kind:
            return
        top, all_ranks = (
            max((group.count for group in self.groups), default=0),
            sum(group.ranks for group in self.groups),
        )
        behind = [group for group in self.groups if group.count < top]
        late = sum(group.ranks for group in behind)
        named = sorted((group.count, *one) for group in behind for one in group.named)
        if not named or late > max(1, all_ranks // 8):
            text = f"{self.section}: Communicator ranks have different {self.kind} operation counts; {_AGAIN}"
            yield Evidence("nccl_timeout_error", Role.SYMPTOM, SOURCE, file, self.line, text)
            return
        for count, rank, gpu, pid, host, line in named[:_MOST_LATE]:
            who = f"rank {rank} (GPU {gpu}, process {pid} on {host})"
            text = f"{who} launched {self.kind} up to {count}, {all_ranks - late} ranks up to {top}; {_AGAIN}"
            yield Evidence("collective_timeout", Role.SYMPTOM, SOURCE, file, line, text, None, rank, host, gpu)


def _evidence(line: str, section: str, file: str, number: int) -> Evidence | None:
    if process := _PROCESS.match(line):
        pid, host, gpu = process.groups()
        return _lost(section.lower(), file, number, pid, host, gpu)
    if error := _ERROR.match(line):
        reason = _REASONS.get(error[1], "runtime_error")
        return Evidence(reason, Role.SYMPTOM, SOURCE, file, number, f"{section}: {line.strip()[:300]}")
    return None


def _lost(how: str, file: str, number: int, pid: str, host: str, gpu: str, at_s: float | None = None) -> Evidence:
    text = f"process {pid} on {host}, GPU {gpu}: {how}, it does not answer RAS" if pid else f"{host}: {how}"
    return Evidence("peer_lost", Role.SYMPTOM, SOURCE, file, number, text, at_s, None, host, gpu)


# ---- what a monitor sees ---------------------------------------------------------------------------------------------


def _event_of(head: str) -> re.Pattern[str] | None:
    """The form of events in a file that begins with one."""
    begin = _BANNER.match(head)
    return next((form for form in (_AS_TEXT, _AS_JSON) if begin and form.match(head, begin.end())), None)


def _watched(reader: CappedReader, event: re.Pattern[str]) -> Iterator[Evidence]:
    text, lost = reader.read(_MOST_BYTES).decode("utf-8", "replace"), dict[tuple[str, str], Evidence]()
    number, at = 1, 0
    for found in event.finditer(text):
        number, at = number + text.count("\n", at, found.start()), found.start()
        pid, host, gpu = found["pid"] or "", found["host"] or found["addr"], found["gpu"] or ""
        if found["event"] in _BACK:
            lost.pop((pid, host), None)
        elif found["event"] in _LOST and len(lost) < _MOST:
            one = _lost(_LOST[found["event"]], reader.file, number, pid, host, gpu, stamp(found["at"]))
            lost.setdefault((pid, host), one)
    yield from lost.values()
