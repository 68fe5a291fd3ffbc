"""Base of all command lines: programs, verbs, argument types, and how errors end a program.

Results go to stdout (`--json` with stable keys), all else to stderr, both through `federation.base.screen`.
"""

import inspect
import io
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command_from_info
from typer.models import CommandInfo

from crypto.errors import PharoahError
from federation.base import screen, tls
from federation.base.homes import Role, check_home
from federation.base.plugin_verbs import DISTRIBUTIONS, PlugIn, plug_ins
from federation.base.visible import STANDARD_INPUT, reason, short

Force = Annotated[bool, typer.Option("--force", help="Overwrite the content of --out.")]
AsJson = Annotated[bool, typer.Option("--json")]


# What `pip install pharoah` lacks for some verbs of a tenant, and the distributions of the other programs.
BRINGS = {
    "pharoah-tenant": "'pharoah[federation]'",
    "pharoah-trustee": "pharoah-trustee",
    "pharoah-provider": "pharoah-provider",
    "pharoah-sim": "pharoah-sim",
}
PAGES = {"fastapi", "jinja2", "starlette", "uvicorn"}  # of the extra `page`, which `federation` includes
JSON = "Print results as JSON with stable keys."
# Options that most verbs of a program take. They may stand before the verb, too, and the program's help describes them.
SHARED = ("--home", "--database", "--json")
OURS = {"crypto", "federation", "trustee", "tenant_client", "provider_server", "simulation"}
HELP = {"help_option_names": ["-h", "--help"]}


class CommandLine(typer.Typer):
    """The command line of a program. Calling it restricts gRPC to TLS 1.3 and guards the output with `screen`."""

    def __init__(
        self,
        *,
        name: str,
        help: str,  # noqa: A002 - as typer calls it
        verbs: str = "",
        start: Sequence[str] = (),
        renamed: Mapping[str, str] | None = None,
        order: str = "",
        shared: Mapping[str, str] | None = None,
    ) -> None:
        self.verbs = verbs  # the package of those that are added by their place
        super().__init__(name=name, no_args_is_help=not start, pretty_exceptions_enable=False, suggest_commands=False)
        told = {"start": start, "renamed": renamed or {}, "order": order.split(), "shared": shared or {}}
        cls = type("Program", (ProgramGroup,), told)
        self.callback(help=help, cls=cls, context_settings=HELP)(_root)

    def __call__(self, *words: Any, **more: Any) -> Any:
        """Runs the program."""
        tls.forbid_1_2()  # before a verb imports gRPC
        screen.guard()
        return super().__call__(*words, **more)

    def add(
        self, panel: str, *verbs: "Callable[..., None] | str", cls: "type[Verb] | None" = None, **more: Any
    ) -> None:
        """Adds verbs to a panel of the help: functions, or `module.function` as in `add_later`."""
        for verb in verbs:
            if isinstance(verb, str):
                add_later(self, f"{self.verbs}.{verb}", cls=cls, rich_help_panel=panel, **more)
                continue
            name = verb.__name__.rstrip("_").replace("_", "-")
            self.command(name, cls=cls or Verb, rich_help_panel=panel, **more)(verb)


