"""Breaks one check at a time and asks whether a test notices: proof that the suite can fail.

    $ python tests/mutants.py --mutants 30 --seed 1    # a line for each mutant; the exit status is 1 if any survived

A guard is what decides a refusal: the test of an `if` that raises or of a reason (`return "" if … else …`), what was
assigned to a name in it, what a function of the module returns to it; and in verdicts, which decide without raising,
each comparison with a named bound. A mutant moves one bound of a guard by one, either way, checks it on one side only,
or forgets a clause; a guard without bounds and clauses is forgotten as a whole.

The checkout stays as it is: a mutant is a copy of it, in which those tests run that import the module, then those that
import an importer of it. A test has killed a mutant if it fails there and passes in a copy without a mutant; tests that
outlast `--limit` have not. What no test can kill is in `EQUIVALENT`, with the reason, and is never picked.
"""

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import pytest

ROOT = Path(__file__).resolve().parents[1]
VERDICTS, JUDGEMENT = "provider_server/fleet/learning/verdicts.py", "federation/protocol/judgement.py"
PLACES = (
    "crypto/*.py",
    "federation/protocol/*.py",
    "tenant_client/rounds/*.py",
    "provider_server/rounds/*.py",
    VERDICTS,
)
CLOSEST, CLOSE = 2, 8  # files of tests that run before all others: collecting many takes longer than most kills
EQUIVALENT: Mapping[str, str] = {  # a mutant without its line: why no test can tell it from the original
    f"{JUDGEMENT}: false_share <= FALSE_SHARE  ->  false_share < FALSE_SHARE": (
        "1 less a float from 0.5 on is a multiple of 2^-53, which 0.04 is not, and 1 less a smaller one is above 0.04"
    ),
    "provider_server/rounds/schedule.py: start < 0  ->  start < -1": "a start of -1 is refused as no whole week",
}

LEFT_OUT = shutil.ignore_patterns(".venv", ".git", "out", ".*_cache", ".hypothesis")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as the Makefile runs the suite
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider")
FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)  # without its parameters, which may be anything

AT_THE_BOUND = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
ONE_SIDE = {ast.Eq: (ast.LtE, ast.GtE), ast.NotEq: (ast.Lt, ast.Gt)}


@dataclass(frozen=True)
class Mutant:
    """A file with one check changed."""

    path: str
    line: int
    change: str
    source: str

    @property
    def name(self) -> str:
        """The same after lines were added above it."""
        return f"{self.path}: {self.change}"


# ---- which checks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guard:
    """An expression on which a refusal depends, and the value with which it refuses nothing, where that is certain."""

    test: ast.expr
    refuses_nothing: bool | None = None


