"""Options of `changes` of both sides: `--may-change`, `--rules`, and the exit code of their verdict."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from federation.base.console import InputFile
from federation.base.visible import short
from federation.protocol.change_rules import BadRules, Rule, RuleVerdict, read_rules

EXIT_CODES: Mapping[RuleVerdict, int] = MappingProxyType(
    {RuleVerdict.HOLDS: 0, RuleVerdict.BROKEN: 1, RuleVerdict.UNKNOWN: 2}
)
Only = Annotated[
    str,
    typer.Option(
        "--may-change",
        "--only",  # its old name; in `show` that picks a section
        help="Nothing but these may have changed: names with commas between, as nccl,driver.",
    ),
]
Rules = Annotated[
    Path | None,
    typer.Option("--rules", click_type=InputFile(), help="TOML file of rules to judge.", show_default=False),
]


def rules_of(only: str, file: Path | None, where: Mapping[str, str] = MappingProxyType({})) -> tuple[Rule, ...]:
    """The rules that the options ask for; BadRules for a file that has none or a wrong one."""
    names = tuple(name.strip() for name in only.split(",") if name.strip())
    text = f"only {', '.join(names)}" if names else "nothing changed"
    if where:
        text = f"{text} where {', '.join(f'{name} = {value}' for name, value in where.items())}"
    asked = [Rule(text, only=names, where=dict(where))] if names or where else []
    return (*asked, *(read_rules(_text(file), short(file)) if file else ()))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadRules(f"{short(file)}: not TOML: {error.reason}", hint="write it as TOML, in UTF-8") from error
