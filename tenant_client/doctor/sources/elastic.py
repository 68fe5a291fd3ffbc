"""What torchelastic records of a failed worker: `error.json`, or the file that TORCHELASTIC_ERROR_FILE names.

    {"message": {"message": "KeyError: 'x'", "extraInfo": {"py_callstack": "…", "timestamp": "1716000000"}}}

The log directory is run_id/attempt_n/local_rank/{stdout.log,stderr.log,error.json}: the rank of the evidence is that
directory's, which is the global rank on one node only. Timestamps are whole seconds of one clock per node; the earliest
failure is the root, the others follow. ChildFailedError is the launcher's summary, never a cause.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, SourceError
from tenant_client.doctor.sources.cues import match_exception
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.job_log import spokesman
from tenant_client.doctor.sources.reasons import UNKNOWN
from tenant_client.doctor.sources.tracebacks import Tracebacks

SOURCE = "elastic"
_MOST_BYTES = 16 << 20
_TEXT = 400


def looks_like(head: str) -> bool:
    """Whether a file begins like an error file."""
    return head.lstrip()[:1] == "{" and '"message"' in head[:256] and ("extraInfo" in head or "errorCode" in head)


def rank_of(file: str) -> int | None:
    """The rank that a path of a log directory names: …/attempt_0/3/stderr.log."""
    parts = PurePath(file).parts
    for before, part in itertools.pairwise(parts):
        if before.startswith("attempt_") and part.isascii() and part.isdigit() and len(part) < 8:
            return int(part)
    return None


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Evidence]:
    """One piece of evidence, or SourceError for what is no error file."""
    data = reader.read(min(_MOST_BYTES, limits.total_bytes) + 1)
    if len(data) > _MOST_BYTES:
        raise SourceError(reader.file, _MOST_BYTES, "is too long for an error file")
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(reader.file, 0, f"is not JSON: {error}") from error
    text, stack, at_s = _fields(record, reader.file)
    yield _evidence(reader.file, text, stack, at_s)


def _fields(record: Any, file: str) -> tuple[str, str, float | None]:
    message = record.get("message") if isinstance(record, dict) else None
    if isinstance(message, str):
        return message, "", None
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        raise SourceError(file, 0, "holds no message", hint="torchelastic writes it where the entry point has @record")
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    return message["message"], str(extra.get("py_callstack") or ""), _seconds(extra.get("timestamp"))


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < 1e11 else None


def _evidence(file: str, text: str, stack: str, at_s: float | None) -> Evidence:
    tracebacks = Tracebacks()
    for number, line in enumerate(stack.splitlines()[:10_000]):
        tracebacks.feed(number, line[:4096])
    chains = tracebacks.close()
    first = text.strip().partition("\n")[0][:4096]
    if chains:
        raised, cue = spokesman(chains[-1])
        first = raised.text
    else:
        cue = match_exception(first, ())
    reason, role = (cue.reason, cue.role) if cue else (UNKNOWN, Role.ROOT)
    told = (cue.domain, cue.advice) if cue else (None, "")
    return Evidence(reason, role, SOURCE, file, 0, first[:_TEXT], at_s, rank_of(file), domain=told[0], advice=told[1])
