"""What a bundle says beyond its findings, so that a tenant can join them with its own history, on its own machine.

    posterior of the ratio ~ prior x likelihood of all contributions x likelihood of the tenant's own failures

A tenant whose contributions are behind the findings must not count them twice: `rounds` names the rounds whose
contributions are in, so that it knows which of its own are (`tenant_client.advice.own_history`).

Ratios are on the grid `LOG_RATIOS`. A log likelihood is kept below its largest value, in steps of `STEP`, up to
`DEEPEST`: beyond that a ratio is as good as excluded.
"""

import numpy as np

from crypto.codec import Many, Number, Record
from crypto.ids import RoundId
from federation.protocol.life_table import Floats

LEVELS = 107
LOG_RATIOS = np.linspace(-3.0, np.log(100.0), LEVELS)
STEP = 0.05
DEEPEST = 255 * STEP


class PairEvidence(Record, frozen=True):
    """Of one pair: the evidence behind its finding.

    `usual` is its rate over that of an average workload on the same hardware, as workload and context alone explain it,
    `usual_log_sd` the standard deviation of its logarithm, `usual_rate` that rate in failures per 1,000 node-hours.
    `below` has the log likelihood of each of `LOG_RATIOS`.
    """

    usual: Number
    usual_log_sd: Number
    usual_rate: Number
    below: bytes

    def __post_init__(self) -> None:
        if not (self.usual > 0 and self.usual_log_sd >= 0 and self.usual_rate >= 0):
            raise ValueError("usual must be positive, usual_log_sd and usual_rate not negative")
        if len(self.below) != LEVELS:
            raise ValueError(f"below must have {LEVELS} bytes")

    @property
    def log_likelihood(self) -> Floats:
        """Of each of `LOG_RATIOS`, up to a constant."""
        return -STEP * np.frombuffer(self.below, np.uint8).astype(np.float64)


def below(log_likelihood: Floats) -> bytes:
    """A log likelihood over `LOG_RATIOS` as a bundle carries it.

    >>> list(below(np.array([-99.0, -1.0, -0.5])))
    [255, 10, 0]
    """
    depth = np.minimum((log_likelihood.max() - log_likelihood) / STEP, 255.0)
    return bytes(np.round(depth).astype(np.uint8).tolist())


class Evidence(Record, frozen=True):
    """What is behind the findings of a bundle: `hazards` and `pairs` are in the order of its own.

    `log_prior` is the logarithm of the prior of each of `LOG_RATIOS`, for any pair. `hazards` are failures per 1,000
    node-hours of an average workload. `lease_shape` says how leases differ (a gamma law of mean 1; 0: not at all).
    """

    rounds: Many[RoundId]
    log_prior: Many[Number]
    lease_shape: Number
    hazards: Many[Number]
    pairs: Many[PairEvidence]

    def __post_init__(self) -> None:
        if len(self.log_prior) != LEVELS:
            raise ValueError(f"log_prior must have {LEVELS} numbers")
        if self.lease_shape < 0 or any(rate < 0 for rate in self.hazards):
            raise ValueError("lease_shape and hazards must not be negative")
