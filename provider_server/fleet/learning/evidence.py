"""What tenants need to join the findings with their own history (`federation.protocol.evidence`)."""

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from federation.protocol.evidence import Evidence, PairEvidence
from federation.protocol.life_table import PER_NODE_HOURS, Floats
from federation.protocol.ratio_likelihood import LOG_RATIOS, below
from provider_server.fleet.analysis.mismatch import Mismatches
from provider_server.fleet.analysis.ratio_grid import LOG_RATIO


def evidence_of(found: Mismatches, explained: Floats, node_hours: Floats, hazards: Floats) -> Evidence:
    """Of pairs with `node_hours` (P,), for which hazards explain (P,) failures; `hazards` (H,) are per node-hour.

    The rounds are not named yet.
    """
    prior = np.interp(LOG_RATIOS, LOG_RATIO, found.log_prior)
    usual_rate = PER_NODE_HOURS * found.expected_by_others / node_hours
    columns = (column.tolist() for column in (found.expected_by_others / explained, found.log_sd, usual_rate))
    told = map(_below, found.log_likelihood)
    lent = (_below(found.lent.own[row] - found.log_prior) if row >= 0 else b"" for row in found.lent.row.tolist())
    return Evidence(
        rounds=(),
        log_prior=tuple((prior - prior.max()).tolist()),
        lease_shape=0.0 if np.isinf(found.shape) else found.shape,
        hazards=tuple((PER_NODE_HOURS * hazards).tolist()),
        pairs=tuple(
            PairEvidence(usual, log_sd, rate, own, others)
            for usual, log_sd, rate, own, others in zip(*columns, told, lent, strict=True)
        ),
    )


def _below(log_likelihood: Floats) -> bytes:
    return below(np.interp(LOG_RATIOS, LOG_RATIO, log_likelihood))


def with_hazards(known: Evidence, hazards: Iterable[float]) -> Evidence:
    """The same with further hazards, per node-hour."""
    return replace(known, hazards=known.hazards + tuple(PER_NODE_HOURS * hazard for hazard in hazards))
