"""The simulated hardware as the provider would know it: contexts with names, nodes with build-up levels.

The result of `pharoah-provider nodes contexts` is taken from the cloud instead of from telemetry: contexts are those
that leases were drawn for, their rates are counted failures over node-hours, and the nodes of a context have the levels
of the leases that ran there, in the same shares. Nodes are made up: a simulated lease has a number of nodes, no names.
"""

import numpy as np

from federation.protocol.causes import CAUSES, Domain
from federation.protocol.life_table import PER_NODE_HOURS
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.analysis.buildup import BuildUp
from provider_server.fleet.analysis.contexts import Context, ContextMap
from provider_server.fleet.analysis.intervals import NORMAL_95
from provider_server.fleet.learning.hardware import Kept, label_of
from simulation.cloud.cloud import Cloud
from simulation.cloud.profiles import Ints

NODES = 12  # of each context
MODELS = ("A100", "H100", "H200", "B200")


def context_names(contexts: int) -> tuple[str, ...]:
    """A name for each context; racks of one model have neighbouring numbers.

    >>> context_names(5)
    ('A100 rack A', 'A100 rack B', 'H100 rack A', 'H100 rack B', 'H200 rack A')
    """
    racks = -(-contexts // len(MODELS))
    return tuple(f"{MODELS[place // racks]} rack {_letters(place % racks)}" for place in range(contexts))


def _letters(rack: int) -> str:
    """A to Z, then A2 to Z2."""
    turn, letter = divmod(rack, 26)
    return chr(ord("A") + letter) + (str(turn + 1) if turn else "")


def label(context: int) -> str:
    """What a lease's context is called when its tokens are made: as the map of `fleet` numbers it, from 1."""
    return label_of(context + 1)


def fleet(cloud: Cloud, start_hour: int) -> Kept:
    """What the provider keeps of its hardware at the end of the simulation, which began at `start_hour`."""
    names, leases = context_names(cloud.scenario.contexts), cloud.leases
    contexts: list[Context] = []
    levels: dict[str, int] = {}
    for place, (name, rate) in enumerate(zip(names, _rates(cloud), strict=True)):
        nodes = tuple(f"node-{NODES * place + number}" for number in range(NODES))
        levels |= dict(zip(nodes, _levels(leases.level[leases.context == place]), strict=True))
        contexts.append(Context(place + 1, f"{name}: {NODES} nodes", nodes, *rate))
    known = ContextMap((), tuple(contexts), len(contexts) + 1, ((),) * len(contexts), (), ())
    return Kept(start_hour + HOURS_PER_WEEK * cloud.scenario.weeks, known, levels, BuildUp().state())


def _levels(of_leases: Ints) -> list[int]:
    """Levels of nodes in the shares of those of leases, the highest last."""
    if not of_leases.size:
        return [0] * NODES
    shares = (np.arange(NODES) + 0.5) / NODES
    return [int(level) for level in np.quantile(of_leases, shares, method="inverted_cdf")]


def _rates(cloud: Cloud) -> list[tuple[float, float, float]]:
    """Infrastructure failures per 1,000 node-hours of each context, with a 95% interval."""
    leases, failures, contexts = cloud.leases, cloud.failures, cloud.scenario.contexts
    end_h = float(HOURS_PER_WEEK * cloud.scenario.weeks)
    hours = leases.nodes * (np.minimum(leases.end_h, end_h) - leases.start_h)
    infrastructure = np.array([cause.domain is Domain.INFRASTRUCTURE for cause in CAUSES.values()])
    struck = leases.context[failures.lease[infrastructure[failures.reason]]]
    counts = np.bincount(struck, minlength=contexts) + 0.5  # so that none is zero
    rate = PER_NODE_HOURS * counts / (np.bincount(leases.context, hours, contexts) + 1.0)
    reach = np.exp(NORMAL_95 / np.sqrt(counts))
    return list(zip(rate.tolist(), (rate / reach).tolist(), (rate * reach).tolist(), strict=True))
