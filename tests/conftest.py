"""Fixtures that several files share; what they hand out is made in `tests/support/factories.py`."""

import signal
from _signal import getsignal  # type: ignore[import-not-found]  # that of `signal` makes enums, in twenty times the time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from federation.base import tls
from tests.selection import pytest_addoption as pytest_addoption, pytest_configure as pytest_configure
from tests.support.factories import Cast
from tests.support.postgres import postgresql as postgresql  # a fixture, for whoever asks for it

tls.forbid_1_2()  # before any test imports gRPC
collect_ignore = ["jobs"]  # programs that tests start, some under PyTorch; here they would be imported for doctests

# A busy machine is no bug: time is a benchmark's business. Examples are the same 50 each time, but in `make nightly`.
settings.register_profile("searching", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("untimed", settings.get_profile("searching"), derandomize=True, max_examples=50)
settings.load_profile("untimed")


# A shell's background job ignores Ctrl-C, and so would every program that a test starts and ends by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """A verb that serves takes the signals that end it; called in the tests' process, it would keep them for good.

    Any other signal is as it was before, or programs that later tests start would inherit it ignored or blocked.
    """
    before, ours = handlers(), {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)}
    yield
    for kind, handler in ours.items():
        signal.signal(kind, handler)
    assert handlers() == before


def handlers() -> tuple[list[object], set[int]]:
    """Who takes each signal, and which are blocked."""
    return [getsignal(number) for number in range(1, 32)], signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    """Whoever takes part in one test, closed when it ends."""
    with closing(Cast(tmp_path)) as parties:
        yield parties


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes whatever a test opened, the last first."""
    with ExitStack() as stack:
        yield stack
