"""Turns every error of Pharoah's own code into a warning, so that no error reaches the job.

>>> ours = FailOpen(quiet=True)
>>> with ours.guard("the journal"):
...     raise OSError("No space left on device")
>>> ours.warnings
['the journal: No space left on device']
"""

from collections.abc import Iterator
from contextlib import contextmanager

from federation.base.screen import say_at_once


class FailOpen:
    """Turns errors into warnings, each text at most once."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.warnings: list[str] = []

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Runs the block; an error in it becomes a warning that begins with `what`."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a bug in Pharoah must not reach the job
            self.warn(f"{what}: {_reason(error)}")

    def warn(self, text: str) -> None:
        """Prints a warning, unless the same one was printed before."""
        if text not in self.warnings:
            self.warnings.append(text)
            self.say(f"warning: {text} (the job continues)")

    def say(self, text: str) -> None:
        """Prints a line on stderr in one write, so that it does not mix with the job's lines."""
        if self.quiet:
            return
        try:
            say_at_once(f"pharoah-tenant: {text}")
        except OSError:
            self.quiet = True


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return text or str(error).partition("\n")[0] or type(error).__name__
