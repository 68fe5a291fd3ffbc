"""JSON Schemas of settings, by which editors complete and check them.

A program writes the one of its settings into its home, where the first line of the file names it: `#:schema ./FILE`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from federation.base.key_files import replace_secret


def schema(kinds: Sequence[type[msgspec.Struct]], sample: str, others: Iterable[str] = ()) -> dict[str, Any]:
    """JSON Schema (2020-12) of a settings file that `kinds` read: a key is described by its comment in `sample`.

    Sections of `others` are somebody else's, and may have any keys.
    """
    _, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    root, *more = (parts.pop(kind.__name__) for kind in kinds)
    for one in more:
        root["properties"] |= one["properties"]
    for name in others:
        root["properties"].setdefault(name, {"type": "object"})
    keys = root["properties"]
    for line in sample.splitlines():
        if header := re.match(r"\[(\w+)\]", line):
            keys = parts[root["properties"][header[1]]["$ref"].rpartition("/")[2]]["properties"]
        elif told := re.match(r"(?:# )?(\w+) = [^#]*# (.+)", line):
            keys[told[1]]["description"] = told[2]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": parts}


def write_schema(home: Path, kind: type[msgspec.Struct], sample: Path, others: Iterable[str] = ()) -> None:
    """Writes beside the settings the schema that the first line of `sample` names; editors alone would miss it."""
    told = json.dumps(schema([kind], sample.read_text(encoding="utf-8"), others), indent=1)
    with suppress(OSError):
        replace_secret(home / f"{sample.stem}.schema.json", told.encode())
