"""From findings to a bundle: what tenants get, and the statement of the privacy that it cost."""

from collections.abc import Sequence

from crypto.bundle import Bundle, CatalogueEntry, HazardEntry, MismatchEntry, Statement
from crypto.ids import Token
from provider_server.learning import Findings
from provider_server.release import Release

PER_NODE_HOURS = 1000.0


def compose(
    number: int, catalogue: Sequence[CatalogueEntry], releases: Sequence[Release], findings: Findings
) -> Bundle:
    """The bundle after `releases`. Nothing in it comes from anywhere else."""
    newest = releases[-1].plan
    return Bundle(
        number=number,
        epoch=newest.epoch,
        until_hour=newest.end_hour,
        catalogue=tuple(catalogue),
        mismatches=tuple(
            MismatchEntry(
                Token(bytes.fromhex(pair.workload)),
                Token(bytes.fromhex(pair.context)),
                min(1.0, pair.probability_worse),  # a sum of parts of one, rounded
                pair.risk_ratio,
                pair.low,
                pair.high,
                pair.expected_failures,
            )
            for pair in findings.pairs
        ),
        hazards=tuple(
            HazardEntry(
                Token(bytes.fromhex(rate.context_level)),
                rate.band,
                *(PER_NODE_HOURS * value for value in (rate.rate, rate.low, rate.high)),
            )
            for rate in findings.rates
        ),
        statement=Statement(
            newest.epsilon,
            newest.delta,
            newest.mechanism,
            len(releases),
            min(made.contributors for made in releases),
        ),
    )
