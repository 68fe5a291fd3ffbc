"""Where own runs saw the error codes of GPUs, so that a new one can be judged: hardware, program or driver.

    attempts, their nodes, programs and lines ─▶ pairs of (job, node) by code ─┐
    `patterns helped`, `fix`, `confirm --tell` ─▶ what became of them ─────────┴─ judge ─▶ JudgedLine

A job is what has one structure, else one program. An attempt that ran to its end or failed counts on each of its nodes;
where its code is on one of several nodes and no line says which, it counts on none. A test that failed or passed on a
lease counts as another job on its nodes. Reads the journal alone, and sends nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from federation.base.hostlist import hostlist
from federation.base.sqlite import Connection
from federation.protocol.causes import CAUSES as REASONS_OF_ROUNDS, Domain
from federation.protocol.xid_codes import Cause, code_of, outcome_of
from federation.protocol.xid_judge import ANY_OTHER, NONE, CodeHistory, CodeLine, CodeVerdict, Outcomes, judge
from tenant_client.doctor.advice.own_runs import Run, runs_of
from tenant_client.doctor.records import outcomes as tests_told
from tenant_client.doctor.records.attempts import Attempt, Attempts, AttemptState
from tenant_client.doctor.records.excerpts import Excerpts
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.reasons import counted_as

_COUNT = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.STOPPED)
_TEST = "test of the hardware"
Pairs = Mapping[tuple[str, str], bool]


@dataclass(frozen=True)
class JudgedLine:
    """A piece of evidence. `code` is "", and `hardware_probability` None, where it reports no known code."""

    where: str
    text: str
    reason: str
    role: str
    host: str
    gpu: str
    code: str
    hardware_probability: float | None
    judgement: str


@dataclass(frozen=True)
class OwnCodes:
    """What the journal knows: the job and the nodes of each unit, pairs by code, and what became of errors."""

    jobs: Mapping[str, str]
    nodes: Mapping[str, tuple[str, ...]]
    pairs: Mapping[str, Pairs]
    outcomes: Outcomes

    def history(self, unit: str, host: str) -> dict[str, CodeHistory]:
        """Of each code, as seen from one unit and host; of no unit or an unknown host, what is known without it."""
        if unit not in self.jobs:
            return {}
        node = _node(self.nodes.get(unit, ()), host)
        told = {code: CodeHistory.of(pairs, self.jobs[unit], node) for code, pairs in self.pairs.items()}
        return told if node else {code: CodeHistory(one.job, NONE, NONE) for code, one in told.items()}


NOTHING_OWN = OwnCodes({}, {}, {}, {})


def own_codes(connection: Connection) -> OwnCodes:
    """All of a tenant's journal."""
    journal = Journal(connection)
    attempts = [one for one in Attempts(connection).list() if one.state in _COUNT]
    runs, lists = runs_of(journal), journal.node_lists()
    nodes = {unit: _nodes(run, lists.get(unit, "")) for unit, run in runs.items()}
    codes = {(one.unit, one.attempt): _codes(connection, one) for one in attempts}
    jobs = {unit: repr(run.structure) if run.structure else unit for unit, run in runs.items()}
    seen: dict[str, dict[tuple[str, str], bool]] = {code: {} for code in {ANY_OTHER}.union(*codes.values())}
    for one in attempts:
        found = codes[one.unit, one.attempt]
        for code, pairs in seen.items():
            for node, is_seen in _ran(nodes.get(one.unit, ()), one.cause.host, has_code=code in found):
                pairs[jobs[one.unit], node] = is_seen or pairs.get((jobs[one.unit], node), False)
    for told in tests_told.noted(connection):
        for pairs in seen.values():
            pairs |= {(_TEST, node): told.confirmed for node in nodes.get(told.lease, ())}
    return OwnCodes(jobs, nodes, seen, _outcomes(connection, attempts, codes))


def judged(evidence: Sequence[Evidence], own: OwnCodes = NOTHING_OWN, unit: str = "") -> tuple[JudgedLine, ...]:
    """Each piece of evidence with what it says of the hardware, those without a code too."""
    return tuple(judged_line(one, verdict) for one, verdict in _verdicts(evidence, own, unit))


