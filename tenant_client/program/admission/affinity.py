"""JSON Patches that keep a pod from contexts, by the label that nodes have of theirs.

What a pod asked for stays, and what is added holds beside it: an expression joins each required term, since terms are
alternatives, and a preference joins the list. A node without the label is in no context, and stays allowed.

Source: core/v1 NodeAffinity of Kubernetes 1.34. A weight is 1 to 100.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from federation.protocol.node_labels import CONTEXT_LABEL
from tenant_client.program.admission.review import PREFERRED, REQUIRED, Affinity, NodeAffinity, Operation, PodSpec, Term

MISMATCH_WEIGHT, SUSPECTED_WEIGHT = 100, 10
_AFFINITY = "/spec/affinity"
_NODE_AFFINITY = f"{_AFFINITY}/nodeAffinity"


def kept_from(spec: PodSpec, never: Sequence[str], rather_not: Sequence[tuple[int, Sequence[str]]]) -> list[Operation]:
    """The patch by which a pod runs in none of `never`, and in none of each weighted `rather_not` where it can."""
    own = _node_affinity(spec)
    missing: dict[str, Any] = {}
    patch: list[Operation] = []
    terms = own.required.node_selector_terms if own.required else None
    if never and terms:
        patch += _narrowed(terms, _not_in(never))
    elif never:
        missing[REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": [_not_in(never)]}]}
    wishes = [
        {"weight": weight, "preference": {"matchExpressions": [_not_in(contexts)]}}
        for weight, contexts in rather_not
        if contexts
    ]
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


def _not_in(contexts: Sequence[str]) -> Operation:
    return {"key": CONTEXT_LABEL, "operator": "NotIn", "values": list(contexts)}


def _add(path: str, value: Any) -> Operation:
    return {"op": "add", "path": path, "value": value}
