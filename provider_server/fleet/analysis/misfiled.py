"""On which pairs a careless tenant took other errors for hardware failures, so that what was told says nothing.

A workload's script errors do not depend on the hardware. Where most of them are missing on one context, somebody told
them as something else.

A hardware failure that comes first hides a script error under the cap: of those expected, only the share of units
without a hardware failure is asked for, and half of that. This is no bound, since large units have more of both; a
pair that is eight times worse is kept where their sizes have a standard deviation of 2 in the logarithm (tests).

Not promised: that hardware was what they were told as. A tenant alone on a pair whose errors have no known reason is
not listened to either, and its mismatch is found by what the provider sees, or not at all.
"""

import numpy as np
from numpy.typing import NDArray

from federation.protocol.life_table import LifeTable
from provider_server.fleet.analysis.quasi_experiment import arms, mantel_haenszel

LEVEL = 0.001  # two-sided: how often so many are missing by chance
MOST_LEFT = 0.5  # of the script errors that are asked for


def misfiled(counted: LifeTable, control: LifeTable) -> NDArray[np.bool_]:
    """Which pairs (workloads, contexts) lack most of the script errors that the workload has elsewhere.

    `counted` holds hardware failures, `control` script errors over the same cells; both their `at_risk` units.
    """
    pairs, here, elsewhere = arms(control)
    cells = tuple(pairs)
    events, hours = elsewhere.events.sum(axis=1), elsewhere.exposure_node_hours.sum(axis=1)
    rate = np.divide(events, hours, out=np.zeros(len(events)), where=hours > 0.0)
    free = 1.0 - np.clip(counted.events[cells] / np.maximum(counted.at_risk[cells], 1.0), 0.0, 1.0)
    asked = free * here.exposure_node_hours.sum(axis=1) * rate
    found = np.zeros(counted.shape, np.bool_)
    fewer = mantel_haenszel(here, elsewhere)
    found[cells] = (fewer.p <= LEVEL) & (here.events.sum(axis=1) <= MOST_LEFT * asked) & (asked > 0.0)
    return found
