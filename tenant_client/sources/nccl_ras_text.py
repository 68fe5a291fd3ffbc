"""What `ncclras` prints without `-f json`: processes that do not answer or are dead, errors, and counts that differ.

Only symptoms, in the order of the text. It names outliers alone and has no time, so two of them are not compared: that
ranks differ is told, who is behind is not. Ranks are those of a communicator, so a GPU is named by host and process.

Source: NCCL 2.24 to 2.30.7, `src/ras/client_support.cc` (`rasOutAppend`), and its user guide's page on RAS.

>>> _PROCESS.match("  Process 3487984 on node 172.16.64.213 managing GPU 5").groups()
('3487984', '172.16.64.213', '5')
"""

import re
from collections.abc import Iterator

from federation.runtime.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, lines
from tenant_client.sources.evidence import Evidence, Role
from tenant_client.sources.nccl_ras import SOURCE

_MOST = 4096
_SECTION = re.compile(r"(?:#\d{1,9}-\d{1,9} \([0-9a-f]{1,16}\) )?(?:DEAD|INCOMPLETE|ERROR|MISMATCH|TIMEOUT)")
_PROCESS = re.compile(r"  Process (\d{1,9}) on node (\S{1,256}) managing GPUs? (\S{1,64})", re.ASCII)
_ERROR = re.compile(r"  (?:Rank \d{1,9}|\d{1,9} ranks) reported (nccl\w{1,40})", re.ASCII)
_DIFFERENT = re.compile(r"  Communicator ranks have different \w{1,40} operation counts", re.ASCII)
_REASONS = {"ncclSystemError": "network_error", "ncclRemoteError": "peer_lost"}


def looks_like(head: str) -> bool:
    """Whether a file that begins so is the text of RAS."""
    return "Job summary\n===========\n" in head and "\nCommunicators..." in head


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Evidence]:
    """The symptoms that RAS tells, each process and each section once."""
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
        text = f"process {pid} on {host}, GPU {gpu}: {section.lower()}, it does not answer RAS"
        return Evidence("peer_lost", Role.SYMPTOM, SOURCE, file, number, text, None, None, host, gpu)
    if error := _ERROR.match(line):
        reason = _REASONS.get(error[1], "runtime_error")
        return Evidence(reason, Role.SYMPTOM, SOURCE, file, number, f"{section}: {line.strip()[:300]}")
    if _DIFFERENT.match(line):
        text = f"{section}: {line.strip()}; a moment may show that: ask again with `-f json` (NCCL 2.28.7 or later)"
        return Evidence("nccl_timeout_error", Role.SYMPTOM, SOURCE, file, number, text)
    return None