def judged_attempt(connection: Connection, attempt: Attempt, own: OwnCodes) -> dict[CodeVerdict, Evidence]:
    """What the codes in an attempt's kept lines, else in its cause, come from; nothing for one that succeeded.

    Lines of which the same is said are one.
    """
    cause, excerpt = attempt.cause, Excerpts(connection).of(attempt.unit, attempt.attempt)
    if attempt.state is AttemptState.SUCCEEDED:
        return {}
    lines = [(f"{one.file}, line {one.line}", one.text) for one in excerpt.lines]
    kept = [one for one in lines if code_of(one[1])] or [(cause.place, cause.sentence)]
    evidence = [
        Evidence(cause.reason, Role.ROOT, "", where, 0, text, host=cause.host, gpu=cause.gpu) for where, text in kept
    ]
    found = {verdict.sentence(): (verdict, one) for one, verdict in _verdicts(evidence, own, attempt.unit) if verdict}
    return dict(found.values())


def _verdicts(evidence: Sequence[Evidence], own: OwnCodes, unit: str) -> Iterator[tuple[Evidence, CodeVerdict | None]]:
    host = next((one.host for one in evidence if one.host and code_of(one.text)), "")
    verdicts = judge([CodeLine(one.text, one.gpu) for one in evidence], own.history(unit, host), own.outcomes)
    return zip(evidence, verdicts, strict=True)


def judged_line(one: Evidence, verdict: CodeVerdict | None) -> JudgedLine:
    """A piece of evidence and what its code comes from."""
    told = ("", None, "") if verdict is None else (verdict.code, round(verdict.hardware, 4), verdict.sentence())
    return JudgedLine(one.where, one.text, one.reason, one.role, one.host, one.gpu, *told)


# ---- what the journal holds ------------------------------------------------------------------------------------------


def _nodes(run: Run, node_list: str) -> tuple[str, ...]:
    return tuple(hostlist(node_list or (run.started.hosts if run.started else "")))


def _node(nodes: Sequence[str], host: str) -> str:
    """The node that a host's name means, or the only one; "" where neither is known."""
    short = host.partition(".")[0]
    named = next((node for node in nodes if node.partition(".")[0] == short), "")
    return named or (nodes[0] if len(nodes) == 1 else "")


def _codes(connection: Connection, attempt: Attempt) -> set[str]:
    if attempt.state is AttemptState.SUCCEEDED:
        return set()
    lines = [one.text for one in Excerpts(connection).of(attempt.unit, attempt.attempt).lines]
    return {code_of(line) for line in (attempt.cause.sentence, *lines)} - {""}


def _ran(nodes: Sequence[str], host: str, *, has_code: bool) -> Iterator[tuple[str, bool]]:
    """The nodes on which an attempt counts, and whether the code showed there."""
    where = _node(nodes, host)
    if has_code and not where:
        return
    yield from ((node, has_code and node == where) for node in nodes)


def _outcomes(
    connection: Connection, attempts: Sequence[Attempt], codes: Mapping[tuple[str, int], set[str]]
) -> dict[str, Counter[Cause]]:
    """What owners said, by code: in words of what helped, else by the reason that they gave instead."""
    helped = {(one.lease, one.attempt): outcome_of(one.helped) for one in Incidents(connection).kept() if one.helped}
    found: defaultdict[str, Counter[Cause]] = defaultdict(Counter)
    for one in attempts:
        cause = helped.get((one.unit, one.attempt)) or (_fixed(one) if one.said else None)
        if cause is not None:
            for code in codes[one.unit, one.attempt]:
                found[code][cause] += 1
    return dict(found)


def _fixed(attempt: Attempt) -> Cause | None:
    cause = REASONS_OF_ROUNDS.get(counted_as(attempt.cause.reason, attempt.cause.domain))
    if cause is None:
        return None
    return "hardware" if cause.domain is Domain.INFRASTRUCTURE else "program"
