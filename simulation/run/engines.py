"""Independent pieces of work side by side: over the processes of this machine, or over Ray, here or on a cluster.

    with engine(Kind.PROCESSES) as side_by_side:
        for result in side_by_side.map(work, shared, items):
            ...

Guaranteed: results come in the order of `items`, and are the same to the last bit whichever engine made them, if `work`
depends on `shared` and the item alone: each piece runs with one thread of linear algebra, since sums in another order
have other last bits. What `work` raises is raised here. A process that dies ends the work with an error, and never
waits for ever; on a Ray cluster the pieces of a node that dies are done again on another one.

`work` is a function of a module, which other processes import; all machines of a cluster have the same version of this
project. Ray executes what it is sent by whoever reaches it and has its token (`RAY_AUTH_MODE`, on by default from 2.60
on): give it a network of its own. Only simulations run on it, never a party of a federation. It is told not to report
its usage.
"""

import ctypes
import importlib
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from crypto.errors import PharoahError

PR_SET_PDEATHSIG = 1  # prctl(2): the signal that a process gets when who started it ends

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

ATTEMPTS = 10  # of a piece whose node dies
CONNECT_S = 10.0
_HERE = "local"
_USAGE = "RAY_USAGE_STATS_ENABLED"


class Kind(StrEnum):
    """The engines by name."""

    PROCESSES = "processes"
    RAY = "ray"


class EngineFailed(PharoahError):
    """The engine cannot be used, or lost its processes or nodes."""


class Engine(Protocol):
    """Does work side by side."""

    def map(self, work: Callable[[S, T], R], shared: S, items: Sequence[T]) -> Iterator[R]:
        """`work(shared, item)` for each item, in order."""


@contextmanager
def engine(kind: Kind) -> Iterator[Engine]:
    """An engine while the block runs; EngineFailed where there is no Ray at `RAY_ADDRESS`."""
    if kind is Kind.PROCESSES:
        yield Processes()
        return
    with _ray(os.environ.get("RAY_ADDRESS", _HERE)) as ray:
        yield OverRay(ray)


# ---- processes -------------------------------------------------------------------------------------------------------


class Processes:
    """A process for each core. Where processes can be forked, `shared` is inherited, and not copied to each."""

    def map(self, work: Callable[[S, T], R], shared: S, items: Sequence[T]) -> Iterator[R]:
        """`work(shared, item)` for each item, in order; EngineFailed if a process dies."""
        kind = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(kind)
        many = max(1, min(len(items), os.cpu_count() or 1))
        pool = ProcessPoolExecutor(many, context, initializer=_begin, initargs=(work, shared))
        try:
            yield from pool.map(_worked, items)
        except BrokenProcessPool as error:
            raise EngineFailed(
                "a process of the simulation was ended from outside", hint="was memory short? see the kernel's log"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


class Here:
    """In this process, one piece after the other: for work that is one of many itself."""

    def map(self, work: Callable[[S, T], R], shared: S, items: Sequence[T]) -> Iterator[R]:
        """`work(shared, item)` for each item, in order."""
        return (work(shared, item) for item in items)


_inherited: tuple[Callable[[Any, Any], Any], Any] | None = None


def _begin(work: Callable[[Any, Any], Any], shared: object) -> None:
    """In a new process, which ends with its parent, however that ends.

    A handler of SIGTERM that the parent has set would run here and end nothing.
    """
    global _inherited  # the only way in that copies nothing
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _inherited = work, shared


def _worked(item: object) -> Any:
    if _inherited is None:
        raise RuntimeError("work comes after the process has begun")
    return _alone(*_inherited, item)


def _alone(work: Callable[[Any, Any], R], shared: object, item: object) -> R:
    from threadpoolctl import threadpool_limits  # comes with the extra that plays simulations

    with threadpool_limits(1):
        return work(shared, item)


# ---- Ray -------------------------------------------------------------------------------------------------------------


class OverRay:
    """Over a Ray that was started; `shared` is copied once to each node that works."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def map(self, work: Callable[[S, T], R], shared: S, items: Sequence[T]) -> Iterator[R]:
        """`work(shared, item)` for each item, in order; EngineFailed if nodes are lost for good."""
        piece, place = self._ray.remote(max_retries=ATTEMPTS)(_alone), self._ray.put(shared)
        pending = [piece.remote(work, place, item) for item in items]
        try:
            for one in pending:
                yield self._ray.get(one)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            raise EngineFailed(f"Ray lost a piece of work: {type(error).__name__}") from error


@contextmanager
def _ray(address: str) -> Iterator[Any]:
    os.environ.setdefault(_USAGE, "0")
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise EngineFailed("Ray is not installed", hint="pip install 'pharoah-sim[ray]'") from error
    if address != _HERE:
        _check_answers(address)
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """EngineFailed unless somebody listens there: Ray itself would try for minutes, and then end the process."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise EngineFailed(f"there is no Ray at {address}", hint="start a node there: `ray start --head`") from error