def guards(tree: ast.Module, *, named_bounds: bool) -> Iterator[Guard]:
    """What decides refusals; with `named_bounds` also every comparison with a constant."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.If) and any(isinstance(step, ast.Raise) for step in node.body):
                yield from (Guard(node.test, refuses_nothing=False), *_behind(node.test, function, functions))
            elif isinstance(node, ast.Return) and isinstance(choice := node.value, ast.IfExp) and _is_reason(choice):
                passes = isinstance(choice.body, ast.Constant)
                yield from (Guard(choice.test, refuses_nothing=passes), *_behind(choice.test, function, functions))
            elif named_bounds and isinstance(node, ast.Compare) and any(map(str.isupper, _names(node))):
                yield Guard(node)


def _is_reason(choice: ast.IfExp) -> bool:
    return any(isinstance(side, ast.Constant) and side.value == "" for side in (choice.body, choice.orelse))


def _names(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


def _behind(test: ast.expr, function: ast.FunctionDef, functions: Sequence[ast.FunctionDef]) -> Iterator[Guard]:
    names = _names(test)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id in names for to in node.targets):
            yield Guard(node.value)
    for called in functions:
        if called.name in names:
            yield from (Guard(node.value) for node in ast.walk(called) if isinstance(node, ast.Return) and node.value)


# ---- how they are broken ------------------------------------------------------------------------------------------


def changes(guard: Guard) -> list[tuple[ast.expr, ast.expr]]:
    """Parts of a guard, each with what may take its place; the whole, where it has neither bounds nor clauses."""
    parts = [node for node in ast.walk(guard.test) if isinstance(node, ast.Compare | ast.BoolOp)]
    found: list[tuple[ast.expr, ast.expr]] = [(part, other) for part in parts for other in _moved_or_forgotten(part)]
    if not found and guard.refuses_nothing is not None:
        found.append((guard.test, ast.Constant(guard.refuses_nothing)))
    return found


def _moved_or_forgotten(part: ast.Compare | ast.BoolOp) -> Iterator[ast.expr]:
    if isinstance(part, ast.BoolOp):
        for forgotten in part.values:
            values = [value for value in part.values if value is not forgotten]
            yield ast.BoolOp(part.op, values) if len(values) > 1 else values[0]
        return
    text = ast.unparse(part)
    counts = re.search(r"\blen\(| \d+$", text) and not re.search(r"\bset\(|\{", text)  # a set is never the longer one
    for place, operator in enumerate(part.ops):
        if other := AT_THE_BOUND.get(type(operator)):
            yield _with(part, place, other)
            yield from _shifted(part, place)
        elif counts:
            yield from (_with(part, place, side) for side in ONE_SIDE.get(type(operator), ()))


def _shifted(part: ast.Compare, place: int) -> Iterator[ast.expr]:
    """The bound at an end of a chain moved by one, to where the other operator does not move it."""
    changed, last = copy.deepcopy(part), place == len(part.ops) - 1
    bound = changed.comparators[-1] if last else changed.left
    if (place > 0 and not last) or re.search(r"\binf\b|\bset\(", ast.unparse(bound)):
        return
    step = 1 if isinstance(part.ops[place], ast.LtE | ast.Gt) is last else -1
    if isinstance(bound, ast.Constant) and isinstance(bound.value, int):
        further: ast.expr = ast.Constant(bound.value + step)
    else:
        further = ast.BinOp(bound, ast.Add() if step > 0 else ast.Sub(), ast.Constant(1))
    if last:
        changed.comparators[-1] = further
    else:
        changed.left = further
    yield changed


def _with(part: ast.Compare, place: int, operator: type[ast.cmpop]) -> ast.Compare:
    changed = copy.deepcopy(part)
    changed.ops[place] = operator()
    return changed


def mutants(path: Path, root: Path = ROOT) -> list[list[Mutant]]:
    """The mutants of a file, guard by guard, each once."""
    source, name = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
    once: set[tuple[int, str]] = set()
    found = []
    for guard in guards(ast.parse(source), named_bounds=name in (VERDICTS, JUDGEMENT)):
        made = [_mutant(name, source, part, other) for part, other in changes(guard)]
        found.append([one for one in made if (one.line, one.change) not in once])
        once |= {(one.line, one.change) for one in made}
    return [one for one in found if one]


def _mutant(path: str, source: str, part: ast.expr, other: ast.expr) -> Mutant:
    lines, after = source.encode().splitlines(keepends=True), ast.unparse(other)
    start, end = (
        sum(map(len, lines[: line - 1])) + column
        for line, column in ((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0))
    )
    text = b"".join(lines)
    changed = text[:start] + f"({after})".encode() + text[end:]
    return Mutant(path, part.lineno, f"{ast.unparse(part)}  ->  {after}", changed.decode())


def pick(number: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """So many mutants, the same for a seed: from each place in turn, each of another guard while there are any."""
    rng = random.Random(seed)
    waiting = [
        _shuffled([one for path in sorted(root.glob(place)) for one in mutants(path, root)], rng) for place in PLACES
    ]
    picked: list[Mutant] = []
    while any(waiting) and len(picked) < number:
        picked += [mutants_left.pop() for mutants_left in waiting if mutants_left]
    return picked[:number]


def _shuffled(by_guard: list[list[Mutant]], rng: random.Random) -> list[Mutant]:
    """One of each guard is at the end, from which they are taken."""
    rng.shuffle(by_guard)
    drawn = [rng.sample(one, len(one)) for one in by_guard]
    in_order = [one for guard in drawn for one in guard[1:]] + [guard[0] for guard in drawn]
    return [one for one in in_order if one.name not in EQUIVALENT]


# ---- who notices --------------------------------------------------------------------------------------------------


def importers(root: Path) -> dict[str, set[str]]:
    """For each module the files that import it, all below `root`."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module), *(f"{node.module}.{name}" for name in names)]
            for name in names:
                found[name].add(path.relative_to(root).as_posix())
    return found


