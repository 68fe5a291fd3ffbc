"""The logs of tests/logs and what they truly say, what real logs say, and readers over bytes for tests."""

import io
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from federation.base.reading import DEFAULT_LIMITS, CappedReader
from tenant_client.doctor.diagnosis.diagnose import diagnose, gather

LOGS = Path(__file__).resolve().parents[1] / "logs"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def reader(content: str | bytes, file: str = "a.log") -> CappedReader:
    data = content.encode() if isinstance(content, str) else content
    return CappedReader(io.BytesIO(data), file, DEFAULT_LIMITS.total_bytes)


@cache
def expected() -> dict[str, dict[str, Any]]:
    return tomllib.loads((LOGS / "expected.toml").read_text(encoding="utf-8"))


@cache
def real() -> dict[str, dict[str, Any]]:
    return tomllib.loads((LOGS / "real.toml").read_text(encoding="utf-8"))


@cache
def found(name: str) -> dict[str, Any]:
    """What the diagnosis of a log says, under the keys of expected.toml."""
    diagnosis = diagnose(gather([LOGS / name]).evidence)
    line = diagnosis.root.line if diagnosis.root else None
    facts = {"rank": diagnosis.rank, "host": diagnosis.host, "gpu": diagnosis.gpu, "line": line}
    return {"reason": diagnosis.reason, **facts}
