"""Reads TOML files strictly into frozen types.

- Unknown keys are refused (the types forbid unknown fields), and annotations state the type and range of each value.
  Rules across fields are checked in `__post_init__`.
- An error names the file and the key and lists the known keys. It shows no value, which may be a misplaced secret.

    >>> class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ...     least: int = 0
    >>> convert(loads("least = 'a few'", "limits.toml"), Limits, "limits.toml")
    Traceback (most recent call last):
    ...
    federation.protocol.toml_tables.BadTable: limits.toml: least must be a whole number
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from crypto.errors import PharoahError

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
NOTHING: Mapping[str, Any] = MappingProxyType({})


class BadTable(PharoahError):
    """A TOML file has an invalid key or value, or is not TOML."""


class LazyTable(Mapping[K, V]):
    """A table that is loaded on first use, so that importing its module does no I/O."""

    def __init__(self, load: Callable[[], Mapping[K, V]]) -> None:
        self._load = cache(load)

    def __getitem__(self, key: K) -> V:
        return self._load()[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())


def shipped(package: str, file: str) -> str:
    """The text of a file in a package."""
    return resources.files(package).joinpath(file).read_text(encoding="utf-8")


def loads(text: str, where: object, error: type[PharoahError] = BadTable) -> dict[str, Any]:
    """The content of a TOML file before validation; `error` if it is not TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as fault:  # a number of too many digits is a ValueError of another kind
        raise error(f"{where}: not TOML: {fault}", hint="write it as TOML") from fault


def convert(
    table: Mapping[str, Any],
    kind: type[T],
    where: object,
    error: type[PharoahError] = BadTable,
    given: Mapping[str, Any] = NOTHING,
) -> T:
    """A table as an instance of `kind`; `error` names the file `where`, the key and the known keys.

    Fields in `given` have another source; as keys of the table they are refused.
    """
    try:
        if strange := given.keys() & table.keys():
            raise msgspec.ValidationError(f"Object contains unknown field `{min(strange)}`")
        return msgspec.convert({**given, **table}, kind, str_keys=True)
    except msgspec.ValidationError as fault:
        raise error(f"{where}: {_fact(str(fault))}", hint=_known(kind, given)) from fault


def rows(table: Mapping[str, Any], kind: type[T], where: str, key: str, **given: Any) -> list[T]:
    """The tables in a table as rows of `kind`; field `key` is the name of a row, and `given` applies to all rows."""
    return [convert(row, kind, f"{where}: {name}", given={key: name, **given}) for name, row in table.items()]


def _fact(fault: str) -> str:
    """The error of msgspec in plain words."""
    fact, _, path = fault.replace("`", "").partition(" - at ")
    path = path.replace("key in $", "a key of $").replace("$.", "").removeprefix("$")
    if named := re.fullmatch(r"Object (contains unknown|missing required) field (.*)", fact):
        fact = f"{'unknown' if 'unknown' in named[1] else 'missing'} key {named[2]!r}"
        return f"{path}: {fact}" if path else fact
    if fact.startswith("Invalid enum value"):
        fact = "is unknown" if path.startswith("a key of") else "has an unknown value"
    if wanted := re.match(r"Expected (\w+)(?:, got \w+)?", fact):
        fact = f"must be {_WORDS.get(wanted[1], wanted[1])}{fact[wanted.end() :]}"
    return f"{path} {fact}" if path else fact


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a table",
}


def _known(kind: Any, given: Mapping[str, Any]) -> str:
    """The keys of a type, by section if it has sections."""
    if get_origin(kind) is dict:  # of rows
        kind = get_args(kind)[1]
    keys = {field.name: getattr(field.type, "__struct_fields__", ()) for field in msgspec.structs.fields(kind)}
    sections = [f"[{name}] {', '.join(fields)}" for name, fields in keys.items() if fields]
    plain = ", ".join(name for name, fields in keys.items() if not fields and name not in given)
    return f"known keys: {'; '.join([*filter(None, [plain]), *sections])}"
