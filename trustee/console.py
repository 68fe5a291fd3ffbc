"""What the verbs of `pharoah-trustee` share: its home as an option, its errors, and files that parties exchange."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from crypto.errors import BadSignature, DecodeError
from federation.base.console import Console, HomeFolder
from federation.base.homes import Role
from federation.base.key_files import HomeError
from federation.base.screen import say

_console = Console("pharoah-trustee")
warn = _console.warn

TrusteeHome = Annotated[
    Path,
    typer.Option(
        "--home",
        click_type=HomeFolder(Role.TRUSTEE),
        envvar="PHAROAH_TRUSTEE_HOME",
    ),
]


@contextmanager
def about(file: Path) -> Iterator[None]:
    """Names the file in an error about what is in it."""
    try:
        yield
    except (DecodeError, BadSignature) as error:
        raise type(error)(f"{file}: {error.what}", hint=error.hint) from error


def write_new(file: Path, data: bytes) -> None:
    """Writes a file that is not there yet; HomeError if it is."""
    try:
        with file.open("xb") as out:
            out.write(data)
    except OSError as error:
        raise HomeError(f"{error.strerror}: {file}", hint="pass a file that does not exist yet") from error


def tell(next_step: str) -> None:
    """Says what comes next."""
    say(f"next: {next_step}")
