"""What the verbs of `pharoah-tenant` share: options, output and exit codes.

Results go to stdout (`--json` with stable keys), everything else to stderr. Exit codes: 0 ok, 1 warning, 2 refused,
failed or mismatch, 3 unknown. Heavy libraries load inside the verbs, so that `--help` is instant.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tenant_client.tenant import Tenant

Home = Annotated[
    Path, typer.Option("--home", envvar="PHAROAH_HOME", help="The tenant's home directory.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with stable keys.")]


@contextmanager
def opened(home: Path) -> "Iterator[Tenant]":
    """The tenant that lives in `home`, closed afterwards. Errors become their own text and exit code 2."""
    import os

    from crypto.noise import SystemSampler
    from tenant_client.home import open_tenant

    with failing():
        tenant = open_tenant(home, (), os.urandom, SystemSampler())
        try:
            yield tenant
        finally:
            tenant.close()


@contextmanager
def failing() -> Iterator[None]:
    """Errors that explain themselves become their own text on stderr and exit code 2."""
    from crypto.errors import PharoahError

    try:
        yield
    except PharoahError as error:
        typer.echo(f"pharoah-tenant: error: {error.diagnostics()}", err=True)
        raise typer.Exit(2) from error


def print_json(view: "DataclassInstance") -> None:
    """One object; names of fields are the keys, tokens and ids are hexadecimal strings."""
    import json
    from dataclasses import asdict

    sys.stdout.write(json.dumps(asdict(view), default=str) + "\n")
