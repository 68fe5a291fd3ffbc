"""What a bundle says beyond its findings, so that a tenant can join them with its own history, on its own machine.

    posterior of the ratio ~ prior x what other pairs lend x likelihood of all contributions x that of own failures

A tenant whose contributions are behind the findings must not count them twice: `rounds` names the rounds whose
contributions are in, so that it knows which of its own are (`tenant_client.doctor.advice.own_history`).

Ratios are on the grid of `federation.protocol.ratio_likelihood`, which has `LEVELS` of them.
"""

from crypto.codec import Many, Number, Record
from crypto.ids import RoundId

LEVELS = 107


class PairEvidence(Record, frozen=True):
    """Of one pair: the evidence behind its finding.

    `usual` is its rate over that of an average workload on the same hardware, as all other pairs of its workload and
    context explain it, `usual_log_sd` the standard deviation of its logarithm, `usual_rate` that rate in failures per
    1,000 node-hours.
    `below` has the log likelihood of each ratio by the pair's own failures, `lent` what pairs that may share its defect
    add to the logarithm of the prior; empty: nothing.
    """

    usual: Number
    usual_log_sd: Number
    usual_rate: Number
    below: bytes
    lent: bytes = b""

    def __post_init__(self) -> None:
        if not (self.usual > 0 and self.usual_log_sd >= 0 and self.usual_rate >= 0):
            raise ValueError("usual must be positive, usual_log_sd and usual_rate not negative")
        if len(self.below) != LEVELS:
            raise ValueError(f"below must have {LEVELS} bytes")
        if len(self.lent) not in (0, LEVELS):
            raise ValueError(f"lent must have {LEVELS} bytes or none")


class Evidence(Record, frozen=True):
    """What is behind the findings of a bundle: `hazards` and `pairs` are in the order of its own.

    `log_prior` is the logarithm of the prior of each ratio, for any pair. `hazards` are failures per 1,000
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
