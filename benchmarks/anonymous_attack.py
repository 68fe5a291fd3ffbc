"""The attack of `benchmarks.anonymous`: from what the provider saw to a score of every tenant for every check."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from benchmarks.anonymous_run import CLIENTS, Seen
from benchmarks.figures import Figure
from crypto.ids import TenantId

FEATURES = (
    "since_named",
    "until_named",
    "since_order",
    "until_order",
    "orders_before",
    "order_rank",
    "port_distance",
    "asked_bytes",
    "answered_bytes",
)


def features(seen: Sequence[Seen], checks: Sequence[Seen], tenants: Mapping[TenantId, int]) -> Any:
    """Of each check and each tenant, what the provider can know of both: checks × tenants × features."""
    named = [_times(seen, tenants, number, ("check", "order")) for number in range(CLIENTS)]
    orders = [_times(seen, tenants, number, ("order",)) for number in range(CLIENTS)]
    ports = [
        np.array([each.port for each in seen if each.tenant is not None and tenants[each.tenant] == number] or [0])
        for number in range(CLIENTS)
    ]
    first_order = np.array([times[0] if len(times) else np.inf for times in orders])
    order_rank = first_order.argsort().argsort() / CLIENTS
    found = np.empty((len(checks), CLIENTS, len(FEATURES)))
    for row, check in enumerate(checks):
        place = row / len(checks)
        for number in range(CLIENTS):
            before, after = _around(named[number], check.at_s)
            order_before, order_after = _around(orders[number], check.at_s)
            found[row, number] = (
                before,
                after,
                order_before,
                order_after,
                np.searchsorted(orders[number], check.at_s),
                abs(order_rank[number] - place),
                np.abs(ports[number] - check.port).min(),
                check.asked_bytes,
                check.answered_bytes,
            )
    return found


def _times(seen: Sequence[Seen], tenants: Mapping[TenantId, int], number: int, kinds: Sequence[str]) -> Any:
    return np.array(
        [
            each.at_s
            for each in seen
            if each.kind in kinds and each.tenant is not None and tenants[each.tenant] == number
        ]
    )


def _around(times: Any, at_s: float) -> tuple[float, float]:
    """Seconds since the last of these times, and until the next."""
    place = int(np.searchsorted(times, at_s))
    before = at_s - times[place - 1] if place else 1e6
    after = times[place] - at_s if place < len(times) else 1e6
    return float(before), float(after)


def judged(seen: Sequence[Seen], made: Sequence[tuple[bytes, int]], tenants: Mapping[TenantId, int]) -> Figure:
    """How well who made a check is told, on the half of the checks that nothing was learnt from."""
    owners = dict(made)
    checks = [each for each in seen if each.kind == "anonymous" and each.proof in owners and each.answered_bytes]
    truth = np.array([[owners[each.proof] == number for number in range(CLIENTS)] for each in checks])
    known = features(seen, checks, tenants)
    half = len(checks) // 2
    scores = _learnt_scores(known, truth, half)
    signs = [_sign(truth[:half], known[:half, :, place]) for place in range(len(FEATURES))]
    learnt = [auroc(truth[:half], sign * known[:half, :, place]) for place, sign in enumerate(signs)]
    simple = [auroc(truth[half:], sign * known[half:, :, place]) for place, sign in enumerate(signs)]
    best = int(np.argmax(learnt))  # chosen where it was learnt
    low, high = _interval(truth[half:], scores)
    return {
        "checks": len(checks),
        "judged": len(checks) - half,
        "orders": sum(each.kind == "order" for each in seen),
        "auroc": auroc(truth[half:], scores),
        "low": low,
        "high": high,
        "best_simple": FEATURES[best],
        "best_simple_auroc": simple[best],
        "simple": dict(zip(FEATURES, simple, strict=True)),
        "top1": float((scores.argmax(axis=1) == truth[half:].argmax(axis=1)).mean()),
        "sizes_asked": len({each.asked_bytes for each in checks}),
        "sizes_answered": len({each.answered_bytes for each in checks}),
    }


def _learnt_scores(known: Any, truth: Any, half: int) -> Any:
    """Of the second half, by what was learnt from the first: of each thing its value, and its place among tenants."""
    places = known.argsort(axis=1).argsort(axis=1)
    both = np.concatenate([known, places], axis=2)
    model = HistGradientBoostingClassifier(max_iter=60, learning_rate=0.05, min_samples_leaf=100, random_state=1)
    model.fit(both[:half].reshape(-1, both.shape[2]), truth[:half].reshape(-1))
    return model.predict_proba(both[half:].reshape(-1, both.shape[2]))[:, 1].reshape(-1, CLIENTS)


def auroc(truth: Any, scores: Any) -> float:
    """Over all pairs of a check and a tenant."""
    return float(roc_auc_score(truth.reshape(-1), scores.reshape(-1)))


def _sign(truth: Any, scores: Any) -> float:
    """The direction that was right on the half that was seen."""
    return 1.0 if auroc(truth, scores) >= 0.5 else -1.0


def _interval(truth: Any, scores: Any, draws: int = 200) -> tuple[float, float]:
    """95%, by drawing checks anew."""
    generator = np.random.default_rng(1)
    rows = (generator.integers(len(truth), size=len(truth)) for _ in range(draws))
    low, high = np.quantile([auroc(truth[drawn], scores[drawn]) for drawn in rows], (0.025, 0.975))
    return float(low), float(high)
