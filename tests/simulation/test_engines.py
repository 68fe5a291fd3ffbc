"""Work side by side: the same results in the same order whatever does it, errors as they are, and no wait for the dead.

Ray's tests need Ray, which the lock does not have. The cluster is two nodes of Ray's own on this machine, of which one
is ended while both work.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from crypto.errors import CohortTooSmall
from simulation.run.engines import Engine, EngineFailed, Kind, Processes, engine
from simulation.studies import learning
from tests import needs
from tests.support.plans import InsecureSeeded

PIECES = 12


def product(shared: np.ndarray[Any, Any], seed: int) -> tuple[int, bytes]:
    """Sums in another order, as another number of threads would make, have other last bits."""
    made = np.random.default_rng(seed).normal(size=shared.shape)
    return seed, (shared @ made @ shared.T).tobytes()


def slow_product(shared: np.ndarray[Any, Any], seed: int) -> tuple[int, bytes]:
    time.sleep(1.0)
    return product(shared, seed)


def refused(shared: str, item: int) -> int:
    if item == 2:
        raise CohortTooSmall(f"{shared} {item}")
    return item


def ended(shared: Path, item: int) -> int:
    """The first piece waits to be ended."""
    if item == 0:
        shared.write_text(str(os.getpid()))
        time.sleep(60)
    return item


def matrix() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(200, 200))


def one_after_the_other() -> list[tuple[int, bytes]]:
    return [product(matrix(), seed) for seed in range(PIECES)]


def test_results_come_in_order_and_are_those_of_one_process() -> None:
    assert list(Processes().map(product, matrix(), range(PIECES))) == one_after_the_other()


def test_what_work_raises_is_raised_here() -> None:
    with pytest.raises(CohortTooSmall, match="shared 2"):
        list(Processes().map(refused, "shared", range(4)))


def test_nothing_to_do_is_nothing() -> None:
    assert list(Processes().map(product, matrix(), [])) == []


def test_a_process_that_is_ended_ends_the_work_whatever_handler_its_parent_has(tmp_path: Path) -> None:
    """With the parent's handler of SIGTERM it would have gone on, and whoever waits for it for ever."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        results = Processes().map(ended, tmp_path / "pid", range(1))
        with pytest.raises(EngineFailed, match="ended from outside"):
            _ending(results, tmp_path / "pid")
    finally:
        signal.signal(signal.SIGTERM, before)


def _ending(results: Iterator[int], pid: Path) -> None:
    watch = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, pathlib, signal, sys, time\n"
            "at = pathlib.Path(sys.argv[1])\n"
            "while not (at.exists() and at.read_text()): time.sleep(0.01)\n"
            "os.kill(int(at.read_text()), signal.SIGTERM)\n",
            str(pid),
        ]
    )
    try:
        list(results)
    finally:
        watch.wait(30)


def test_a_missing_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineFailed, match="Ray is not installed") as missing, engine(Kind.RAY):
        pass
    assert "pharoah-sim[ray]" in missing.value.diagnostics()


# ---- over Ray --------------------------------------------------------------------------------------------------------


@contextmanager
def cluster() -> Iterator[Any]:
    """A head without cores and two nodes with one each, so that nothing works but the two."""
    needs.package("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield made
    finally:
        made.shutdown()


def judged(side_by_side: Engine) -> list[tuple[str, learning.Judged]]:
    return next(side_by_side.map(learning.of_seed, (InsecureSeeded(7), True), [0]))


@pytest.mark.nightly
def test_ray_on_this_machine_gives_what_processes_give_to_the_last_bit() -> None:
    needs.package("ray")
    with engine(Kind.RAY) as ray:
        assert list(ray.map(product, matrix(), range(PIECES))) == one_after_the_other()
        with pytest.raises(CohortTooSmall, match="shared 2"):
            list(ray.map(refused, "shared", range(4)))
        assert list(ray.map(product, matrix(), [])) == []
        assert repr(judged(ray)) == repr(judged(Processes()))


@pytest.mark.nightly
def test_a_node_that_dies_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster() as made:
        made.add_node(num_cpus=1)
        doomed = made.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        with engine(Kind.RAY) as ray:
            results = ray.map(slow_product, matrix(), range(PIECES))
            first = next(results)
            made.remove_node(doomed, allow_graceful=False)
            assert [first, *results] == one_after_the_other()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "nowhere.invalid:6379"])
def test_no_cluster_is_named_at_once(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(EngineFailed, match=f"there is no Ray at {address}"), engine(Kind.RAY):
        pass
