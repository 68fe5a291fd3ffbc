"""How tests wait for what must happen: only a hang takes longer, even on a machine with ten times as much to do."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 300.0
POLL_S = 0.02
T = TypeVar("T")


def until(happened: Callable[[], T | None], what: str = "what was waited for") -> T:
    """What `happened` returns as soon as that is something; it is asked again and again."""
    end_s = time.monotonic() + PATIENCE_S
    while not (seen := happened()):
        assert time.monotonic() < end_s, f"did not happen in {PATIENCE_S:g} s: {what}"
        time.sleep(POLL_S)
    return seen
