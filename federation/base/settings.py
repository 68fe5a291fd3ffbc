"""Settings of a program: a TOML file, overridden by the environment, read against one frozen type.

A key is known or refused, by name and with the known ones; a value has the type of its field or is refused. Sections
are fields that are structs themselves. The environment overrides a key of a section as `PHAROAH_<SECTION>_<KEY>`, its
value written as in the file (text may go without quotes); a name that begins like a section and is no key is refused
too, since a misspelt setting that does nothing is the worst kind. No error shows a value.

    [rounds]
    every = "window"        # or PHAROAH_ROUNDS_EVERY=window
"""

import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from crypto.errors import PharoahError
from federation.protocol.toml_tables import convert, loads

PREFIX = "PHAROAH_"
HOMES = ("PHAROAH_PROVIDER_HOME", "PHAROAH_TRUSTEE_HOME")  # begin like a section, and are options of the command line

S = TypeVar("S", bound=msgspec.Struct)


class BadSettings(PharoahError):
    """The settings cannot be used."""


def load(kind: type[S], path: Path, environ: Mapping[str, str], elsewhere: Callable[[], Collection[str]] = tuple) -> S:
    """The settings in the file at `path`, overridden by `environ`; BadSettings names the file or variable and the key.

    `kind` forbids unknown fields, unless somebody else reads the rest of the file. A file that is not there counts as
    empty. Sections that `kind` lacks and `elsewhere` names are left to others; it is asked only if there are such.
    """
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, ValueError) as error:
        raise BadSettings(f"{path}: {error}", hint="write it as TOML") from error
    table = loads(text, path, BadSettings)
    if table.keys() - set(kind.__struct_fields__):
        others = set(elsewhere()) - set(kind.__struct_fields__)
        table = {section: keys for section, keys in table.items() if section not in others}
    settings = convert(table, kind, path, BadSettings)
    overrides = _overrides(kind, environ)
    if not overrides:
        return settings
    merged = {**table}
    for section, keys in overrides.items():
        merged[section] = {**merged.get(section, {}), **keys}
    return convert(merged, kind, "the environment", BadSettings)


def _sections(kind: type[msgspec.Struct]) -> dict[str, tuple[str, ...]]:
    return {field.name: field.type.__struct_fields__ for field in msgspec.structs.fields(kind)}


def _overrides(kind: type[msgspec.Struct], environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for section, keys in _sections(kind).items():
        start = f"{PREFIX}{section.upper()}_"
        for name, value in environ.items():
            if not name.startswith(start) or name in HOMES:
                continue
            key = name.removeprefix(start).lower()
            if key not in keys:
                known = ", ".join(start + known.upper() for known in keys)
                raise BadSettings(f"unknown variable {name}", hint=f"known variables: {known}")
            found.setdefault(section, {})[key] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
