"""The programs whose files are a distribution of their own, `pharoah-provider`: without it they say what to install."""

import sys
from importlib import import_module

from federation.runtime.console import Console

DISTRIBUTION = "pharoah-provider"


def provider() -> None:
    """`pharoah-provider`."""
    _run("pharoah-provider", "provider_server")


def simulation() -> None:
    """`pharoah-sim`."""
    _run("pharoah-sim", "simulation")


def _run(program: str, package: str) -> None:
    try:
        cli = import_module(f"{package}.cli")
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        Console(program).say_error(f"this program needs `pip install {DISTRIBUTION}`", "its files are not installed")
        sys.exit(2)
    cli.app(prog_name=program)
