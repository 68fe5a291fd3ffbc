"""JSON files of a home that programs write for themselves: each holds one typed value, and is replaced in one step."""

from pathlib import Path
from typing import TypeVar

import msgspec

from crypto.errors import DecodeError
from federation.base.key_files import replace_file

T = TypeVar("T")
M = TypeVar("M")


def load(path: Path, kind: type[T], missing: M, hint: str = "restore it from a copy of the home") -> T | M:
    """The value in a file, `missing` where there is no file; DecodeError for damage."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return missing
    except msgspec.MsgspecError as error:
        raise DecodeError(f"{error}: {path}", hint=hint) from error


def keep(path: Path, value: object, *, indent: int = 1) -> None:
    """Puts a value into a file, whole or not at all; on one line with an `indent` of -1."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(value), indent=indent))
