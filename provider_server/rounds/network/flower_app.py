"""The federated week as a Flower ServerApp.

The app waits until the wanted number of nodes is connected, or the time for joining is over, and then hands the tenants
to `run`. Whether enough have come is not decided here: the round has its own cohort minimum and refuses below it.

    app = server_app(federated_week, wanted=20, join_s=60.0, deadline_s=600.0)
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from federation.protocol.versions import Heard
from provider_server.rounds.network.flower import Context, ServerApp, TaskIdentity
from provider_server.rounds.network.grid_tenants import Grid, GridTenants
from provider_server.rounds.week import Tenants

logger = logging.getLogger(__name__)

IDENTITY = ("_run_id", "_node_id", "_task_id")  # where Flower keeps it; reading it by property raises while it is unset


def server_app(
    run: Callable[[Tenants], None],
    *,
    wanted: int,
    join_s: float = 60.0,
    deadline_s: float = 600.0,
    poll_s: float = 0.1,
    heard: Heard | None = None,
) -> ServerApp:
    """The ServerApp that waits `join_s` at most for `wanted` nodes; each question of `run` then has `deadline_s`.

    `heard` is told what tenants speak.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, _context: Context) -> None:
        joined = _wait_for_nodes(grid, wanted, time.monotonic() + join_s, poll_s)
        logger.info("starting with %d nodes of %d wanted", joined, wanted)
        run(GridTenants(grid, deadline_s, poll_s, heard))

    return app


def _wait_for_nodes(grid: Grid, wanted: int, end_s: float, poll_s: float) -> int:
    """Returns how many are connected when enough are, or at `end_s` on the monotonic clock."""
    while (joined := len(list(grid.get_node_ids()))) < wanted:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            break
        time.sleep(min(poll_s, left_s))
    return joined


@contextmanager
def task_identity(run_id: int, node_id: int, task_id: int) -> Iterator[None]:
    """Gives this process the identity of a Flower task, which every new `Message` carries; puts back what was there."""
    before = [getattr(TaskIdentity, name) for name in IDENTITY]
    _identify([run_id, node_id, task_id])
    try:
        yield
    finally:
        _identify(before)


def _identify(values: Iterable[int | None]) -> None:
    for name, value in zip(IDENTITY, values, strict=True):
        setattr(TaskIdentity, name, value)
