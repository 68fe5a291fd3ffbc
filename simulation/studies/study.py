"""What studies share: the table that each of them makes, and the options that mean the same in all that have them.

>>> list(Table({"rows": [{"cloud": "standard", "auroc": 0.981}, {"cloud": "regional", "auroc": 1.0}]}).lines())
['cloud     auroc', 'standard  0.981', 'regional  1']
>>> list(Table({"epsilon_1": {"auroc": 0.9}, "epsilon_2": {"auroc": None}}).lines())
['           auroc', 'epsilon_1  0.9', 'epsilon_2  –']
>>> list(Table({"requests": 200_000, "cpu": {"server": 0.5}}).lines())
['requests  200,000', '', 'cpu', 'server  0.5']
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from federation.base.screen import progress as progressing, say
from simulation.run import engines
from simulation.run.engines import Kind

T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")
Figures = dict[str, Any]
ROWS = (list, tuple)
Seed = Annotated[int, typer.Option("--seed", "--first-seed", min=0, help="The first seed; others follow.")]
Seeds = Annotated[int, typer.Option("--seeds", "--clouds", min=1, help="Number of seeds, each with fresh noise.")]
Only = Annotated[list[str] | None, typer.Option("--only", help="Only this part; may be repeated.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes, to test that it runs.")]
ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"  # real data, no part of the repository


@dataclass(frozen=True)
class Table:
    """What a study found: an object, a mapping or rows, with stable keys. `failed`: it should have found another."""

    found: Any
    failed: bool = False

    def lines(self) -> Iterator[str]:
        """The table for people. What lies deeper than a row is in the JSON alone."""
        return _lines(msgspec.to_builtins(self.found, enc_hook=_plain))


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's."""
    return value.item()


def _lines(found: Any) -> Iterator[str]:
    if isinstance(found, ROWS):
        yield from _aligned(found)
        return
    parts: dict[str, Any] = {name: part for name, part in found.items() if isinstance(part, (dict, *ROWS)) and part}
    plain = {name: part for name, part in found.items() if name not in parts}
    if parts and not any(plain.values()) and _are_rows([*parts.values()]):
        yield from _aligned([{"": name, **(part or {})} for name, part in found.items()])
        return
    yield from _columns([[name, _shown(value)] for name, value in plain.items()])
    for name, part in parts.items():
        if len(found) > 1:
            yield from [""] if plain or name != next(iter(parts)) else []
            yield name
        yield from _lines(part)


def _are_rows(parts: Sequence[Any]) -> bool:
    """Whether these are mappings with the same keys, which all are columns."""
    return all(isinstance(part, dict) and part.keys() == parts[0].keys() for part in parts) and all(
        _is_column(name, parts) for name in parts[0]
    )


def _aligned(rows: Sequence[Any]) -> Iterator[str]:
    """Rows with keys as a table; anything else as a line each."""
    if not all(isinstance(row, dict) for row in rows):
        yield from map(_shown, rows)
        return
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if _is_column(name, rows)]
    yield from _columns([names, *([_shown(row.get(name)) for name in names] for row in rows)])


def _is_column(name: str, rows: Sequence[Any]) -> bool:
    values = [row.get(name) for row in rows]
    return not any(isinstance(one, dict) for value in values for one in (value if isinstance(value, ROWS) else [value]))


def _columns(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _shown(value: Any) -> str:
    """One value.

    >>> [_shown(value) for value in (None, True, 12_345, 1234.5678, 0.04567, "text", [1, 2])]
    ['–', 'yes', '12,345', '1,235', '0.04567', 'text', '1 2']
    """
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    if isinstance(value, ROWS):
        return " ".join(map(_shown, value))
    if isinstance(value, int | float):
        return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


# ---- running ---------------------------------------------------------------------------------------------------------


def chosen(only: Collection[str] | None, names: Collection[str]) -> tuple[str, ...]:
    """The parts that were asked for, or all of them."""
    if unknown := [name for name in only or () if name not in names]:
        raise typer.BadParameter(f"{unknown[0]!r} is unknown; there are {', '.join(names)}", param_hint="--only")
    return tuple(only or names)


def figures(only: Collection[str] | None, *of: Callable[[], Figures]) -> Table:
    """A table of figures by name, all of them or those that were asked for."""
    known = {figure.__name__: figure for figure in of}
    found = {}
    for name in chosen(only, known):
        say(f"{name} …")
        found[name] = known[name]()
    return Table(found)


def tracked(steps: Iterable[T], total: int, what: str = "clouds") -> list[T]:
    """All steps, with a bar on stderr."""
    with progressing() as progress:
        return list(progress.track(steps, total=total, description=what))


def by_seed(kind: Kind, work: Callable[[S, R], list[T]], shared: S, items: Sequence[R]) -> list[T]:
    """All that `work` finds of every item, which are seeds, on an engine."""
    with engines.engine(kind) as engine:
        return [one for found in tracked(engine.map(work, shared, items), len(items)) for one in found]


def fastest(work: Callable[[], object], repeats: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of several runs: what the work needs when nothing disturbs it."""
    times = []
    for _ in range(repeats):
        began = clock()
        work()
        times.append(clock() - began)
    return min(times)
