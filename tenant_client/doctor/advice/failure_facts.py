"""Collects from the journal what is known of failed and slow attempts, for `show --only explain`.

Read are: the diagnosis and findings of the attempt, hints about its lease (those that came later too), the newest
bundle's check of it, own runs of the same structure, where else its error codes showed, and what own tests showed that
were told to the provider. Nothing is written or sent. An attempt that went well has no facts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from federation.base.clock import SECONDS_PER_HOUR
from federation.base.sqlite import Connection
from federation.protocol.bundle import Bundle
from federation.protocol.check import check
from federation.protocol.service_messages import Hint, HintState
from federation.protocol.xid_judge import CodeVerdict
from tenant_client.doctor.advice.clues import FailureFacts, FindingFact, HintFact, RunCounts
from tenant_client.doctor.advice.explanation import Explanation, FailureCause, explain
from tenant_client.doctor.advice.hints import Episode, HintLog, episodes
from tenant_client.doctor.advice.own_codes import judged_attempt, own_codes
from tenant_client.doctor.advice.own_runs import Run, own_runs, runs_of
from tenant_client.doctor.records import outcomes
from tenant_client.doctor.records.attempts import Attempt, Attempts, AttemptState
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.first_causes import FirstCauses, NamedBy
from tenant_client.doctor.records.journal import Journal
from tenant_client.doctor.records.outcomes import SentOutcome
from tenant_client.doctor.sources.evidence import Evidence

MOST = 50  # attempts that are explained, the newest first
_FROM_PROVIDER = "; the provider "  # what `run.lease_hints` adds to a finding: a hint counts once


@dataclass(frozen=True)
class Known:
    """What is read once for all attempts."""

    attempts: Sequence[Attempt]
    runs: Mapping[str, Run]
    hints: Sequence[Hint]
    bundle: Bundle | None
    outcomes: Sequence[SentOutcome]
    codes: Mapping[tuple[str, int], Mapping[CodeVerdict, Evidence]]

    @classmethod
    def of(cls, connection: Connection) -> "Known":
        """From a tenant's database."""
        attempts, own = Attempts(connection).list(), own_codes(connection)
        return cls(
            attempts,
            runs_of(Journal(connection)),
            HintLog(connection).hints(),
            BundleLog(connection).newest_bundle(),
            outcomes.noted(connection),
            {(one.unit, one.attempt): judged_attempt(connection, one, own) for one in attempts},
        )


def explanations(known: Known) -> Iterator[tuple[Attempt, Explanation]]:
    """The newest attempts that did not go well, oldest first, each explained."""
    troubled = [one for one in known.attempts if _is_troubled(one)]
    for attempt in troubled[-MOST:]:
        yield attempt, explain(facts_of(known, attempt))


def name_by_bundle(connection: Connection, known: Known, at_s: float) -> None:
    """Notes the failures whose cause nobody had named and the newest bundle does."""
    without = replace(known, bundle=None)
    for attempt, found in explanations(known):
        before = explain(facts_of(without, attempt))
        if attempt.state is AttemptState.FAILED and before.cause is FailureCause.UNDECIDED is not found.cause:
            FirstCauses(connection).name(attempt.unit, attempt.attempt, at_s, NamedBy.BUNDLE)


def newest(known: Known, unit: str) -> Attempt | None:
    """The newest attempt of a lease that did not go well."""
    return next((one for one in reversed(known.attempts) if one.unit == unit and _is_troubled(one)), None)


def facts_of(known: Known, attempt: Attempt) -> FailureFacts:
    """Everything that is known of one attempt."""
    end_s = attempt.ended_at_s or _last_s(attempt)
    run = known.runs.get(attempt.unit)
    told = check(known.bundle, run.labels) if run else check(None, {})
    mine = [episode for episode in episodes(known.hints) if str(episode.lease) == attempt.unit]
    return FailureFacts(
        attempt.cause.reason,
        attempt.cause.sentence,
        attempt.state is AttemptState.STOPPED,
        (end_s - attempt.started_at_s) / SECONDS_PER_HOUR,
        tuple(_findings(attempt)),
        tuple(_hint(episode, end_s / SECONDS_PER_HOUR) for episode in mine),
        told.verdict.name.lower(),
        told.evidence.risk_ratio if told.evidence else 1.0,
        _counts(known, attempt, run),
        tuple((one.suspicion.value, not one.confirmed) for one in known.outcomes if one.lease == attempt.unit),
        _ranks(run),
        attempt.cause.domain,
        tuple(known.codes.get((attempt.unit, attempt.attempt), ())),
        has_failed=attempt.state in (AttemptState.FAILED, AttemptState.STOPPED),
    )


def _ranks(run: Run | None) -> int | None:
    """Of a run whose collectives all have one size of group, which is then all ranks; a power of two."""
    sizes = {size for _, size, _ in run.descriptor.collectives} if run and run.descriptor else set()
    return 1 << sizes.pop() if len(sizes) == 1 and sizes != {0} else None


def _is_troubled(attempt: Attempt) -> bool:
    """Whether it failed, was stopped, or had a finding that held; hints alone are no trouble."""
    return attempt.state in (AttemptState.FAILED, AttemptState.STOPPED) or any(_findings(attempt))


def _findings(attempt: Attempt) -> Iterator[FindingFact]:
    for one in attempt.findings:
        if one.get("cleared_at_s") is None and one.get("kind") != "hint":
            text = str(one.get("text", "")).partition(_FROM_PROVIDER)[0]
            yield FindingFact(str(one.get("kind", "")), tuple(one.get("ranks", ())), text)


def _last_s(attempt: Attempt) -> float:
    """When the last finding of an attempt without an end began."""
    return max([attempt.started_at_s, *(float(one.get("since_s", 0.0)) for one in attempt.findings)])


def _hint(episode: Episode, end_h: float) -> HintFact:
    last = episode.last
    is_cleared = last.state is HintState.CLEARED
    grave = episode.first if is_cleared else last
    return HintFact(
        grave.suspicion.value,
        grave.ratio_low,
        grave.ratio,
        end_h - episode.first.at_h,
        is_escalated=last.state is HintState.ESCALATED,
        is_cleared=is_cleared and last.at_h < end_h,
    )


def _counts(known: Known, attempt: Attempt, run: Run | None) -> RunCounts:
    """Own runs of the same structure; none where the structure is not known."""
    if run is None or run.structure is None:
        return RunCounts()
    context, ran = run.labels.get("context"), own_runs(known.attempts, known.runs, run, attempt.cause.reason)
    found = [(one.labels.get("context") == context, failed) for one, failed in ran]
    here, away = ([failed for is_here, failed in found if is_here is wanted] for wanted in (True, False))
    return RunCounts(sum(here), len(here) - sum(here), sum(away), len(away) - sum(away))
