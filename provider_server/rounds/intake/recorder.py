"""Records what happens to leases in the provider's store, one event at a time.

- The same event may come again, and changes nothing: senders repeat what was not confirmed.
- Hours that a release has counted stay counted. An end that is told later than that cuts the hours after them only.
- A lease without a planned end counts as running, for at most `OPEN_H`, until its end is told.
- A lease that has ended does not go on: a job that is requeued gets a lease with another name.
- Its tenant is told of every end, with the hints: when it came, and whether that was earlier than planned.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from sqlalchemy.exc import IntegrityError

from federation.base.hostlist import hostlist
from federation.protocol.service_messages import LeaseChange
from provider_server.fleet.leases import Lease
from provider_server.rounds.intake.lease_events import BadLeases, Begin, Change, End, LeaseEvent, Requeue, hours
from provider_server.rounds.lease_book import LeaseBook
from provider_server.rounds.store.hint_store import EndDraft

if TYPE_CHECKING:
    from provider_server.fleet.learning.hardware import Kept

OPEN_H = 8760.0  # a year
REPAIRS = "repairs.json"  # without them no node is on probation, and what learns takes a second to import
SAME_H = 1e-6
NOBODY: Mapping[str, str] = MappingProxyType({})


class Recorded(StrEnum):
    """What an event was; `KNOWN` if it had been recorded before."""

    BEGUN = "begun"
    CHANGED = "changed"
    ENDED = "ended"
    REQUEUED = "requeued"
    KNOWN = "known"


class LeaseRecorder:
    """Takes events for one provider; `home` has the contexts of its nodes. Threads may share it.

    `contexts` maps lists of hosts to their contexts; a lease all of whose nodes are there has one of these.
    """

    def __init__(self, book: LeaseBook, home: Path, contexts: Mapping[str, str] = NOBODY) -> None:
        self._book = book
        self._home = home
        self._named = {node: context for hosts, context in contexts.items() for node in hostlist(hosts)}

    def take(self, event: LeaseEvent, *, limited: bool = True, suspended_h: float = 0.0) -> Recorded:
        """Records an event; BadLeases, and nothing is recorded, where it contradicts what is known.

        The planned end of a lease that is not `limited` is assumed: nobody is told of it. Hours `suspended_h` were
        taken off an end, to which they belong in what is told.
        """
        if isinstance(event, Begin):
            return self._begin(event)
        lease = self._book.store.lease(event.lease_id)
        if lease is None:
            raise BadLeases("no lease of this name has begun")
        at_h = hours(event.until if isinstance(event, Change) else event.at)
        if at_h < lease.start_h:
            raise BadLeases("it would end before it began")
        counted = min(lease.end_h, self._book.last_end_hour(self._book.now_h()) or 0)
        end_h = max(at_h, counted)
        planned_h = lease.end_h if limited and lease.end_h < lease.start_h + OPEN_H else None
        if isinstance(event, Change):
            told = self._told(lease, LeaseChange.MOVED, at_h, planned_h)
            return self._change(lease, end_h, told if limited else None)
        ended_h = at_h + suspended_h
        told = self._told(lease, _change_of(event, ended_h, planned_h), ended_h, planned_h)
        return self._end(lease, end_h, event, told)

    def _told(self, lease: Lease, change: LeaseChange, end_h: float, planned_h: float | None) -> EndDraft:
        return EndDraft(self._book.now_h(), lease.lease, change, end_h, planned_h)

    def _begin(self, event: Begin) -> Recorded:
        book, tenant = self._book, event.tenant_id
        known = book.store.lease(event.lease_id)
        nodes = event.nodes or len(event.node_names)
        if known is not None:
            if (known.tenant, known.nodes, known.start_h) != (tenant, nodes, event.at_h):
                raise BadLeases("a lease of this name began otherwise")
            return Recorded.KNOWN
        if tenant not in book.directory.by_id:
            raise BadLeases("this tenant is not enrolled")
        if event.at_h < 0:
            raise BadLeases("it began before 1970")
        context, level = event.context, event.level
        if event.node_names:
            context, level = place(self._home, event.node_names, event.at_h, self._named)
        labels = book.context_labels(event.at_h, context, level)
        end_h = event.at_h + OPEN_H if event.until is None else hours(event.until)
        lease = Lease(event.lease_id, tenant, nodes, event.at_h, end_h, labels)
        try:
            book.record_leases([lease], {lease.lease: event.node_names} if event.node_names else {})
        except IntegrityError as error:
            raise BadLeases("a lease of this name was recorded at the same moment") from error
        if event.context:
            book.note_hardware([event.context])
        return Recorded.BEGUN

    def _change(self, lease: Lease, end_h: float, told: EndDraft | None) -> Recorded:
        if self._book.store.ends.came(lease.lease):
            raise BadLeases("this lease has ended")
        if end_h == lease.end_h:
            return Recorded.KNOWN
        self._book.store.ends.change(lease.lease, end_h, told)
        return Recorded.CHANGED

    def _end(self, lease: Lease, end_h: float, event: End, told: EndDraft) -> Recorded:
        if self._book.store.ends.came(lease.lease):
            if end_h == lease.end_h:
                return Recorded.KNOWN
            raise BadLeases("this lease ended at another time")
        requeued = isinstance(event, Requeue)
        try:
            self._book.store.ends.end(lease.lease, end_h, requeued=requeued, told=told)
        except IntegrityError as error:
            raise BadLeases("the end of this lease was recorded at the same moment") from error
        return Recorded.REQUEUED if requeued else Recorded.ENDED


def _change_of(event: End, ended_h: float, planned_h: float | None) -> LeaseChange:
    if isinstance(event, Requeue):
        return LeaseChange.REQUEUED
    is_early = planned_h is not None and ended_h < planned_h - SAME_H
    return LeaseChange.ENDED_EARLY if is_early else LeaseChange.ENDED


def place(home: Path, nodes: Sequence[str], at_h: float, named: Mapping[str, str]) -> tuple[str, int]:
    """Context and level of a job that begins on these nodes; BadLeases for a node that has no context."""
    least = _least_levels(home, nodes, at_h)
    told = [named[node] for node in nodes if node in named]
    if len(told) < len(nodes):
        from provider_server.fleet.learning import hardware

        kept = hardware.load(home)
        if kept is None and named:
            stranger = next(node for node in nodes if node not in named)
            raise BadLeases(f"node {stranger} has no context: name it in [leases] contexts")
        return context_of(kept, nodes, least)
    return max(sorted(set(told)), key=told.count), max(least.values())


def _least_levels(home: Path, nodes: Sequence[str], at_h: float) -> dict[str, int]:
    if not (home / REPAIRS).exists():
        return dict.fromkeys(nodes, 0)
    from provider_server.fleet.learning import on_probation

    probation = on_probation.load(home)
    return {node: probation.level(node, at_h) for node in nodes}


def context_of(kept: "Kept | None", nodes: Sequence[str], least: Mapping[str, int]) -> tuple[str, int]:
    """The same of contexts that are loaded; some nodes may be on probation, with a least level."""
    if kept is None:
        raise BadLeases("nodes have no contexts yet: run `pharoah-provider nodes contexts`")
    try:
        number, level = kept.place(nodes)
    except ValueError as error:
        raise BadLeases(str(error)) from error
    from provider_server.fleet.learning.hardware import label_of

    return label_of(number), max(level, *(least.get(node, 0) for node in nodes))
