"""What is answered about a pod: by the published bundle alone, unless `tenant.toml` lets own history in.

    pod ─ the command after `run --`, or an annotation ─▶ an earlier lease ─ its tokens ─▶ Checker ─▶ contexts ─▶ patch

- The provider may see the answer, since it may run the cluster: so it is a function of the bundle and of the
  workload's tokens, and repeats no figure.
- A pod is denied in mode refuse alone, where it selects a context itself in which its workload is known to fail.
- With own history, a pod is also kept from nodes on which own jobs failed of the infrastructure in the last hours.
- Whatever is missing or broken allows the pod as it is.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any

from crypto.errors import DecodeError
from federation.base.clock import now_hour
from federation.base.settings import load
from federation.base.sqlite import Connection
from federation.base.visible import counted_as
from federation.protocol.bundle import Bundle, PairJudgement
from federation.protocol.check import Checker
from federation.protocol.pod_leases import CONTEXT_LABEL
from federation.protocol.service_messages import CheckVerdict
from tenant_client.doctor.advice.exclude import at_most, by_failures, placed_leases
from tenant_client.doctor.advice.own_history import own_history
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import AmbiguousLease, Journal, UnknownUnit
from tenant_client.doctor.records.known_workloads import known_workload
from tenant_client.doctor.run.run_directory import job_name
from tenant_client.doctor.settings import TenantSettings
from tenant_client.program.admission.review import (
    PREFERRED,
    REQUIRED,
    Affinity,
    Answer,
    NodeAffinity,
    Operation,
    Pod,
    PodSpec,
    Request,
    Term,
    read_review,
)

# ---- modes -----------------------------------------------------------------------------------------------------------


class AdmissionMode(StrEnum):
    """Prefer: other nodes where there are any. Require: no bad ones. Refuse: a pod that selects a bad one is denied."""

    OFF = "off"
    PREFER = "prefer"
    REQUIRE = "require"
    REFUSE = "refuse"


logger = logging.getLogger(__name__)

LIKE = "pharoah.dev/like"
HOSTNAME = "kubernetes.io/hostname"
MOST_NODES = 64
PROGRAM = "pharoah-tenant"


@dataclass(frozen=True)
class Avoided:
    """Contexts, by token, in which a workload is known to fail more than twice as often, and where it may."""

    bundle: int
    mismatched: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # nodes, by name, of own failures


@dataclass(frozen=True)
class Desk:
    """Answers reviews for the tenant of a home. `resources` are how names of what GPUs are asked by begin."""

    home: Path
    mode: AdmissionMode
    resources: Sequence[str]

    def answer(self, body: bytes) -> bytes:
        """The review with its answer; DecodeError where the body is no review."""
        request = read_review(body)
        try:
            answer = self._answer(request)
        except Exception as error:  # noqa: BLE001 - a bug in Pharoah must not keep a pod from starting
            why = error.what if isinstance(error, DecodeError) else type(error).__name__
            logger.warning(
                "a pod was not checked: %s", why, extra={"event": "admission", "error": type(error).__name__}
            )
            answer = Answer(request.uid, warnings=["pharoah: not checked"])
        return answer.encoded()

    def _answer(self, request: Request) -> Answer:
        if self.mode is AdmissionMode.OFF or not request.makes_pod:
            return Answer(request.uid)
        pod = request.pod()
        if not pod.spec.asks_for(self.resources):
            return Answer(request.uid)
        found = self._avoided(pod)
        answer = _answered(request.uid, pod, found, self.mode)
        fields = {"event": "admission", "namespace": request.namespace, "patched": bool(answer.patch)}
        logger.info("a pod was %s", "denied" if answer.denial else "checked", extra=fields)
        return answer

    def _avoided(self, pod: Pod) -> Avoided | None:
        """What to avoid; None where the workload is not known, or nothing is published yet."""
        like = (pod.metadata.annotations or {}).get(LIKE, "")
        database = self.home / "tenant.db"
        if not database.exists():
            return None
        try:
            with closing(open_database(database)) as connection:
                known = known_workload(connection, _job(pod), like=like)
                bundle = _bundle(connection, self.home) if known else None
                failed = _failed_nodes(connection, self.home)
        except (UnknownUnit, AmbiguousLease) as error:  # answered as any workload that is not known: names are not told
            logger.warning("an annotation names no lease", extra={"event": "admission", "error": type(error).__name__})
            return None
        found = avoided(bundle, known[1]) if bundle and known else Avoided(0)
        return replace(found, failed=failed)


def avoided(bundle: Bundle, ladder: Mapping[str, str]) -> Avoided:
    """The contexts against which a check warns by a finding about the pair."""
    checker, mismatched, suspected = Checker(bundle), [], []
    for context in sorted({str(entry.context) for entry in bundle.mismatches}):
        check = checker.check({**ladder, "context": context})
        if check.verdict is CheckVerdict.MISMATCH:
            mismatched.append(context)
        elif check.evidence and check.evidence.judgement is PairJudgement.SUSPECTED:
            suspected.append(context)
    return Avoided(bundle.number, tuple(mismatched), tuple(suspected))


def _answered(uid: str, pod: Pod, found: Avoided | None, mode: AdmissionMode) -> Answer:
    if found is None or not (found.mismatched or found.suspected or found.failed):
        return Answer(uid)
    if names_context(pod.spec):
        return _of_chosen(uid, pod, found, mode)
    mismatched, suspected = not_in(CONTEXT_LABEL, found.mismatched), not_in(CONTEXT_LABEL, found.suspected)
    unless_others = [(MISMATCH_WEIGHT, not_in(HOSTNAME, found.failed)), (SUSPECTED_WEIGHT, suspected)]
    if mode is AdmissionMode.PREFER:
        patch = kept_from(pod.spec, {}, [(MISMATCH_WEIGHT, mismatched), *unless_others])
    else:
        patch = kept_from(pod.spec, mismatched, unless_others)
    return Answer(uid, patch, [f"pharoah: kept from {' and '.join(_told(found))}"])


def _told(found: Avoided) -> Iterator[str]:
    if contexts := len(found.mismatched) + len(found.suspected):
        yield f"{counted_as(contexts, 'context')} by bundle {found.bundle}"
    if found.failed:
        yield f"{counted_as(len(found.failed), 'node')} where own jobs failed"


def _of_chosen(uid: str, pod: Pod, found: Avoided, mode: AdmissionMode) -> Answer:
    """The answer about a pod that says itself where it runs: nothing is added."""
    if (pod.spec.node_selector or {}).get(CONTEXT_LABEL) not in found.mismatched:
        return Answer(uid)
    words = f"pharoah: this workload is known to fail in the context that the pod selects (bundle {found.bundle})"
    return Answer(uid, denial=words) if mode is AdmissionMode.REFUSE else Answer(uid, warnings=[words])


def _job(pod: Pod) -> str:
    """The name under which `run` journals the pod's job: the command after `pharoah-tenant run … --`; else empty."""
    for container in pod.spec.containers:
        words = [*(container.command or ()), *(container.args or ())]
        if len(words) > 1 and PurePath(words[0]).name == PROGRAM and words[1] == "run" and "--" in words:
            return job_name(words[words.index("--") + 1 :], {})
    return ""


