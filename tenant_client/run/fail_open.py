"""The one place where an error of ours ends, whatever it is: the job must not feel it.

>>> ours = FailOpen(quiet=True)
>>> with ours.guard("the journal"):
...     raise OSError("No space left on device")
>>> ours.warnings
['the journal: No space left on device']
"""

from collections.abc import Iterator
from contextlib import contextmanager

from federation.runtime.screen import say_at_once


class FailOpen:
    """Turns errors into at most one warning for each thing that went wrong."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.warnings: list[str] = []

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Runs the block; an error in it ends the block and becomes a warning that begins with `what`."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a bug of ours must not reach the job that we only watch
            self.warn(f"{what}: {_reason(error)}")

    def warn(self, text: str) -> None:
        """One warning, unless the same was given before."""
        if text not in self.warnings:
            self.warnings.append(text)
            self.say(f"warning: {text} (the job goes on)")

    def say(self, text: str) -> None:
        """One line on stderr, by one write, so that it does not mix with the job's own; lost where stderr is."""
        if self.quiet:
            return
        try:
            say_at_once(f"pharoah-tenant: {text}")
        except OSError:
            self.quiet = True


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return text or str(error).partition("\n")[0] or type(error).__name__
