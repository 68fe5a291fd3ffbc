"""`pharoah-sim study NAME`: one verb for each study, made of the parameters of its `run` when it is called."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import click
import typer
from typer.core import TyperGroup
from typer.main import get_command

from federation.base.console import AsJson, Console, Verb, group
from federation.base.screen import show, show_json
from simulation.studies.registry import STUDIES, Study

_console = Console("pharoah-sim")
BY_NAME = {study.name: study for study in STUDIES}


@cache
def command(study: Study) -> click.Command:
    """The verb of a study."""
    with _console.failing():
        verb = _verb(study.function)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(study.name, cls=Verb)(verb)
    return get_command(app)


def _verb(run: Callable[..., Any]) -> Callable[..., None]:
    def verb(*, as_json: bool, **options: Any) -> None:
        with _console.failing():
            table = run(**options)
        if as_json:
            show_json(table.found)
        else:
            show(*table.lines())
        if table.failed:
            raise typer.Exit(1)

    own = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    parameters = (*inspect.signature(run).parameters.values(), own)
    vars(verb)["__signature__"] = inspect.Signature(parameters)
    verb.__annotations__ = {one.name: one.annotation for one in parameters}
    verb.__doc__ = run.__doc__
    return verb


class _Verbs(Mapping[str, click.Command]):
    """The verbs by name, each made when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        return command(BY_NAME[name])

    def __iter__(self) -> Iterator[str]:
        return iter(BY_NAME)

    def __len__(self) -> int:
        return len(BY_NAME)


class StudyGroup(TyperGroup):
    """The studies; the list of them imports none."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more | {"rich_markup_mode": None})
        vars(self)["commands"] = _Verbs()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As in click; without a name it lists the studies."""
        if not args:
            width = max(map(len, BY_NAME))
            show(*(f"{study.name:<{width}}  {study.question}" for study in STUDIES))
            raise typer.Exit
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Names and questions."""
        with formatter.section("Studies"):
            formatter.write_dl([(study.name, study.question) for study in STUDIES])


studies = group("study", "Answer one question about the whole by simulation, real jobs or real data.", StudyGroup)
