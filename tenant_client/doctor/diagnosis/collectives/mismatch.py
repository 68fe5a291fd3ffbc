"""Do the ranks of a group call the same? Sizes, types and kinds of each call compared over its ranks.

A vote names the ranks that deviate: calls that are wrong by themselves have none, and a tie accuses nobody. Only the
first call that differs counts, as the later ones follow from it.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tenant_client.doctor.diagnosis.collectives.findings import (
    NO_MAJORITY,
    SHOWN,
    CollectiveVerdict,
    GroupFinding,
    listed,
)
from tenant_client.doctor.diagnosis.collectives.merge import Job, Rows
from tenant_client.doctor.sources.flight_recorder import Operation, Positions

NEEDS_ALL = re.compile(r"(?:^|[ +])_?(all_?reduce|all_?gather|reduce_scatter|all_?to_?all|barrier)")
_ALL_TO_ALL = re.compile(r"_?all_?to_?all")


class Terms(NamedTuple):
    """What must be the same on every rank of a group, None where ranks may differ, and what is wrong by itself."""

    kind: str
    inputs: tuple[tuple[int, ...], tuple[str, ...]] | None  # elements of each tensor, types
    outputs: tuple[tuple[int, ...], tuple[str, ...]] | None
    fault: str  # "" if nothing


def mismatches(job: Job, group: int, rows: Rows) -> Iterator[GroupFinding]:
    """The first call in the group that is not the same on all ranks."""
    size = len(job.members[group])
    used, inverse = np.unique(job.operation[rows], return_inverse=True)
    operations = [job.operations[one] for one in used]
    begins = np.flatnonzero(np.append(True, np.diff(job.seq[rows]) != 0))
    odd = _unlike(operations, inverse, begins, size) | _unequal_sums(operations, inverse, begins, size)
    if odd.any():
        seq = job.seq[rows[begins[np.argmax(odd)]]]
        yield _vote(job, rows[job.seq[rows] == seq], size)


def _unlike(operations: list[Operation], inverse: Rows, begins: Rows, size: int) -> NDArray[np.bool_]:
    """By call, whether its rows (`operations[inverse]`, a call from each of `begins`) differ or one has a fault."""
    terms, keys = [_terms(operation, size) for operation in operations], Positions()
    key = np.array([keys[one] for one in terms])[inverse]
    faulty = np.array([bool(one.fault) for one in terms])[inverse]
    differ = np.minimum.reduceat(key, begins) != np.maximum.reduceat(key, begins)
    return np.asarray(differ | np.logical_or.reduceat(faulty, begins), bool)


def _unequal_sums(operations: list[Operation], inverse: Rows, begins: Rows, size: int) -> NDArray[np.bool_]:
    """all_to_all moves elements: what the ranks put in together is what they take out, if all of them are seen."""
    surplus = [_surplus(one) for one in operations]
    counted = np.array([one is not None for one in surplus], np.int64)
    whole = np.add.reduceat(counted[inverse], begins) == size
    uneven = np.add.reduceat(np.array([one or 0 for one in surplus])[inverse], begins) != 0
    return np.asarray(whole & uneven, bool)


def _surplus(operation: Operation) -> int | None:
    """Elements put in beyond those taken out, None but for all_to_all."""
    if not _ALL_TO_ALL.match(operation.kind):
        return None
    return sum(map(prod, operation.input_sizes)) - sum(map(prod, operation.output_sizes))


def _terms(operation: Operation, size: int) -> Terms:
    """Roots have more than the others in broadcast, reduce, scatter and gather; all_to_all may be uneven."""
    name = operation.kind.strip("_")
    inputs, outputs = (tuple(map(prod, sizes)) for sizes in (operation.input_sizes, operation.output_sizes))
    fault = _fault(operation, name, sum(inputs), sum(outputs), size)
    if _ALL_TO_ALL.match(name):
        return Terms(operation.kind, ((), operation.input_types), None, fault)
    compared_in = None if name.startswith(("scatter", "broadcast")) else (inputs, operation.input_types)
    compared_out = None if name.startswith(("gather", "reduce_oop")) else (outputs, operation.output_types)
    return Terms(operation.kind, compared_in, compared_out, fault)


def _fault(operation: Operation, name: str, put_in: int, taken_out: int, size: int) -> str:
    if not operation.input_sizes or not operation.output_sizes:
        return ""
    rules = {r"all_?reduce": (1, 1), r"all_?gather": (size, 1), r"reduce_scatter": (1, size)}
    for pattern, (times_in, times_out) in rules.items():
        if re.match(pattern, name) and put_in * times_in != taken_out * times_out:
            return f"{put_in} elements in and {taken_out} out do not fit {size} ranks"
    if NEEDS_ALL.match(name) and set(operation.input_types) != set(operation.output_types):
        return "types in and out differ"
    return ""


def _vote(job: Job, rows: Rows, size: int) -> GroupFinding:
    """Who deviates from what most ranks call."""
    calls: dict[Terms, list[int]] = defaultdict(list)
    for row in rows.tolist():
        calls[_terms(job.operations[job.operation[row]], size)].append(row)
    most = _majority(calls)
    if most is None:
        texts = "; ".join(shown(job, these) for these in calls.values())
        return job.finding(CollectiveVerdict.MISMATCH, rows[0], (), f"{_undecided(calls)}: {texts}")
    odd = [(terms, these) for terms, these in calls.items() if terms != most]
    ranks = [int(job.rank[row]) for _, these in odd for row in these]
    texts = "; ".join(shown(job, these) + (f" ({terms.fault})" if terms.fault else "") for terms, these in odd[:SHOWN])
    return job.finding(CollectiveVerdict.MISMATCH, odd[0][1][0], ranks, f"{texts}, but {shown(job, calls[most])}")


def _majority(calls: Mapping[Terms, Sequence[int]]) -> Terms | None:
    """The faultless call of the most ranks; None if none has most or there is no other call."""
    sound = sorted((terms for terms in calls if not terms.fault), key=lambda terms: -len(calls[terms]))
    tied = len(sound) > 1 and len(calls[sound[0]]) == len(calls[sound[1]])
    return None if len(calls) == 1 or tied or not sound else sound[0]


def _undecided(calls: Mapping[Terms, Sequence[int]]) -> str:
    if len(calls) > 1:
        return NO_MAJORITY
    return next(iter(calls)).fault or "the elements in and out do not add up"


def shown(job: Job, rows: list[int]) -> str:
    """The ranks of `rows` and what they call, which is the same."""
    call = job.operations[job.operation[rows[0]]]
    sizes = f"{_sizes(call.input_sizes)} -> {_sizes(call.output_sizes)}"
    types = "/".join(dict.fromkeys(call.input_types + call.output_types))
    return f"{listed([int(job.rank[row]) for row in rows])}: {call.kind} {sizes} {types}".rstrip()


def _sizes(sizes: tuple[tuple[int, ...], ...]) -> str:
    text = ", ".join("×".join(map(str, size)) or "scalar" for size in sizes[:3])
    return f"[{text}{', …' if len(sizes) > 3 else ''}]"
