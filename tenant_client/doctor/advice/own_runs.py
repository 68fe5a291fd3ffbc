"""A tenant's own runs: which of them worked last before a failure, and how they went with a change and without it.

Nothing is sent. Not promised: that runs of one structure do the same; their data may differ.

    >>> always, often = Went(failed_with=3, ran_with=3, ran_without=9), Went(failed_with=3, ran_with=9, ran_without=3)
    >>> always.log_likelihood > often.log_likelihood
    True
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crypto.errors import PharoahError
from federation.base.visible import counted_as
from tenant_client.doctor.advice.moved import versions_of
from tenant_client.doctor.records.attempts import Attempt, AttemptState
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.starts import Started
from tenant_client.doctor.workload.descriptor import Descriptor

_SHARES = tuple((step + 0.5) / 20 for step in range(20))  # of runs that fail, equally probable
_FAILED = (AttemptState.FAILED, AttemptState.STOPPED)


class NothingToCompare(PharoahError):
    """There is no clean run before this one, or nothing is known of what both ran."""

    default_hint = "pass a run that worked with --from; `pharoah-tenant run` describes workloads automatically"


STARTED = frozenset({"command", "code", "package", "environment", "host"})


@dataclass(frozen=True)
class Run:
    """A lease with its labels and, if known, its workload and what its last attempt was started with."""

    unit: str
    labels: Mapping[str, str]
    descriptor: Descriptor | None
    started: Started | None = None

    @property
    def structure(self) -> object:
        """What the model is made of, else the program that was started; None if unknown."""
        if self.descriptor:
            return self.descriptor.structure
        return self.started.program or None if self.started else None

    def state(self, kind: str, name: str) -> object:
        """What a change of this kind is a change of; `name` is of a library or a label."""
        if kind in STARTED:
            return self.started and _of_start(self.started, kind, name)
        if kind == "context" or self.descriptor is None:
            return self.labels.get(name)
        if kind == "version":
            return versions_of(self.descriptor).get(name)
        return getattr(self.descriptor, {"collective": "collectives", "operator": "structure"}.get(kind, kind))


@dataclass(frozen=True)
class Went:
    """How own runs went with a change and without it: how many ran, and how many of them failed as this one."""

    failed_with: int = 0
    ran_with: int = 0
    failed_without: int = 0
    ran_without: int = 0

    @classmethod
    def of(cls, runs: Sequence[tuple[bool, bool]]) -> "Went":
        """Of runs: whether each has the change, and whether it failed so."""
        pairs = [[failed for has, failed in runs if has is wanted] for wanted in (True, False)]
        return cls(*(count for failed in pairs for count in (sum(failed), len(failed))))

    @property
    def ran(self) -> int:
        """How many runs these are."""
        return self.ran_with + self.ran_without

    @property
    def log_likelihood(self) -> float:
        """Of what these runs showed, if the change makes more of them fail: averaged over both unknown shares."""
        with_it = [_log_binomial(self.failed_with, self.ran_with, share) for share in _SHARES]
        without = [_log_binomial(self.failed_without, self.ran_without, share) for share in _SHARES]
        logs = [more + fewer for at, more in enumerate(with_it) for fewer in without[:at]]
        return max(logs) + math.log(math.fsum(math.exp(one - max(logs)) for one in logs) / len(logs))

    def __str__(self) -> str:
        without = f", {self.failed_without} of {self.ran_without} without" if self.ran_without else ""
        return f"failed so: {self.failed_with} of {self.ran_with} runs with it{without}"


def own_runs(attempts: Sequence[Attempt], runs: Mapping[str, Run], after: Run, reason: str) -> list[tuple[Run, bool]]:
    """Every attempt of the same structure as `after` that succeeded or failed, and whether it did for this reason."""
    alike = (one for one in attempts if one.unit in runs and runs[one.unit].structure == after.structure)
    return [(runs[one.unit], _failed_so(one, reason)) for one in alike if _tells(one, reason)]


def that_worked(attempts: Sequence[Attempt], runs: Mapping[str, Run], unit: str) -> list[Run]:
    """Clean runs that ended before the newest attempt of `unit` did, newest last; of the same structure if any is.

    Where runs of that structure have failed for the same reason, they end before these failures began, if any did: one
    that fails now and then may have worked since. Clean is a run that succeeded, and without a hang, slow rank, NaN
    loss or loss spike that still held at its end. NothingToCompare says why there is none.
    """
    until_s = max((one.ended_at_s or math.inf for one in attempts if one.unit == unit), default=math.inf)
    worked = [one for one in attempts if one.state is AttemptState.SUCCEEDED and one.unit != unit and one.unit in runs]
    earlier = [one for one in worked if (one.ended_at_s or 0.0) <= until_s]
    clean = [one for one in sorted(earlier, key=lambda one: one.ended_at_s or 0.0) if _is_clean(one)]
    own = runs[unit].structure
    alike = [one for one in clean if own is not None and runs[one.unit].structure == own]
    if not clean:
        raise NothingToCompare(f"no clean run before {unit}: {_why_none(worked, earlier)}")
    began_s = _began(attempts, runs, unit, until_s)
    before = [one for one in alike if (one.ended_at_s or 0.0) <= began_s]
    return [runs[one.unit] for one in before or alike or clean]


def reason_of(attempts: Sequence[Attempt], unit: str) -> str:
    """Why the newest attempt of `unit` failed, "" if it did not."""
    own = [one for one in attempts if one.unit == unit]
    newest = max(own, key=lambda one: one.ended_at_s or math.inf, default=None)
    return newest.cause.reason if newest and newest.state in _FAILED else ""


def runs_of(journal: Journal) -> dict[str, Run]:
    """Every unit of a journal by its name."""
    known, starts = journal.descriptors(), journal.starts()
    return {
        unit.unit: Run(unit.unit, unit.labels, known.get(unit.unit), starts.get(unit.unit)) for unit in journal.units()
    }


def _of_start(started: Started, kind: str, name: str) -> object:
    if kind == "command":
        return started.command
    if kind == "code":
        return started.commit, tuple(sorted(started.dirty.items()))
    if kind == "host":
        return started.hosts
    return (started.packages if kind == "package" else started.environment).get(name)


def _began(attempts: Sequence[Attempt], runs: Mapping[str, Run], unit: str, until_s: float) -> float:
    """When the failures like `unit`'s began: the end of the one from which on more runs fail so, most probably."""
    reason, own = reason_of(attempts, unit), runs[unit].structure
    alike = [one for one in attempts if one.unit in runs and runs[one.unit].structure == own and _tells(one, reason)]
    ended = sorted((one for one in alike if (one.ended_at_s or 0.0) <= until_s), key=lambda one: one.ended_at_s or 0.0)
    failed = [_failed_so(one, reason) for one in ended]
    splits = {
        at: Went.of([(place >= at, so) for place, so in enumerate(failed)]).log_likelihood
        for at, so in enumerate(failed)
        if so
    }
    return (ended[max(splits, key=lambda at: splits[at])].ended_at_s or until_s) if splits else until_s


def _tells(attempt: Attempt, reason: str) -> bool:
    """Whether an attempt counts for this reason. A stopped one counts only if it failed with this reason."""
    return attempt.state in (AttemptState.SUCCEEDED, AttemptState.FAILED) or _failed_so(attempt, reason)


def _failed_so(attempt: Attempt, reason: str) -> bool:
    return attempt.state in _FAILED and attempt.cause.reason == reason


def _is_clean(attempt: Attempt) -> bool:
    """Whether it ended well; hints of the provider predict, and show nothing of the run."""
    return all(finding.get("cleared_at_s") is not None or finding["kind"] == "hint" for finding in attempt.findings)


def _why_none(worked: Sequence[Attempt], earlier: Sequence[Attempt]) -> str:
    if not worked:
        return "no other run succeeded"
    if not earlier:
        return f"{counted_as(len(worked), 'successful run')} ended later"
    kinds = sorted({finding["kind"] for one in earlier for finding in one.findings})
    return f"{counted_as(len(earlier), 'successful run')} ended with {', '.join(kinds)}"


def _log_binomial(failed: int, ran: int, share: float) -> float:
    return failed * math.log(share) + (ran - failed) * math.log(1.0 - share)
