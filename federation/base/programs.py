"""The programs whose files are a distribution of their own, `pharoah-provider`: without it they say what to install."""

import sys
from importlib import import_module

from federation.base.console import Console

DISTRIBUTION = "pharoah-provider"


def provider() -> None:
    """`pharoah-provider`."""
    _run("pharoah-provider", "provider_server.program.cli")


def simulation() -> None:
    """`pharoah-sim`."""
    _run("pharoah-sim", "simulation.cli")


def _run(program: str, module: str) -> None:
    try:
        cli = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        missing = "its files are not installed; in a clone: pip install ./distributions/provider"
        Console(program).say_error(f"this program needs `pip install {DISTRIBUTION}`", missing)
        sys.exit(2)
    cli.app(prog_name=program)
