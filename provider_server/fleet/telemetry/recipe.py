"""A recipe of data: which metrics are worth reading, and how often they need to be scraped. See docs/nodes.md.

    version = 1

    [metrics.xid]
    interval_s = 15
    why = "failures are read from it"

Metrics are those of `metrics.toml`. What is not in a recipe is not asked for; that is no silence of a node. A recipe
without the metrics that failures are read from is refused: a fleet that never fails would be what it shows.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from federation.protocol.toml_tables import BadTable, convert, loads
from provider_server.fleet.telemetry.catalogue import METRICS, failing

FAILURES = frozenset({"xid", "row_remap_failure"})  # a recipe without one of these is a mistake


class Ingredient(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a metric is to be scraped, what for, and what it foretold where it was judged."""

    interval_s: Annotated[int, Meta(ge=1, le=3600)]
    why: Annotated[str, Meta(max_length=200)] = ""
    worth: Annotated[str, Meta(max_length=200)] = ""


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recipe as a TOML file."""

    version: Literal[1]
    metrics: dict[str, Ingredient]


@dataclass(frozen=True)
class Recipe:
    """Metrics by name."""

    metrics: dict[str, Ingredient]

    def __post_init__(self) -> None:
        if unknown := sorted(self.metrics.keys() - METRICS.keys()):
            raise BadTable(f"a recipe names unknown metrics: {', '.join(unknown)}", hint="metrics.toml lists them")
        if missing := sorted(FAILURES - self.metrics.keys()):
            raise BadTable(
                f"a recipe has no {' and no '.join(missing)}, which failures are read from",
                hint="let `pharoah-provider nodes recipe --out` write it",
            )

    @property
    def names(self) -> frozenset[str]:
        """The metrics to ask for: these, and all that failures are read from."""
        return frozenset({*self.metrics, *failing()})

    def toml(self) -> str:
        """As `load` reads it."""
        parts = [
            f"\n[metrics.{name}]\ninterval_s = {one.interval_s}\nwhy = {_text(one.why)}\n"
            + (f"worth = {_text(one.worth)}\n" if one.worth else "")
            for name, one in self.metrics.items()
        ]
        return "version = 1\n" + "".join(parts)


def _text(value: str) -> str:
    return msgspec.json.encode(value).decode()


def load(file: Path) -> Recipe:
    """Reads a recipe; BadTable where it is none."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTable(f"{file}: cannot be read: {type(error).__name__}", hint="name a recipe in TOML") from error
    return Recipe(convert(loads(text, file), File, file).metrics)
