"""The attack on anonymous checks has power where there is something to find, and finds nothing in nothing."""

import random

import pytest

from benchmarks.anonymous_attack import judged
from benchmarks.anonymous_run import CLIENTS, Seen
from crypto.ids import TenantId

TENANTS = {TenantId(number.to_bytes(16)): number for number in range(CLIENTS)}
CHECKS, SPAN_S = 2000, 1000.0


def a_log(order_before_s: float | None) -> tuple[list[Seen], list[tuple[bytes, int]]]:
    """Checks at random times by random tenants; an order so long before each, or at a time of its own."""
    chance, seen, made = random.Random(1), list[Seen](), list[tuple[bytes, int]]()  # nothing is secret
    for number in range(CHECKS):
        owner, at_s, proof = chance.randrange(CLIENTS), chance.uniform(1.0, SPAN_S), number.to_bytes(32)
        ordered_s = chance.uniform(0.0, SPAN_S) if order_before_s is None else at_s - chance.uniform(0, order_before_s)
        tenant = TenantId(owner.to_bytes(16))
        seen.append(Seen(ordered_s, chance.randrange(1024, 65536), 1200, 1100, "order", tenant, b""))
        seen.append(Seen(at_s, chance.randrange(1024, 65536), 231, 8192, "anonymous", None, proof))
        made.append((proof, owner))
    return sorted(seen, key=lambda each: each.at_s), made


@pytest.mark.nightly
@pytest.mark.parametrize(("order_before_s", "low", "high"), [(1.0, 0.95, 1.0), (10.0, 0.7, 0.95), (None, 0.46, 0.54)])
def test_orders_just_before_checks_are_found_and_orders_at_other_times_are_not(
    order_before_s: float | None, low: float, high: float
) -> None:
    """Of 1,000 checks a guess is 0.5 with a standard error below 0.01."""
    seen, made = a_log(order_before_s)
    assert low <= judged(seen, made, TENANTS)["auroc"] <= high
