"""torchft: its records as lines that `pharoah-tenant run` reads, and a call that saves when a hint asks for it.

show_events()                                  # once, before the Manager
...
optimizer.step()                               # torchft's, which commits the step
after_step(lambda: torch.save(state, "hinted.pt"))
"""

import json
import logging
import sys
from collections.abc import Callable

import pharoah

LOGGERS = ("torchft_quorums", "torchft_commits", "torchft_errors")
FIELDS = ("replica_id", "rank", "quorum_id", "step", "commit_result", "error")


class AsJson(logging.Handler):
    """Writes what a record carries beside its message, which torchft leaves empty; a line for each, on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line, in one write, so that it does not mix with those of other ranks."""
        said = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        line = json.dumps({"torchft": record.name, "at_s": record.created, **said}, default=str)
        sys.stderr.write(f"{line}\n")


def show_events() -> None:
    """Attaches the handler to torchft's loggers of quorums, commits and errors."""
    handler = AsJson()
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)


def after_step(save: Callable[[], object]) -> None:
    """Saves when a hint of the provider asks for a checkpoint; does nothing outside of `pharoah-tenant run`."""
    if pharoah.should_checkpoint():
        with pharoah.phase("checkpoint"):
            save()
