"""The options and output that both `path` verbs share: text, JSON and a picture of the same routes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from crypto.errors import PharoahError
from federation.base.route import HopHealth, Route, Routes, lines, picture
from federation.base.screen import show, show_json
from federation.base.visible import reason

FINE, SIGNS, UNKNOWN = 0, 1, 3

Picture = Annotated[
    Path | None, typer.Option("--out", help="Draw the path into this file, as SVG.", show_default=False)
]


class PathNotDrawn(PharoahError):
    """A picture of a path could not be written where it was asked for."""

    default_hint = "choose a folder that exists and that you may write to"


def show_routes(routes: Sequence[Route], out: Path | None, *, as_json: bool) -> int:
    """Shows routes, draws them if asked for, and gives the exit code; PathNotDrawn where the file cannot be written."""
    if out is not None:
        try:
            out.write_text(picture(routes), encoding="utf-8")
        except OSError as error:
            raise PathNotDrawn(f"{reason(error)}: {out}") from error
    if as_json:
        show_json(Routes(tuple(routes)))
    else:
        show(*(line for route in routes for line in lines(route)))
    spoken = {hop.health for route in routes for hop in route.hops}
    return SIGNS if spoken & {HopHealth.FAULT, HopHealth.DOUBT} else FINE
