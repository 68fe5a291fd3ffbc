"""Who waits for whom? From the ranks' flight recorders, as a dump after a failure is judged, or else from their marks.

>>> from tenant_client.doctor.run.syndromes.views import RankView
>>> marks({0: RankView(0, "wait", 0.0, 5, 9), 1: RankView(1, "outside", 0.0, 5, 8)}).missing
frozenset({1})
"""

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from federation.base.reading import CappedReader, SourceError
from tenant_client.doctor.run.syndromes.views import Views, Waiting

if TYPE_CHECKING:
    from tenant_client.doctor.sources.flight_recorder import Dump

_INSIDE = ("wait", "backward")  # in backward, gradients are averaged
_MOST_BYTES = 64 << 20


def of(views: Views, answers: Mapping[int, bytes]) -> Waiting | None:
    """What the records of the ranks say; the marks, where no rank has any; None where nobody waits."""
    found = records(views, answers) if any(answers.values()) else marks(views)
    return found if found.missing or found.differing or found.stuck else None


def records(views: Views, answers: Mapping[int, bytes]) -> Waiting:
    """From flight recorders. A local rank that did not answer is missing, unless its marks say that it waits."""
    from tenant_client.doctor.diagnosis.collectives import CollectiveCause, CollectiveVerdict, analyse
    from tenant_client.doctor.diagnosis.collectives.findings import NO_MAJORITY

    found = analyse(_dumps(answers))
    if not found.groups or found.verdict is CollectiveVerdict.CLEAN:
        return Waiting()
    by_cause = {cause: frozenset(one.rank for one in found.accused if one.cause is cause) for cause in CollectiveCause}
    waiting = frozenset(rank for one in found.groups for rank in one.waiting)
    unlike = [one for one in found.groups if one.verdict is CollectiveVerdict.MISMATCH]
    tied = frozenset(rank for one in unlike if not one.ranks for rank in one.waiting)
    what = unlike[0].reason.removeprefix(f"{NO_MAJORITY}: ") if unlike else found.groups[0].call.operation
    silent = frozenset(rank for rank in found.no_dump if rank in views and views[rank].place not in _INSIDE)
    missing = by_cause[CollectiveCause.HOST] | silent
    unfinished = by_cause[CollectiveCause.DEVICE]
    return Waiting(
        missing=missing,
        differing=by_cause[CollectiveCause.PROGRAM] or tied,
        stuck=frozenset() if missing else waiting | unfinished,
        unfinished=unfinished,
        waiting=waiting - missing,
        call=f"{what} ({found.groups[0].call.where})",
    )


def marks(views: Views) -> Waiting:
    """From where the ranks say that they are: all that do not wait are missing."""
    waiting = frozenset(rank for rank, one in views.items() if one.place == "wait")
    inside = frozenset(rank for rank, one in views.items() if one.place in _INSIDE)
    missing = frozenset(views) - inside
    return Waiting(
        missing=missing if inside else frozenset(), waiting=waiting, stuck=frozenset() if missing else inside
    )


def _dumps(answers: Mapping[int, bytes]) -> list["Dump"]:
    from tenant_client.doctor.sources.flight_recorder import read_dump

    dumps = []
    for rank, data in answers.items():
        try:
            dumps.append(replace(read_dump(CappedReader(io.BytesIO(data), f"_dump_{rank}", _MOST_BYTES)), rank=rank))
        except SourceError:
            continue
    return dumps
