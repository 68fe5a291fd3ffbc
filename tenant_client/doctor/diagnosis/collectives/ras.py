"""Which rank hung, from answers of NCCL's RAS? The ranks' counts of launched collectives are compared per communicator.

- A process that does not answer RAS is **missing**; one answer shows that.
- Ranks that launched fewest are **missing**, ranks that launched others than most of theirs are a **mismatch**, and if
  all launched the same, none more and no rank is named, it is the **network** (or a job that calls nothing just then).

A healthy job's counts differ too, for a moment. So these three need two answers, `APART_S` or more apart, between which
no rank of the communicator launched anything anywhere; with one answer they are undecided, and one rank behind, or an
eighth of them at most, is a symptom that names it. Whoever waits elsewhere for a named rank is not named, as with
flight recorder dumps (`root_cause`).

Ranks are those of the communicator that holds all GPUs of the answer. Where there is none, GPUs are numbered by host
and process, and only host, process and device are told.

Does not see collectives of captured graphs, sends and receives: NCCL does not count them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tenant_client.doctor.diagnosis.collectives.findings import (
    CAUSES,
    SHOWN,
    Call,
    CollectiveVerdict,
    GroupFinding,
)
from tenant_client.doctor.diagnosis.collectives.root_cause import ends
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.flight_recorder import Group
from tenant_client.doctor.sources.nccl_ras import SOURCE, Answer, Communicator, MissingRank, Rank

APART_S = 60.0
_IN_PROGRESS, _FINE = 7, (0, 7)
_ERRORS = {
    1: ("runtime_error", "ncclUnhandledCudaError"),
    2: ("network_error", "ncclSystemError"),
    3: ("runtime_error", "ncclInternalError"),
    4: ("runtime_error", "ncclInvalidArgument"),
    5: ("runtime_error", "ncclInvalidUsage"),
    6: ("peer_lost", "ncclRemoteError"),
}
_Key = tuple[object, ...]
_Counts = tuple[int, ...]


@dataclass(frozen=True)
class Gpu:
    """One GPU of the job; `rank` is None where no communicator holds all of them."""

    host: str
    pid: int
    device: int
    rank: int | None

    def __str__(self) -> str:
        place = f"GPU {self.device}, process {self.pid} on {self.host}"
        return place if self.rank is None else f"rank {self.rank} ({place})"


@dataclass(frozen=True)
class RasFindings:
    """The verdict, what shows each GPU where the trouble begins, and every communicator that does not advance.

    GPUs are numbers of `gpus`; `silent` are those whose process does not answer. `errors` are by GPU, as NCCL's codes.
    """

    verdict: CollectiveVerdict
    accused: Mapping[int, GroupFinding]
    groups: tuple[GroupFinding, ...]
    silent: frozenset[int]
    errors: Mapping[int, int]
    gpus: Mapping[int, Gpu]
    asked_twice: bool
    file: str


def analyse_ras(answers: Sequence[Answer]) -> RasFindings:
    """Who keeps the others waiting, from the newest answer and the latest of those well before it."""
    last = max(answers, key=lambda one: one.at_s)
    job = _Job(last)
    earlier = [one for one in answers if last.at_s - one.at_s >= APART_S and job.shares(one)]
    moved = job.moved_since(max(earlier, key=lambda one: one.at_s)) if earlier else frozenset()
    silent = frozenset(number for comm in last.communicators for number in job.silent(comm))
    found = [one for comm in last.communicators for one in job.findings(comm, moved)]
    culprits = ends(found, job.gpus.keys())
    if earlier and not culprits:
        found += [one for comm in last.communicators for one in job.stalled(comm, moved)]
    firm = sorted(culprits if earlier else culprits & silent)
    accused = {number: next(one for one in found if number in one.ranks) for number in firm}
    verdicts = [one.verdict if earlier else CollectiveVerdict.UNDECIDED for one in found]
    verdict = min(
        [one.verdict for one in accused.values()] or verdicts,
        key=lambda verdict: verdict.order,
        default=CollectiveVerdict.CLEAN,
    )
    return RasFindings(verdict, accused, tuple(found), silent, job.errors(), job.gpus, bool(earlier), last.file)


def ras_evidence(findings: RasFindings) -> list[Evidence]:
    """A root per rank that stands still; a process that does not answer is a symptom: its own log may say why."""
    waiting = [one for one in findings.groups if findings.accused.keys().isdisjoint(one.ranks)]
    return [
        *(_accused(findings, number, one) for number, one in findings.accused.items()),
        *(_symptom(findings, one) for one in waiting[:SHOWN]),
        *(_error(findings.gpus[number], code, findings.file) for number, code in findings.errors.items()),
    ]


def _accused(findings: RasFindings, number: int, one: GroupFinding) -> Evidence:
    gpu, silent = findings.gpus[number], number in findings.silent
    reason, role = ("peer_lost", Role.SYMPTOM) if silent else ("nccl_timeout_error", Role.ROOT)
    text = f"{gpu}: {one.call.operation} of communicator {one.call.group.name}: {one.reason}; {CAUSES[one.verdict]}"
    return Evidence(reason, role, SOURCE, one.file, 0, text, None, gpu.rank, gpu.host, str(gpu.device))


def _symptom(findings: RasFindings, one: GroupFinding) -> Evidence:
    again = "" if findings.asked_twice else f"; one answer may show a moment only: ask again {APART_S:.0f} s later"
    text = f"{one.call.operation} of communicator {one.call.group.name}: {one.reason}{again}"
    few = 0 < len(one.ranks) <= max(1, (len(one.ranks) + len(one.waiting)) // 8)
    if findings.asked_twice or not few or one.verdict is not CollectiveVerdict.MISSING:
        return Evidence("nccl_timeout_error", Role.SYMPTOM, SOURCE, one.file, 0, text)
    late = findings.gpus[one.ranks[0]]
    return Evidence(
        "collective_timeout", Role.SYMPTOM, SOURCE, one.file, 0, text, None, late.rank, late.host, str(late.device)
    )


def _error(gpu: Gpu, code: int, file: str) -> Evidence:
    reason, name = _ERRORS.get(code, ("runtime_error", "no error that NCCL 2.30 knows"))
    text = f"{gpu} reports {name} ({code})"
    return Evidence(reason, Role.SYMPTOM, SOURCE, file, 0, text, None, gpu.rank, gpu.host, str(gpu.device))


class _Job:
    """One answer with a number for each GPU."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._by_name = {(one.hash, one.secondary_hash): one for one in answer.communicators}
        keys = {_key(comm, rank) for comm in answer.communicators for rank in _all(comm)}
        world = next((one for one in answer.communicators if {_key(one, rank) for rank in _all(one)} == keys), None)
        if world is not None and len(_all(world)) == len(keys):
            self._numbers = {_key(world, rank): rank.rank for rank in _all(world)}
        else:
            world = None
            self._numbers = {key: number for number, key in enumerate(sorted(keys, key=repr))}
        self.gpus = {
            (number := self.number(comm, rank)): Gpu(
                rank.host, rank.pid, rank.nvml_dev, None if world is None else number
            )
            for comm in answer.communicators
            for rank in _all(comm)
        }

    def number(self, comm: Communicator, rank: Rank | MissingRank) -> int:
        """The number of the GPU that is this rank."""
        return self._numbers[_key(comm, rank)]

    def shares(self, other: Answer) -> bool:
        """Whether the other answer knows a communicator of this one."""
        return any((one.hash, one.secondary_hash) in self._by_name for one in other.communicators)

    def moved_since(self, other: Answer) -> frozenset[int]:
        """The GPUs that launched something since, or that joined a communicator."""
        before = {(one.hash, one.secondary_hash): _totals(one) for one in other.communicators}
        return frozenset(
            self.number(comm, rank)
            for name, comm in self._by_name.items()
            for rank in comm.ranks
            if before.get(name, {}).get(rank.rank) != sum(rank.collective_counts.values())
        )

    def errors(self) -> dict[int, int]:
        """The error of each GPU that reports one."""
        ranks = [(comm, rank) for comm in self._answer.communicators for rank in comm.ranks]
        codes = {self.number(*one): _error_code(one[1]) for one in ranks if _error_code(one[1])}
        return dict(sorted(codes.items()))

    def silent(self, comm: Communicator) -> list[int]:
        """Those of the communicator whose process does not answer."""
        silent = (one for one in comm.missing_ranks if one.status.unresponsive or one.status.considered_dead)
        return sorted(self.number(comm, one) for one in silent)

    def findings(self, comm: Communicator, moved: frozenset[int]) -> Iterator[GroupFinding]:
        """The ranks that the communicator waits for."""
        silent = self.silent(comm)
        if silent:
            dead = sum(one.status.considered_dead for one in comm.missing_ranks)
            reason = f"no answer from {self._named(silent)}; considered dead: {dead or 'none'}"
            yield self._finding(CollectiveVerdict.MISSING, comm, silent, reason)
        elif self._stands_still(comm, moved):
            yield from self._differing(comm) or self._behind(comm)

    def stalled(self, comm: Communicator, moved: frozenset[int]) -> Iterator[GroupFinding]:
        """The communicator, if all its ranks launched the same, and none launches more."""
        totals = set(_totals(comm).values())
        if self._stands_still(comm, moved) and len(totals) == 1 and totals != {0}:
            reason = f"all {len(comm.ranks)} ranks launched it, and none anything after it for {APART_S:.0f} s"
            yield self._finding(CollectiveVerdict.NETWORK, comm, (), reason)

    def _stands_still(self, comm: Communicator, moved: frozenset[int]) -> bool:
        """Whether it is complete, in use, and no rank of it is known to move."""
        leaving = any(one.status.finalize_called or one.status.destroy_flag for one in comm.ranks)
        joining = any(one.status.init_state == _IN_PROGRESS for one in comm.ranks)
        ready = not leaving and not joining and not comm.missing_ranks and len(comm.ranks) > 1
        return ready and moved.isdisjoint(self.number(comm, one) for one in comm.ranks)

    def _differing(self, comm: Communicator) -> list[GroupFinding]:
        """Ranks whose counts are neither behind nor ahead of what most launched."""
        kinds = _kinds(comm)
        counts = {self.number(comm, one): _counts(kinds, one) for one in comm.ranks}
        most = Counter(counts.values()).most_common(1)[0][0]
        odd = sorted(number for number, one in counts.items() if not (_within(one, most) or _within(most, one)))
        if not odd:
            return []
        named = odd if 2 * len(odd) < len(counts) else []
        reason = f"{self._named(odd)} launched other collectives than the rest{'' if named else '; no majority'}"
        return [self._finding(CollectiveVerdict.MISMATCH, comm, named, reason)]

    def _behind(self, comm: Communicator) -> list[GroupFinding]:
        """The ranks that launched fewest, if others launched more."""
        totals = _totals(comm)
        least, top = min(totals.values()), max(totals.values())
        late = sorted(self.number(comm, one) for one in comm.ranks if totals[one.rank] == least)
        if least == top:
            return []
        ahead = sum(total == top for total in totals.values())
        reason = f"{self._named(late)} launched {least} collectives, {ahead} of {len(totals)} ranks {top}"
        return [self._finding(CollectiveVerdict.MISSING, comm, late, reason)]

    def _finding(
        self, verdict: CollectiveVerdict, comm: Communicator, ranks: Sequence[int], reason: str
    ) -> GroupFinding:
        others = [self.number(comm, one) for one in comm.ranks]
        members = tuple(self.number(comm, one) for one in _all(comm))
        kinds = {kind: {one.collective_counts.get(kind, 0) for one in comm.ranks} for kind in _kinds(comm)}
        unequal = "+".join(kind for kind, counts in kinds.items() if len(counts) > 1)
        top = max(_totals(comm).values(), default=0)
        group = Group(comm.hash, "of NCCL", members)
        call = Call(unequal or "collective", group, top, "launched", "", self._answer.at_s)
        waiting = tuple(sorted(set(others) - set(ranks)))
        excusable = verdict is CollectiveVerdict.MISSING
        return GroupFinding(verdict, call, self._answer.file, tuple(ranks), waiting, reason, excusable)

    def _named(self, numbers: Sequence[int]) -> str:
        more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
        return ", ".join(str(self.gpus[number]) for number in numbers[:SHOWN]) + more


def _key(comm: Communicator, rank: Rank | MissingRank) -> _Key:
    """What makes a GPU the same one in all communicators; only its rank where RAS does not know its process."""
    if rank.pid < 0:
        return comm.hash, comm.secondary_hash, rank.rank
    return rank.host, rank.pid, rank.cuda_dev, rank.nvml_dev


def _all(comm: Communicator) -> tuple[Rank | MissingRank, ...]:
    return (*comm.ranks, *comm.missing_ranks)


def _totals(comm: Communicator) -> dict[int, int]:
    return {one.rank: sum(one.collective_counts.values()) for one in comm.ranks}


def _kinds(comm: Communicator) -> list[str]:
    return sorted({kind for one in comm.ranks for kind in one.collective_counts})


def _counts(kinds: Sequence[str], rank: Rank) -> _Counts:
    return tuple(rank.collective_counts.get(kind, 0) for kind in kinds)


def _within(one: _Counts, other: _Counts) -> bool:
    return all(mine <= others for mine, others in zip(one, other, strict=True))


def _error_code(rank: Rank) -> int:
    return next((code for code in (rank.status.init_state, rank.status.async_error) if code not in _FINE), 0)
