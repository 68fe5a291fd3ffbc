"""`pharoah-sim study NAME`: one verb for each study, made of the parameters of its `run` when it is called."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import click
import typer
from typer.core import TyperGroup
from typer.main import get_command

from federation.base.console import AsJson, Console, Verb, group
from federation.base.screen import show, show_json
from simulation.studies.study import Table

# ---- studies ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Study:
    """A question and the module that answers it, which is imported when it is run."""

    name: str
    question: str
    module: str

    @property
    def function(self) -> Callable[..., Table]:
        """The module's `run`."""
        found: Callable[..., Table] = import_module(f"simulation.studies.{self.module}").run
        return found

    def run(self, seed: int = 0, *, quick: bool = False, **more: Any) -> Table:
        """The answer. What draws nothing takes no seed, and what has no small size takes no notice of `quick`."""
        takes = inspect.signature(self.function).parameters
        given = {"seed": seed, "quick": quick}
        return self.function(**{name: value for name, value in given.items() if name in takes}, **more)


STUDIES = (
    Study("field", "Which kinds of cloud, and which sizes, let the provider find which mismatches?", "field"),
    Study("learning", "How good are findings at epsilon 1 and 2, and without privacy?", "learning"),
    Study("attendance", "What do noise and findings lose when not everybody answers?", "attendance"),
    Study("first-weeks", "What is public experience worth before a fleet has seen its own failures?", "first_weeks"),
    Study("experiments", "How soon do stand-ins on idle nodes find what nobody sees?", "experiments"),
    Study("injection", "Which signals foretell which injected faults, how early, and what is that worth?", "injection"),
    Study("impact", "What are checks and hints worth to those who heed them?", "impact"),
    Study("risk", "Do nodes fail as often as is foretold, and what does a scheduler gain by it?", "risk"),
    Study("world", "How far are simulated faults from those of a real fleet?", "world"),
    Study("poison", "How soon is a member named that sends false counts?", "poison"),
    Study("honest", "How soon is a provider seen that warns in vain or keeps warnings back?", "honest"),
    Study("audit", "What does the whole path, from counts to releases, give away?", "audit.study"),
    Study("aggregation", "What does a secure sum cost, beside Flower's SecAgg+?", "aggregation"),
    Study("scale", "What does a round cost each party as tenants and cells grow?", "scale"),
    Study("check", "How fast are checks of the online service, and what do idle streams cost?", "check"),
    Study("cost", "What do masks, noise, tokens, the codec, the help and the learner cost?", "cost"),
    Study("diagnosis", "How often are causes found in jobs made to fail and in labelled logs?", "diagnosis.study"),
    Study("labelled-logs", "How often are causes found in other labelled logs?", "diagnosis.logs"),
    Study(
        "two-sided",
        "How often are causes found from the tenant's half, the provider's, and both?",
        "diagnosis.two_sided",
    ),
    Study(
        "explanations",
        "How often is the first cause that `show --only explain` names the right one?",
        "diagnosis.explanations",
    ),
    Study("sureness", "How sure may a diagnosis be, by what it rests on?", "diagnosis.sureness"),
    Study("xid", "How often is an error of a GPU called hardware where it is?", "xid"),
    Study("syndromes", "Which hangs and slow ranks of real jobs are told right, and how soon?", "syndromes"),
    Study("odd-ranks", "Does the observer say what is odd about a rank of a real job, and which?", "odd_ranks"),
    Study("confirm", "How often is a healthy machine accused, and a slow one found?", "confirm"),
    Study("replacement", "How long does a job stand until a spare has replaced a node that hangs?", "replacement"),
    Study("overhead", "What does the hook cost a training job?", "overhead"),
    Study("install-size", "What does `pip install pharoah` bring to a training image?", "install_size"),
    Study("gpu", "Does all that needs a GPU work on this machine's?", "gpu.study"),
)

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
