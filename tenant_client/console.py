"""What the verbs of `pharoah-tenant` share: options, output and exit codes.

Results go to stdout (`--json` with stable keys), everything else to stderr. Exit codes: 0 ok, 1 warning, 2 refused,
failed or mismatch, 3 unknown. Heavy libraries load inside the verbs, so that `--help` is instant.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tenant_client.tenant import Tenant

Home = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="PHAROAH_HOME",
        default_factory=lambda: _default_home(),
        help="The tenant's home directory; by default pharoah in $XDG_DATA_HOME, else in ~/.local/share.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with stable keys.")]


@contextmanager
def opened(home: Path, *, failed: int = 2) -> "Iterator[Tenant]":
    """The tenant that lives in `home`, closed afterwards. Errors become their own text and exit code `failed`."""
    import os

    from crypto.noise import SystemSampler
    from tenant_client.home import open_tenant

    with failing(failed):
        tenant = open_tenant(home, (), os.urandom, SystemSampler())
        try:
            yield tenant
        finally:
            tenant.close()


@contextmanager
def failing(failed: int = 2) -> Iterator[None]:
    """Errors that explain themselves become their own text on stderr and exit code `failed`."""
    from crypto.errors import PharoahError

    try:
        yield
    except PharoahError as error:
        typer.echo(f"pharoah-tenant: error: {error.diagnostics()}", err=True)
        raise typer.Exit(failed) from error


def warn(text: str) -> None:
    """A line for a person on stderr."""
    typer.echo(f"pharoah-tenant: warning: {text}", err=True)


def print_json(view: "DataclassInstance | dict[str, Any]") -> None:
    """One object; names of fields are the keys, tokens and ids are hexadecimal strings."""
    import json
    from dataclasses import asdict

    sys.stdout.write(json.dumps(view if isinstance(view, dict) else asdict(view), default=str) + "\n")


def _default_home() -> Path:
    """Where the XDG Base Directory Specification puts what an application keeps for its user."""
    import os

    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "pharoah"