class VerbGroup(TyperGroup):
    """A group's own verbs and those of plug-ins, which are imported when they are called."""

    above: "VerbGroup | None" = None

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        for below in self.commands.values():
            if isinstance(below, VerbGroup):
                below.above = self

    @property
    def path(self) -> str:
        """The program and the groups below it, `pharoah-provider.leases`."""
        return f"{self.above.path}.{self.name}" if self.above else self.name or ""

    @cached_property
    def _plug_ins(self) -> dict[str, PlugIn]:
        found = plug_ins(self.path)
        return {name: found[name] for name in found.keys() - self.commands.keys()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As in click, with the verbs of plug-ins."""
        return [*super().list_commands(ctx), *sorted(self._plug_ins)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """As in click; of a plug-in's verb, what the help of the group shows."""
        if (own := super().get_command(ctx, cmd_name)) or cmd_name not in self._plug_ins:
            return own
        from rich.markup import escape

        summary = escape(self._plug_ins[cmd_name].summary)
        return TyperCommand(cmd_name, help=summary, rich_help_panel="Plug-ins")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in click, and the verb of a plug-in is imported; of an absent one of ours it says what to install."""
        console, verb = Console(self.path.partition(".")[0] or "pharoah"), args[0]
        is_there = verb in self.commands or verb in self._plug_ins or ctx.resilient_parsing
        if not is_there and (absent := DISTRIBUTIONS.get(f"{self.path}.{verb}")):
            place = f"./plugins/{absent.removeprefix('pharoah-')}"
            missing = f"it is a plug-in, which is not installed; in a clone: pip install {place}"
            console.say_error(f"this verb needs `pip install {absent}`", missing)
            raise typer.Exit(3)  # 2 is what `confirm` says of a slow machine
        name, command, rest = super().resolve_command(ctx, args)
        if name and name not in self.commands:
            with console.failing():
                command = self._plug_ins[name].load(lambda found: _plugged_in(name, found))
        return name, command, rest


class ProgramGroup(VerbGroup):
    """All verbs of a program.

    `start` is shown where no verb is given. `renamed` has old spellings of verbs, one word or more, and the new one of
    each. An old spelling is read as the new one, unless a hidden verb of that name keeps its old options. `order` is
    that of the verbs in the help: groups stand behind the others otherwise. `shared` has the options of
    its verbs that are among `SHARED`, and what each is.
    """

    start: Sequence[str] = ()
    renamed: Mapping[str, str] = MappingProxyType({})
    order: Sequence[str] = ()
    shared: Mapping[str, str] = MappingProxyType({})

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.params[:0] = [_before_the_verb(name, told) for name, told in self.shared.items()]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """As in click; how to install completion is told on one line."""
        params = super().get_params(ctx)
        for option in params:
            if option.name == "show_completion":
                vars(option)["hidden"] = True
            elif option.name == "install_completion":
                vars(option)["help"] = "Install completion for the shell."
        return params

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As in click, in our order."""
        rest = [name for name in super().list_commands(ctx) if name not in self.order]
        return [*(name for name in self.order if name in self.commands), *rest]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As in click; without words it shows how to start."""
        if self.start and not args and not ctx.resilient_parsing:
            screen.show(*self.start)
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in click; an old spelling is read as the new one."""
        return super().resolve_command(ctx, self._renamed(ctx, args))

    def _renamed(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words with an old spelling replaced; a person at a terminal is told the new one."""
        spellings = (" ".join(args[:count]) for count in range(min(len(args), 3), 0, -1))
        old = next((words for words in spellings if words in self.renamed), None)
        if old is None:
            return args
        new = self.renamed[old]
        if screen.has_terminal() and "--json" not in args and not ctx.resilient_parsing:
            screen.say(f"{self.name}: `{old}` is now `{self.name} {new}`")
        return args if old in self.commands else [*new.split(), *args[len(old.split()) :]]


def _before_the_verb(name: str, told: str) -> click.Option:
    """An option of verbs as one of their program, which hands it on."""

    def hand_on(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta.setdefault(_GIVEN, []).extend([name] if is_flag else [name, value])

    is_flag = name == "--json"
    kind = bool if is_flag else str
    return TyperOption(param_decls=[name], type=kind, is_flag=is_flag, help=told, callback=hand_on, expose_value=False)


_GIVEN = f"{__name__}.given"


def _plugged_in(name: str, found: Any) -> click.Command:
    """The verb or group that a plug-in names, as a command."""
    holder = typer.Typer()
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name, cls=Verb)(found)
    return typer.main.get_group(holder).commands[name]


def verbs_of(group: click.Group) -> dict[str, click.Command]:
    """All verbs of a group by name; those of plug-ins are imported."""
    context = click.Context(group)
    found = {name: group.resolve_command(context, [name])[1] for name in group.list_commands(context)}
    return {name: verb for name, verb in found.items() if verb}


class GroupWithDefault(TyperGroup):
    """A command group with a default verb."""

    default: str

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As in click, with the default verb inserted first."""
        return super().parse_args(ctx, self._with_verb(ctx, args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in click, with the default verb inserted first."""
        return super().resolve_command(ctx, self._with_verb(ctx, args))

    def _with_verb(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return args if known else [self.default, *args]


def group(name: str, help: str, cls: type[TyperGroup] | None = None) -> typer.Typer:  # noqa: A002 - as typer calls it
    """A group of verbs under one word, to which plug-ins may add some; `cls` handles a call without a verb."""
    return typer.Typer(
        name=name,
        help=help,
        cls=cls or VerbGroup,
        no_args_is_help=cls is None,
        context_settings=HELP,
        suggest_commands=False,
    )


def add_later(app: typer.Typer, place: str, *, cls: "type[Verb] | None" = None, name: str = "", **more: Any) -> None:
    """Adds a verb whose module is imported when the verb is called, by its place, `package.module.function`.

    Underscores in its name become hyphens, a trailing one is dropped.
    """
    name = name or place.rpartition(".")[2].rstrip("_").replace("_", "-")
    later: Any = partial((cls or Verb).later, place)  # typer calls it as the class
    app.command(name, cls=later, **more)(_root)


def _version(asked: bool) -> None:  # noqa: FBT001 - as click calls it
    if asked:
        from importlib import metadata  # a fifth of what the command line takes to load

        from federation.protocol.versions import PROTOCOL

        screen.show(f"pharoah {metadata.version('pharoah')} (protocol {PROTOCOL})")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of all programs, before the verb."""


class Verb(TyperCommand):
    """A verb: its arguments have help, `-h` works, and errors end it with a message instead of a traceback."""

    failed = 2  # the exit code of an error, wrong options included
    place: str  # while it is not loaded

    def __init__(self, *words: Any, **more: Any) -> None:
        more["context_settings"] = HELP | (more.get("context_settings") or {})
        super().__init__(*words, **more)
        for parameter in self.params:
            if isinstance(parameter, click.Argument):  # click 8.5 drops the help that typer passes
                vars(parameter)["help"] = _annotated_help(self.callback, parameter.name or "")
        if shared := [option for option in self.params if option.opts[0] in SHARED]:
            for option in shared:
                vars(option)["hidden"] = True
            self.epilog = f"Also {', '.join(option.opts[0] for option in shared)}: see the help of the program."

    @classmethod
    def later(cls, place: str, *, name: str, **more: Any) -> "Verb":
        """The verb at `package.module.function`, which is imported for all but its name, its help and where that is."""
        verb = cls.__new__(cls)
        shown = {key: more[key] for key in ("hidden", "rich_help_panel", "rich_markup_mode")}
        vars(verb).update(shown, place=place, name=name, short_help=None, deprecated=False)
        return verb

    def __getattr__(self, name: str) -> Any:
        """What is missing of a verb that was added for later."""
        if name.startswith("__") or "place" not in vars(self):
            raise AttributeError(name)
        module, _, function = self.place.rpartition(".")
        if name == "help":
            return _docstring(module, function)
        info = CommandInfo(self.name, cls=type(self), callback=getattr(import_module(module), function))
        verb = get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=self.rich_markup_mode)
        vars(self).update(vars(verb) | {key: vars(self)[key] for key in ("hidden", "rich_help_panel")})
        del self.place
        return getattr(self, name)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **more: Any
    ) -> click.Context:
        """As in click, with options that stand before the verb; wrong ones end with the verb's own exit code."""
        given = parent.meta.get(_GIVEN, ()) if parent else ()
        with self._ending(parent):
            return super().make_context(info_name, [*given, *args], parent, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb."""
        with self._ending(ctx):
            return super().invoke(ctx)

    @contextmanager
    def _ending(self, context: click.Context | None) -> Iterator[None]:
        root = context.find_root().command if context else self
        with Console(root.name or "pharoah").failing(self.failed):
            try:
                yield
            except click.UsageError as error:
                vars(error)["exit_code"] = self.failed
                raise


class AskingVerb(Verb):
    """A verb whose exit code 2 is an answer; errors end it with 3, unknown."""

    failed = 3


def _docstring(module: str, function: str) -> str:
    """A function's docstring, from the source of its module, which is not imported."""
    spec = find_spec(module)
    source = spec.loader.get_source(module) if spec and isinstance(spec.loader, InspectLoader) else None
    found = re.search(rf'^def {function}\(.*?"""(.*?)"""', source or "", re.DOTALL | re.MULTILINE)
    return inspect.cleandoc(found[1]) if found else ""


def _annotated_help(function: "Callable[..., Any] | None", name: str) -> str:
    annotation = inspect.unwrap(function).__annotations__.get(name) if function else None
    texts = (getattr(info, "help", None) for info in getattr(annotation, "__metadata__", ()))
    return next(filter(None, texts), "")


# ---- what options and arguments may be -------------------------------------------------------------------------------


if TYPE_CHECKING:
    PathType = click.ParamType[Path]
else:
    PathType = click.ParamType  # before click 8.4 it is not generic


class HomeFolder(PathType):
    """A home, or a folder that may become one. Refuses a file, an unreadable folder and the home of another role."""

    name = "folder"

    def __init__(self, role: Role) -> None:
        self.role = role

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The folder."""
        home = Path(value)
        check_home(home, self.role)
        return home


class InputFile(click.Path):
    """An input file; `-` is standard input, stored in a temporary file while the verb runs."""

    name = "file"

    def __init__(self, *, exists: bool = False, folders: bool = False) -> None:
        super().__init__(exists=exists, dir_okay=folders, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The file's path."""
        if str(value) != "-" or ctx is None:
            return super().convert(value, param, ctx)
        if _STDIN in ctx.meta:
            self.fail("standard input can be read only once: use - for one file", param, ctx)
        folder = ctx.find_root().with_resource(tempfile.TemporaryDirectory(prefix="pharoah-"))
        copy = ctx.meta[_STDIN] = Path(folder) / STANDARD_INPUT
        copy.write_bytes(_stdin())
        return copy


_STDIN = f"{__name__}.stdin"


def _stdin() -> bytes:
    stream = sys.stdin
    return stream.buffer.read() if isinstance(stream, io.TextIOWrapper) else stream.read().encode()


# ---- words about a verb ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Console:
    """Prints warnings and errors on stderr, prefixed with the program's name."""

    program: str

    def warn(self, what: str, hint: str = "") -> None:
        """Prints a warning and what to do about it."""
        self._say("warning", what, hint)

    def say_error(self, what: str, hint: str = "") -> None:
        """Prints an error and what to do about it."""
        self._say("error", what, hint)

    @contextmanager
    def failing(self, code: int = 2) -> Iterator[None]:
        """Turns a PharoahError, an OSError or a database error into its text and the exit code."""
        try:
            yield
        except PharoahError as error:
            self.say_error(error.what, error.hint)
            raise typer.Exit(code) from error
        except BrokenPipeError:
            raise  # the reader of the output is gone, and click ends quietly
        except OSError as error:
            where = f": {short(error.filename)}" if isinstance(error.filename, str | Path) else ""
            self.say_error(f"{reason(error)}{where}")
            raise typer.Exit(code) from error
        except sqlite3.DatabaseError as error:
            self.say_error(f"the database cannot be used: {error}", "use another --home, or restore it from a backup")
            raise typer.Exit(code) from error
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if self.program not in BRINGS or missing in OURS:
                raise
            wanted = BRINGS[self.program]
            if (plug_in := missing.replace("_", "-")) in DISTRIBUTIONS.values():
                wanted = plug_in
            elif self.program == "pharoah-tenant" and missing in PAGES:
                wanted = "'pharoah[page]'"
            self.say_error(f"this verb needs `pip install {wanted}`", f"the module {error.name} is not installed")
            raise typer.Exit(code) from error

    def _say(self, kind: str, what: str, hint: str) -> None:
        screen.say_loud(self.program, kind, what, *([f"hint: {hint}"] if hint else []))


def check_new(out: Path | None, *, force: bool) -> None:
    """OutputExists if `out` is a file or a folder that is not empty, unless `force`."""
    if out is not None and not force and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputExists(f"the output exists already: {short(out)}")


class OutputExists(PharoahError):
    """The output exists and would be overwritten."""

    default_hint = "pass another folder, or --force to overwrite it"


def ask_secret(question: str) -> str:
    """A secret that the user types twice, without echo."""
    return str(typer.prompt(question, hide_input=True, confirmation_prompt=True))