def watchers(path: str, importing: Mapping[str, set[str]]) -> list[list[str]]:
    """Who could notice a change of the file: its own examples, tests that import it, tests of its importers.

    Those come first, in groups of their own, that have its name or import most from it; whole systems come last.
    """
    module, words = _module(path), set(Path(path).stem.split("_"))
    uses = Counter(file for name, files in importing.items() if name.startswith(f"{module}.") for file in files)
    direct = importing.get(module, set())
    indirect = set().union(*(importing.get(_module(one), set()) for one in direct)) - direct
    near, far = (
        sorted(
            (file for file in files if Path(file).name.startswith("test_")),
            key=lambda file: ("/system/" in file, not words & set(Path(file).stem.split("_")), -uses[file], file),
        )
        for files in (direct, indirect)
    )
    return [group for group in ([path, *near[:CLOSEST]], near[CLOSEST:CLOSE], near[CLOSE:], far) if group]


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


@dataclass(frozen=True)
class Fate:
    """The test that killed a mutant, if any did; `in_time` is false where some had no time to."""

    killer: str | None
    in_time: bool = True

    def __str__(self) -> str:
        if self.killer:
            return f"killed by {self.killer}"
        return "SURVIVED" if self.in_time else "SURVIVED, but some tests had no time"


class Workplace:
    """Copies of the checkout below a folder, one without a mutant, and what the tests of each say."""

    def __init__(self, folder: Path, limit_s: float) -> None:
        self._folder, self._limit_s = folder, limit_s
        self._clean = Path(shutil.copytree(ROOT, folder / "clean", ignore=LEFT_OUT))
        self._importing = importers(self._clean)
        self._fails_anyway: set[str] = set()

    def fate(self, mutant: Mutant) -> Fate:
        """Who kills the mutant."""
        in_time = True
        with TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as folder:
            tree = Path(shutil.copytree(self._clean, Path(folder) / "tree"))
            (tree / mutant.path).write_text(mutant.source, encoding="utf-8")
            for tests in watchers(mutant.path, self._importing):
                try:
                    while failed := self._first_failure(tree, tests):
                        if self._run(self._clean, [failed])[0] == pytest.ExitCode.OK:
                            return Fate(failed)
                        self._fails_anyway.add(failed)
                except TimeoutError:
                    in_time = False
        return Fate(None, in_time=in_time)

    def _first_failure(self, tree: Path, tests: Sequence[str]) -> str | None:
        left = [test for test in tests if test not in self._fails_anyway]
        status, said = (
            self._run(tree, left, *(f"--deselect={test}" for test in self._fails_anyway)) if left else (0, "")
        )
        if status is None:
            raise TimeoutError
        if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return None
        failed = FAILED.search(said)
        return failed[1] if failed else left[0]  # where nothing could be imported, pytest names no test

    def _run(self, tree: Path, tests: Sequence[str], *options: str) -> tuple[int | None, str]:
        """The exit status, None for who outlasts the limit, and what was said."""
        environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(tree), "PYTEST_DEBUG_TEMPROOT": str(tree.parent)}
        with TemporaryFile("w+") as said:
            running = subprocess.Popen(
                [*PYTEST, *options, *tests], cwd=tree, env=environment, stdout=said, stderr=said, start_new_session=True
            )
            try:
                status = running.wait(self._limit_s)
            except subprocess.TimeoutExpired:
                status = None
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # and what it started
            running.wait()
            said.seek(0)
            return status, said.read()


# ---- the program --------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    asked = _parser().parse_args(arguments)
    picked = [one for one in pick(asked.mutants, asked.seed) if asked.only in one.name]
    with TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(asked.jobs) as pool:
        fates = []
        for one, fate in zip(picked, pool.map(Workplace(Path(folder), asked.limit).fate, picked), strict=True):
            fates.append(fate)
            sys.stderr.write(f"{one.path}:{one.line}: {one.change}: {fate}\n")
    survived = sum(fate.killer is None for fate in fates)
    if asked.json:
        rows = [
            {"file": one.path, "line": one.line, "change": one.change, "killed_by": fate.killer}
            for one, fate in zip(picked, fates, strict=True)
        ]
        sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    sys.stderr.write(f"mutants of seed {asked.seed}: {len(picked)}, killed: {len(picked) - survived}\n")
    return int(survived > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=30, help="how many (30)")
    parser.add_argument("--seed", type=int, default=1, help="which (1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="of these, those with TEXT in file or change")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (2)")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="for the tests of one (300)")
    parser.add_argument("--json", action="store_true", help="the results also as JSON, on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
