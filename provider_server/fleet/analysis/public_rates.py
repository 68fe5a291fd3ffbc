"""What a fleet may expect before it has seen anything, from the rates that others have published.

    rows of one class, a fleet each ─ kriging without distance (`analysis.cold_start`) ─▶ the log rate of a fleet unseen
                                    ─ moments ─▶ Experience: so many failures in so many node-hours

A fleet is a level: log rates are normal around a common one, of which nothing is assumed, and how far fleets differ is
averaged over by how well it explains those that are known. The result is summed up as the gamma law whose logarithm
has the same mean and variance, so that own failures join it by addition.

Pure. `federation/protocol/known_rates.toml` holds the result, which `benchmarks/known_rates.py` prints.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from federation.protocol.known_rates import Experience, KnownRate, experience
from provider_server.fleet.analysis.cold_start import Known, foretold

FEWEST, MOST = 0.05, 1e4  # failures that public experience may be worth


def experience_of(rows: Sequence[KnownRate]) -> Experience:
    """The experience of fleets with these rows, which are of one class; NothingKnown without any."""
    known = [Known(row.fleet, np.log(row.failures / row.node_hours), row.failures**-0.5) for row in rows]
    apart = np.ones((len(rows), len(rows))) - np.eye(len(rows))
    log_rate, log_sd = foretold(known, np.ones(len(rows)), apart)
    failures = brentq(lambda shape: polygamma(1, shape) - log_sd**2, FEWEST, MOST)
    return Experience(float(failures), float(np.exp(digamma(failures) - log_rate)))


def log_law(known: Experience) -> tuple[float, float]:
    """The mean of its log rate and the standard deviation."""
    return float(digamma(known.failures) - np.log(known.node_hours)), float(np.sqrt(polygamma(1, known.failures)))


def public() -> Known:
    """The public's experience beside contexts of one's own."""
    return Known("other fleets", *log_law(experience()))
