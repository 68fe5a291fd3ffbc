"""Who made an anonymous check? An attack that learns, on real clients and a real server over TLS. JSON on stdout.

    python -m benchmarks.anonymous [passes] [unpaced] [told] [named] [latency]

50 clients behind one loopback address buy passes and check by the code of the tenant; weeks last seconds. The attacker
is the provider: it has the arrival time, the port, the order and the sizes of every question and answer, who bought
passes when, and named questions of the same tenants all the while. Of each check it scores all 50. A boosted tree
learns from the first half of the checks who was who, and is judged on the second, which it has not seen; the simple
attackers beside it score by one thing each, and the best of them is chosen on the first half. 0.5 is a guess, 1.0 is
certain. What a tenant does by name (orders, and checks by name) and its anonymous checks are programs of their own.

`passes`       as it is: all passes are bought a week ahead, at a moment drawn by the tenant
`unpaced`      power: a batch is bought when it is needed, just before the check, and otherwise all is the same
`told`         what is left: each tenant makes a named call up to two seconds before its check, as who fetches a lease
`named`        power: the named path, where the session says who it is
`latency`      milliseconds by the named and the anonymous path, medians over checks of 50 clients in turn: on a
               connection that stands, and on a new one, as the command line makes it

Tenants ask equally often here: who is known to ask more is the likelier asker whatever the protocol does.
Not measured: other networks, other libraries than gRPC's, an attacker who knows which contexts a tenant has leases on.
"""

import statistics
from typing import Any

import numpy as np

from benchmarks.figures import Figure, main
from federation.runtime import tls

WEEK_S = 50.0


def linkage(name: str, weeks: int, checks_per_week: float) -> Figure:
    """How well the provider tells who made a check."""
    from benchmarks.anonymous_attack import judged
    from benchmarks.anonymous_run import Arm, run

    seen, (made, tenants) = run(Arm(name, weeks, WEEK_S, checks_per_week))
    return {"arm": name, **judged(seen, made, tenants)}


def named() -> Figure:
    """The named path: the session in the question is the tenant's."""
    from benchmarks.anonymous_attack import auroc
    from benchmarks.anonymous_run import CLIENTS, Arm, run

    seen, (_, tenants) = run(Arm("named", 2, 6.0, 2.0))
    asked = [tenants[each.tenant] for each in seen if each.kind == "check" and each.tenant is not None]
    truth = np.array([[number == each for number in range(CLIENTS)] for each in asked])
    return {"arm": "named", "checks": len(asked), "auroc": auroc(truth, truth.astype(float))}


def latency() -> Figure:
    """Medians in milliseconds of all ways, in one run."""
    from benchmarks.anonymous_run import run

    _, (taken, _) = run(None)
    by_way = {way: [ms for each, ms in taken if each == way] for way in sorted({way for way, _ in taken})}
    medians: dict[str, Any] = {way: statistics.median(times) for way, times in by_way.items()}
    return {
        "arm": "latency",
        "checks": len(taken),
        **medians,
        "added_standing": medians["anonymous_standing"] - medians["named_standing"],
        "added_new": medians["anonymous_new"] - medians["named_new"],
        "added_new_over_standing": medians["anonymous_new"] - medians["named_standing"],
    }


def passes() -> Figure:
    """As it is."""
    return linkage("passes", 4, 20.0)


def unpaced() -> Figure:
    """Bought when needed."""
    return linkage("unpaced", 3, 3.0)


def told() -> Figure:
    """Called by name just before."""
    return linkage("told", 3, 6.0)


if __name__ == "__main__":
    tls.forbid_1_2()
    main(passes, unpaced, told, named, latency)
