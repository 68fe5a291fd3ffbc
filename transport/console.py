"""What the command lines of all programs share: how they are made, and how errors end them.

Results go to stdout (`--json` with stable keys), everything else to stderr, both by `transport.screen`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from crypto.errors import PharoahError
from transport import screen, tls

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with stable keys.")]


class CommandLine(typer.Typer):
    """The command line of a program; its call sees to it that gRPC speaks TLS 1.3 and `screen` guards the output."""

    def __init__(self, *, name: str, help: str) -> None:  # noqa: A002 - as typer calls it
        super().__init__(
            name=name, help=help, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
        )

    def __call__(self, *words: Any, **more: Any) -> Any:
        """Runs the program."""
        tls.forbid_1_2()  # before a verb imports gRPC
        screen.guard()
        return super().__call__(*words, **more)


@dataclass(frozen=True)
class Console:
    """Words about a verb on stderr, which begin with the program's name."""

    program: str

    def warn(self, what: str, hint: str = "") -> None:
        """Something that a person should know, and what to do about it."""
        self._say("warning", what, hint)

    def say_error(self, what: str, hint: str = "") -> None:
        """The reason why a verb ends, and what to do about it."""
        self._say("error", what, hint)

    @contextmanager
    def failing(self, code: int = 2) -> Iterator[None]:
        """An error that explains itself becomes its text, and the exit code."""
        try:
            yield
        except PharoahError as error:
            self.say_error(error.what, error.hint)
            raise typer.Exit(code) from error

    def _say(self, kind: str, what: str, hint: str) -> None:
        screen.say(f"{self.program}: {kind}: {what}", *([f"hint: {hint}"] if hint else []))


def ask_secret(question: str) -> str:
    """What a person types twice, unseen."""
    return str(typer.prompt(question, hide_input=True, confirmation_prompt=True))