def _bundle(connection: Connection, home: Path) -> Bundle | None:
    """The newest bundle; with own history joined where the owner lets that into decisions."""
    bundle = BundleLog(connection).newest_bundle()
    if bundle and load(TenantSettings, home / "tenant.toml", os.environ).decisions.own_history:
        return own_history(connection, bundle, now_hour()).bundle
    return bundle


def _failed_nodes(connection: Connection, home: Path) -> tuple[str, ...]:
    """Nodes on which own jobs failed of the infrastructure lately, where the owner lets that into decisions."""
    if not load(TenantSettings, home / "tenant.toml", os.environ).decisions.own_history:
        return ()
    placed = placed_leases(Journal(connection))
    failed = at_most(by_failures(placed, Attempts(connection).list(), now_hour()), MOST_NODES)
    return tuple(one.node for one in failed)


# ---- JSON Patches ----------------------------------------------------------------------------------------------------
#
# What a pod asked for stays, and what is added holds beside it: an expression joins each required term, since terms are
# alternatives, and a preference joins the list. A node without the label is in no context, and stays allowed.
#
# Source: core/v1 NodeAffinity of Kubernetes 1.34. A weight is 1 to 100.


MISMATCH_WEIGHT, SUSPECTED_WEIGHT = 100, 10
_AFFINITY = "/spec/affinity"
_NODE_AFFINITY = f"{_AFFINITY}/nodeAffinity"


def kept_from(spec: PodSpec, never: Operation, rather: Sequence[tuple[int, Operation]]) -> list[Operation]:
    """The patch by which the expression `never` holds of a pod's node, and each of `rather`, by weight, where it can.

    Expressions that are empty ask for nothing.
    """
    own = _node_affinity(spec)
    missing: dict[str, Any] = {}
    patch: list[Operation] = []
    terms = own.required.node_selector_terms if own.required else None
    if never and terms:
        patch += _narrowed(terms, never)
    elif never:
        missing[REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": [never]}]}
    wishes = [{"weight": weight, "preference": {"matchExpressions": [one]}} for weight, one in rather if one]
    if wishes and own.preferred:
        patch += [_add(f"{_NODE_AFFINITY}/{PREFERRED}/-", wish) for wish in wishes]
    elif wishes:
        missing[PREFERRED] = wishes
    return [*patch, *_completed(spec, missing)]


def names_context(spec: PodSpec) -> bool:
    """Whether the pod says itself in which contexts it runs."""
    own = _node_affinity(spec)
    terms = [*((own.required.node_selector_terms or ()) if own.required else ())]
    terms += [one.preference for one in own.preferred or ()]
    return CONTEXT_LABEL in (spec.node_selector or {}) or any(
        one.key == CONTEXT_LABEL for term in terms for one in term.match_expressions or ()
    )


def _node_affinity(spec: PodSpec) -> NodeAffinity:
    return (spec.affinity or Affinity()).node_affinity or NodeAffinity()


def _narrowed(terms: Sequence[Term], expression: Operation) -> Iterator[Operation]:
    """The expression in each term that fits any node."""
    for place, term in enumerate(terms):
        at = f"{_NODE_AFFINITY}/{REQUIRED}/nodeSelectorTerms/{place}/matchExpressions"
        if term.match_expressions:
            yield _add(f"{at}/-", expression)
        elif term.match_fields:
            yield _add(at, [expression])


def _completed(spec: PodSpec, missing: dict[str, Any]) -> list[Operation]:
    """Parts that the pod's node affinity lacks, with what they lie in."""
    if not missing:
        return []
    if spec.affinity is None:
        return [_add(_AFFINITY, {"nodeAffinity": missing})]
    if spec.affinity.node_affinity is None:
        return [_add(_NODE_AFFINITY, missing)]
    return [_add(f"{_NODE_AFFINITY}/{name}", value) for name, value in missing.items()]


def not_in(label: str, values: Sequence[str]) -> Operation:
    """The expression that keeps a pod from nodes whose label has one of these values; empty without any."""
    return {"key": label, "operator": "NotIn", "values": list(values)} if values else {}


def _add(path: str, value: Any) -> Operation:
    return {"op": "add", "path": path, "value": value}
