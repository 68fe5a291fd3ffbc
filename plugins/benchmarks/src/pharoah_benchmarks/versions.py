"""What an environment changes in the jobs of the catalogue: what moved, by how much, and which environments are alike.

Seen are operators and how long they take, and no code. Two environments are compared job by job, over all runs of each
on one node:

- *Exactly*: outcomes, structure, and calls of an operator in a step, which differ if no run of one has what a run of
  the other has; calls that vary from run to run have to lie apart.
- *By chance*: seconds of a step, memory, and each operator's own time. Medians of runs are held against how much runs
  of one environment differ, as in the middle one of them; nothing counts as steadier than half of all quantities are.
  What slows a whole run down (another program, a warm machine) is taken out of its operators, but not out of its steps.
  All that is compared of two environments is one family: identical ones are told apart in one of twenty cases at most.

A change of time counts from `MATTERS` of a step on. Environments are alike in a job if nothing moved between them but
views: operators that compute nothing (`VIEWS`).

Not promised: causes, nor to see what is below noise and `MATTERS`. With one run of each, no time is compared.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from statistics import fmean, median
from typing import NamedTuple

from scipy.stats import t as student

from pharoah_benchmarks.run import Ran
from provider_server.fleet.learning.benchmark_jobs import OK

LEAST = 0.01  # of a step: an operator that never takes so long is not compared in time
MATTERS = 0.005
FALSE_SPLITS = 0.05
LEAST_NOISE = 0.005  # standard deviation of a logarithm
STEP, MEMORY = "step", "memory"
# they name, shape or make room for numbers
VIEWS = frozenset(
    {
        *("aten::alias", "aten::as_strided", "aten::contiguous", "aten::detach", "aten::empty", "aten::empty_like"),
        *("aten::empty_strided", "aten::expand", "aten::expand_as", "aten::flatten", "aten::narrow", "aten::permute"),
        *("aten::reshape", "aten::resize_", "aten::resolve_conj", "aten::resolve_neg", "aten::result_type"),
        *("aten::select", "aten::slice", "aten::squeeze", "aten::t", "aten::to", "aten::transpose", "aten::type_as"),
        *("aten::unsqueeze", "aten::view", "aten::view_as", "aten::_reshape_alias", "aten::_unsafe_view"),
    }
)

Groups = tuple[tuple[str, ...], ...]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Move:
    """What differs in a job: `before` and `after` are words, calls in a step, seconds or bytes.

    `weight` orders moves: the share of a step that it changes, and more for what is no number.
    """

    job: str
    what: str
    kind: str
    before: float | str
    after: float | str
    weight: float

    @property
    def differs(self) -> bool:
        """Whether it is more than a matter of views."""
        return self.what not in VIEWS


@dataclass(frozen=True)
class Compared:
    """Two environments, and what moved from one to the other: first what is likeliest to matter."""

    before: str
    after: str
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Report:
    """Environments by version, neighbours compared, and those that are alike: by job, and in all jobs."""

    versions: Mapping[str, Mapping[str, str]]
    runs: Mapping[str, int]
    compared: tuple[Compared, ...]
    alike_in: Mapping[str, Groups]
    alike: Groups


class _Key(NamedTuple):
    job: str
    size: str
    precision: str
    ranks: int
    node: str


def report(runs: Sequence[Ran]) -> Report:
    """All environments that these runs had, by the Pythons that ran them."""
    versions = {one.python: one.versions for one in runs}
    order = sorted(versions, key=lambda python: (_number(versions[python].get("torch", "")), python))
    jobs = _by_job(runs)
    moves = {(one, other): _moves(jobs, one, other) for one, other in combinations(order, 2)}
    return Report(
        versions={python: versions[python] for python in order},
        runs={python: sum(one.python == python for one in runs) for python in order},
        compared=tuple(Compared(*pair, moves[pair]) for pair in pairwise(order)),
        alike_in={
            name: _groups(
                [python for python in order if any(python in one.runs for one in jobs if one.name == name)],
                {pair for pair, moved in moves.items() if any(move.job == name and move.differs for move in moved)},
            )
            for name in dict.fromkeys(one.name for one in jobs)
        },
        alike=_groups(order, {pair for pair, moved in moves.items() if any(move.differs for move in moved)}),
    )


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.partition("+")[0].split("."))


def _groups(order: Sequence[str], differing: set[Pair]) -> Groups:
    """Each joins the first group in which it differs from nobody."""
    groups: list[tuple[str, ...]] = []
    for own in order:
        place = next((at for at, group in enumerate(groups) if not any((one, own) in differing for one in group)), None)
        if place is None:
            groups.append((own,))
        else:
            groups[place] += (own,)
    return tuple(groups)


def _by_job(runs: Sequence[Ran]) -> "list[_Job]":
    found: dict[_Key, dict[str, list[Ran]]] = {}
    for one in runs:
        key = _Key(one.job, one.size, one.precision, one.ranks, one.node)
        found.setdefault(key, {}).setdefault(one.python, []).append(one)
    return [_Job.of(key.job, runs) for key, runs in found.items()]


def _moves(jobs: "Sequence[_Job]", before: str, after: str) -> tuple[Move, ...]:
    both = [job for job in jobs if before in job.runs and after in job.runs]
    family = sum(len(job.noise) for job in both)
    found = [move for job in both for move in (*job.exactly(before, after), *job.by_chance(before, after, family))]
    return tuple(sorted(found, key=lambda one: (not one.differs, -one.weight, one.job, one.what)))


# ---- one job ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """The runs of a job by environment; logarithms of what varies by chance, and the standard deviations of these."""

    name: str
    runs: Mapping[str, Sequence[Ran]]
    values: Mapping[str, Sequence[Mapping[str, float]]] = field(repr=False)
    noise: Mapping[str, float]

    @classmethod
    def of(cls, name: str, runs: Mapping[str, Sequence[Ran]]) -> "_Job":
        times = {python: [_times(ran) for ran in own if ran.outcome == OK] for python, own in runs.items()}
        everything = [one for own in times.values() for one in own]
        names = set().union(*everything)
        usual = {what: median([one[what] for one in everything if what in one]) for what in names}
        values = {python: [_undisturbed(one, usual) for one in own] for python, own in times.items()}
        return cls(name, runs, values, _noise(values))

    def exactly(self, before: str, after: str) -> Iterator[Move]:
        """What no run of the one has in common with a run of the other."""
        one, other = self.runs[before], self.runs[after]
        yield from _disjoint(self.name, "outcome", one, other, lambda ran: ran.outcome)
        yield from _disjoint(self.name, "structure", one, other, _structure_of)
        for what in sorted(set().union(*(ran.operators for ran in (*one, *other)))):
            calls, more = ([_calls(ran, what) for ran in own if ran.operators] for own in (one, other))
            if calls and more and (max(calls) < min(more) or max(more) < min(calls)):
                weight = max(median([_share(ran, what) for ran in own if ran.operators]) for own in (one, other))
                yield Move(self.name, what, "calls", median(calls), median(more), weight)

    def by_chance(self, before: str, after: str, family: int) -> Iterator[Move]:
        """What differs by more than noise does in `FALSE_SPLITS` of such families, and by enough to matter."""
        one, other = self.values[before], self.values[after]
        freedom = sum(max(len(own) - 1, 0) for own in self.values.values()) // 2  # noise is of the middle one
        if not (one and other and freedom):
            return
        reach = student.isf(FALSE_SPLITS / (2 * family), freedom)
        error = math.sqrt(math.pi / 2 * (1 / len(one) + 1 / len(other)))  # of a difference of medians, over the noise
        for what, sd in sorted(self.noise.items()):
            own, others = ([run[what] for run in runs if what in run] for runs in (one, other))
            if own and others and self._same_calls(before, after, what):
                apart = median(others) - median(own)
                weight = abs(math.expm1(apart)) * max(self._share(python, what) for python in (before, after))
                if abs(apart) > reach * error * sd and weight >= MATTERS:
                    was, now = (math.exp(median(of)) for of in (own, others))
                    yield Move(self.name, what, "memory" if what == MEMORY else "time", was, now, weight)

    def _same_calls(self, before: str, after: str, what: str) -> bool:
        one, other = ({_calls(ran, what) for ran in self.runs[python]} for python in (before, after))
        return not one.isdisjoint(other)

    def _share(self, python: str, what: str) -> float:
        return 1.0 if what in (STEP, MEMORY) else median(_share(ran, what) for ran in self.runs[python])


def _times(ran: Ran) -> dict[str, float]:
    """Logarithms of seconds and bytes."""
    own = {what: own_us / 1e6 for what, (_calls, own_us) in ran.operators.items() if _share(ran, what) >= LEAST}
    found = {STEP: ran.seconds_per_step, MEMORY: ran.memory_bytes, **own}
    return {what: math.log(value) for what, value in found.items() if value}


def _undisturbed(times: Mapping[str, float], usual: Mapping[str, float]) -> dict[str, float]:
    """Without what all operators of a run have in common."""
    operators = times.keys() - {STEP, MEMORY}
    common = median(times[what] - usual[what] for what in operators) if operators else 0.0
    return {what: value - common if what in operators else value for what, value in times.items()}


def _noise(values: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Of the environment in the middle, from differences of its runs; what is seen in no two runs has none."""
    sds: dict[str, list[float]] = {}
    for own in values.values():
        apart: dict[str, list[float]] = {}
        for one, other in combinations(own, 2):
            for what in one.keys() & other.keys():
                apart.setdefault(what, []).append((one[what] - other[what]) ** 2)
        for what, squares in apart.items():
            sds.setdefault(what, []).append(math.sqrt(fmean(squares) / 2.0))
    middle = {what: median(own) for what, own in sds.items()}
    usual = median(middle.values()) if middle else 0.0
    return {what: max(sd, usual, LEAST_NOISE) for what, sd in middle.items()}


def _disjoint(
    job: str, kind: str, one: Sequence[Ran], other: Sequence[Ran], told: Callable[[Ran], str]
) -> Iterator[Move]:
    before, after = ({told(ran) for ran in runs} - {""} for runs in (one, other))
    if before and after and before.isdisjoint(after):
        yield Move(job, kind, kind, ", ".join(sorted(before)), ", ".join(sorted(after)), math.inf)


def _structure_of(ran: Ran) -> str:
    return "; ".join(f"{name} {'×'.join(map(str, sizes))}".strip() for name, sizes in sorted(ran.structure))


def _calls(ran: Ran, what: str) -> float:
    return ran.operators.get(what, (0.0, 0.0))[0]


def _share(ran: Ran, what: str) -> float:
    """Of a step's operators, the time that one takes."""
    total = sum(own_us for _calls, own_us in ran.operators.values())
    return ran.operators[what][1] / total if what in ran.operators and total else 0.0
