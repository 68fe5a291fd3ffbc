"""Findings about single pairs as a test wants them."""

from federation.protocol.bundle import PairJudgement
from provider_server.fleet.analysis.quasi_experiment import Control, PairEvidence, PairVerdict
from provider_server.fleet.learning.verdicts import PairFinding


def pair(workload: str, context: str, probability: float, judgement: PairJudgement) -> PairFinding:
    """A pair of that probability and verdict; its quasi-experiment had too little to go by."""
    nothing = PairVerdict(
        workload,
        context,
        PairJudgement.TOO_LITTLE,
        PairEvidence(0.0, 0.0, 0.0, 0.0),
        1.0,
        0.5,
        2.0,
        1.0,
        1.0,
        0.0,
        0.0,
        1.0,
        1.0,
        Control(1.0, 1.0, fires=False, sees=False),
        (),
    )
    return PairFinding(
        workload, context, probability, 4.0, 2.0, 8.0, 2.0, 8.0, 10.0, 0.01, 0.02, judgement, nothing, ()
    )
