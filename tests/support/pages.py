"""A federation on disk that pages can be shown of: three weeks over four contexts, a mismatch, and a round that waits.

Everything went through the real rounds, so that the figures hang together; the nodes of the contexts are made up, as
there is no telemetry. The hours begin with 1970, unless another week is named.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from federation.protocol.causes import Domain
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.queries import Query
from provider_server.fleet.analysis.buildup import BuildUp
from provider_server.fleet.analysis.contexts import Context, ContextMap
from provider_server.fleet.learning.hardware import Kept, keep
from simulation.cloud.scenario import load
from simulation.run import federation, play
from simulation.run.play import Player
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tests.support.changing import replace
from tests.support.plans import InsecureSeeded

WEEKS, TENANTS, ANSWERED, CONTEXTS, NODES = 3, 10, 6, 4, 12
SCENARIO = replace(
    load("tiny"),
    tenants=TENANTS,
    contexts=CONTEXTS,
    weeks=WEEKS + 1,
    jobs_per_week=700,
    mismatch_minimum=2,
    mismatch_factor=12.0,
    age_band_edges_h=(0.0, 8.0, 48.0),
    age_band_factors=(1.6, 1.2, 1.0),
    epsilon=50.0,
    owners_minimum=3,
    cohort_minimum=4,
    groups=1,
    windows=tuple(range(1, WEEKS + 2)),
    failures_per_week={Domain.INFRASTRUCTURE: 300.0, Domain.FRAMEWORK: 30.0, Domain.SCRIPT: 40.0},
)
LOOKS = ("A100, hall 1", "A100, hall 2", "H100, hall 2", "H200, hall 3")


@dataclass(frozen=True)
class Shown:
    """Where the homes are. The tenant has answered all rounds, the one that waits too."""

    provider: Path
    tenant: Path
    late: tuple[str, ...]


@cache
def built(root: Path, start_week: int = 0) -> Shown:
    """Plays the weeks below `root`, once for each process; takes about ten seconds."""
    with pytest.MonkeyPatch.context() as patched:  # so little noise that one draw in a thousand looks like a lie
        patched.setattr(federation, "SystemSampler", lambda: InsecureSeeded(1))
        patched.setattr(play, "context_names", lambda contexts: LOOKS[:contexts])
        player = Player(SCENARIO, 1, root, start_week)
    end_hour = (start_week + WEEKS) * HOURS_PER_WEEK
    try:
        for number in player.weeks():
            if number == WEEKS - 1:
                break
        _wait(player, end_hour)
        late = tuple(str(tenant.id) for tenant in player._federation.tenants[ANSWERED:])
        _attempt(player, start_week * HOURS_PER_WEEK * 3600.0)
    finally:
        player.close()
    keep(root / "provider", Kept(end_hour, _contexts(), _levels(), BuildUp().state()))
    return Shown(root / "provider", root / "tenants" / "000", late)


def _wait(player: Player, start: int) -> None:
    """Opens the round of one more week, for which some tenants are late."""
    player._happen(WEEKS)
    provider, tenants = player._federation.provider, player._federation.tenants
    window = (start, start + HOURS_PER_WEEK)
    for tenant in tenants:
        provider.register(tenant.answer(Query.REGISTRATIONS, provider.registration_request(window)))
    round_ = provider.open_round(provider.plan(window))
    for tenant in tenants[:ANSWERED]:
        provider.receive(round_, tenant.answer(Query.CONTRIBUTION, round_.signed_plan))


def _attempt(player: Player, began_s: float) -> None:
    """The first tenant has run a job under `pharoah-tenant run`, and it failed."""
    tenant = player._federation.tenants[0]
    unit, attempts = tenant.journal.units()[0].unit, Attempts(tenant._connection)
    attempts.name(unit, "llama-7b-pretrain")
    number = attempts.begin(unit, began_s + 3600.0)
    attempts.end(unit, number, AttemptState.FAILED, began_s + 9000.0, exit_code=1, steps=412)
    cause = AttemptCause("nvlink_error", 3, "gpu-07", "GPU 5", "train.log:812", "rank 3 lost its NVLink <to GPU 5>")
    attempts.explain(unit, number, cause)


def _contexts() -> ContextMap:
    contexts = tuple(
        Context(
            number,
            f"model {look}: {NODES} nodes",
            tuple(f"gpu-{NODES * (number - 1) + node:02d}" for node in range(NODES)),
            *(factor * number for factor in (1.0, 0.7, 1.4)),
        )
        for number, look in enumerate(LOOKS, start=1)
    )
    return ContextMap((), contexts, CONTEXTS + 1, ((),) * CONTEXTS, (), ())


def _levels() -> dict[str, int]:
    """Every fifth node is worn."""
    return {f"gpu-{node:02d}": int(node % 5 == 0) for node in range(CONTEXTS * NODES)}
