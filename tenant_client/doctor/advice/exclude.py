"""Nodes of a tenant's own earlier leases that its next job had better leave out, for `sbatch --exclude`.

    nodes and context tokens of own leases, bundle, the workload's tokens ─▶ by_bundle ─┐
    open hints of the provider ────────────────────────────────────────────▶ by_hints ──┼─▶ at_most ─▶ nodes
    own failures, only if the owner lets them in ──────────────────────────▶ by_failures┘

- A node has the context of the newest own lease on it that was granted one. Contexts of an earlier epoch say nothing.
- A hint is about the worst node of a lease and does not say which, so all of them are left out: nodes of small leases
  come first.
- `by_bundle` and `by_hints` rest on what the provider itself published or sent; `by_failures` on exact own outcomes,
  which the provider's scheduler then sees (docs/privacy.md).

Not promised: anything about nodes that this tenant never had, or that the rest suffices for the job.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from federation.base.clock import SECONDS_PER_HOUR
from federation.base.hostlist import hostlist
from federation.protocol.bundle import Bundle, PairJudgement
from federation.protocol.causes import CAUSES, Domain
from federation.protocol.check import Check, Checker
from federation.protocol.service_messages import Hint
from tenant_client.doctor.advice.hints import STANDS_H, reason_of, standing
from tenant_client.doctor.records.attempts import Attempt, AttemptState
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.sources.reasons import counted_as

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # what stands in an unquoted $(…) must be nothing to a shell
_BAD = (PairJudgement.WORSE, PairJudgement.SUSPECTED)


@dataclass(frozen=True)
class Placed:
    """An own lease with its tokens by name and the names of its nodes."""

    lease: str
    labels: Mapping[str, str]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Excluded:
    """A node to leave out, and why."""

    node: str
    why: str


def placed_leases(journal: Journal) -> list[Placed]:
    """Own leases whose nodes are known, in order of their beginning."""
    lists = journal.node_lists()
    return [
        Placed(unit.unit, unit.labels, tuple(filter(_NAME.fullmatch, hostlist(lists[unit.unit]))))
        for unit in journal.units()
        if unit.unit in lists
    ]


def by_bundle(placed: Iterable[Placed], bundle: Bundle, ladder: Mapping[str, str]) -> list[Excluded]:
    """Nodes in contexts where this workload is known or suspected to fail more often, the surest first."""
    labels_of = {node: lease.labels for lease in placed if "context" in lease.labels for node in lease.nodes}
    checker, found = Checker(bundle), list[tuple[float, Excluded]]()
    for node, labels in labels_of.items():
        result = checker.check({**labels, **ladder})
        if result.evidence is not None and result.evidence.judgement in _BAD:
            found.append((result.evidence.probability_worse, Excluded(node, _words(result, bundle, labels))))
    return [one for _, one in sorted(found, key=lambda pair: -pair[0])]


def by_hints(placed: Iterable[Placed], hints: Iterable[Hint], now_h: float) -> list[Excluded]:
    """Nodes of leases with an open hint, those of small leases first."""
    open_hints = {str(hint.lease): hint for hint in standing(hints, now_h)}
    hinted = sorted((lease for lease in placed if lease.lease in open_hints), key=lambda lease: len(lease.nodes))
    return [
        Excluded(node, f"hint {open_hints[lease.lease].number}: {reason_of(open_hints[lease.lease])}")
        for lease in hinted
        for node in lease.nodes
    ]


def by_failures(placed: Iterable[Placed], attempts: Iterable[Attempt], now_h: float) -> list[Excluded]:
    """Nodes on which own jobs failed of the infrastructure within the last `STANDS_H` hours, the newest first."""
    nodes_of = {lease.lease: lease.nodes for lease in placed}
    failed = sorted(_failed_since(attempts, now_h - STANDS_H), key=lambda one: -(one.ended_at_s or 0.0))
    found = ((one, _node_of(one, nodes_of.get(one.unit, ()))) for one in failed)
    return [Excluded(node, f"an own job failed there: {one.cause.reason}") for one, node in found if node]


def at_most(found: Iterable[Excluded], most: int) -> list[Excluded]:
    """The first of these nodes, each with its first reason."""
    first: dict[str, Excluded] = {}
    for one in found:
        first.setdefault(one.node, one)
    return list(first.values())[:most]


def _words(result: Check, bundle: Bundle, labels: Mapping[str, str]) -> str:
    name = bundle.names.get(labels.get("context", ""), "")
    return f"{result.word}{f' on {name}' if name else ''}: {result.reason}"


def _failed_since(attempts: Iterable[Attempt], since_h: float) -> Iterator[Attempt]:
    for one in attempts:
        cause = CAUSES.get(counted_as(one.cause.reason, one.cause.domain))
        is_new = (one.ended_at_s or 0.0) / SECONDS_PER_HOUR >= since_h
        if one.state is AttemptState.FAILED and is_new and cause and cause.domain is Domain.INFRASTRUCTURE:
            yield one


def _node_of(attempt: Attempt, nodes: Sequence[str]) -> str:
    """The node that the cause names, or the only one of the lease; "" where neither is known."""
    host = attempt.cause.host.partition(".")[0]
    if not host:
        return nodes[0] if len(nodes) == 1 else ""
    return next((node for node in nodes if node.partition(".")[0] == host), "")
