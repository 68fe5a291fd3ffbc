"""Two options of this suite's own, which of its tests run and in which order, and which of them stay together.

`--order-seed N` takes the modules, and within each its tests, in an order of its own for every N; a module's tests stay
together, so that its fixtures are made once. `--skipped` runs what the last run skipped: after something was installed
(`tests/needs.py`), only that is left to show.

Side by side, a module is one worker's, so that its fixtures are made once. Named groups wait for other programs, and
begin first; then come the longest modules, those of `tests/system`, or one of them would end alone.
"""

import gc
import random
import re
from collections.abc import Generator, Sequence
from typing import TypeVar

import pytest

KEY = "pharoah/skipped"
SYSTEM = "tests/system/"
GROUP = re.compile(r"@[^]@]*$")  # what pytest-xdist puts behind the name of a test that has a group
Item = TypeVar("Item")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options."""
    group = parser.getgroup("pharoah")
    group.addoption(
        "--order-seed", type=int, metavar="N", help="run the tests in another order, the same for the same N"
    )
    group.addoption("--skipped", action="store_true", help="run only what the last run skipped")


def pytest_configure(config: pytest.Config) -> None:
    """Puts the options to work."""
    config.pluginmanager.register(Selection(config), "pharoah-selection")


class Selection:
    """What the options ask of one run, and what this run skips."""

    def __init__(self, config: pytest.Config) -> None:
        self._seed: int | None = config.getoption("--order-seed")
        self._only: list[str] | None = None
        if config.getoption("--skipped") and (cache := cache_of(config)):
            self._only = cache.get(KEY, [])
        self._skipped: set[str] = set()

    @pytest.hookimpl(tryfirst=True)  # pytest then puts the tests together that share a parameter of a wider fixture
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leaves out what is not asked for, and orders the rest."""
        if self._only is not None:
            left_out = [item for item in items if not asked_for(item.nodeid, self._only)]
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if asked_for(item.nodeid, self._only)]
        items.sort(key=lambda item: 2 * (item.get_closest_marker("xdist_group") is None) - (SYSTEM in item.nodeid))
        for item in items:
            if not item.get_closest_marker("xdist_group"):
                item.add_marker(pytest.mark.xdist_group(module_of(item)))
        if self._seed is not None:
            items[:] = shuffled([(module_of(item), item) for item in items], self._seed)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Modules and tests stay until the end: the garbage collector need not look at them again and again."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.freeze()
            gc.enable()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A whole module may be skipped."""
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test may be skipped before it begins or in its midst."""
        self._note(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The next run may ask for what this one skipped; workers leave that to who started them."""
        if (cache := cache_of(session.config)) and not hasattr(session.config, "workerinput"):
            cache.set(KEY, sorted(self._skipped))

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped.add(GROUP.sub("", report.nodeid))


def module_of(item: pytest.Item) -> str:
    """The file that it is in."""
    return item.nodeid.partition("::")[0]


def cache_of(config: pytest.Config) -> pytest.Cache | None:
    """Where a run leaves word for the next; None with `-p no:cacheprovider`."""
    return getattr(config, "cache", None)


def asked_for(nodeid: str, skipped: Sequence[str]) -> bool:
    """Whether a test was skipped, or its module."""
    return GROUP.sub("", nodeid) in skipped or nodeid.partition("::")[0] in skipped


def shuffled(items: Sequence[tuple[str, Item]], seed: int) -> list[Item]:
    """Items with the name of their module: modules in a new order, and the items of each."""
    rng = random.Random(seed)
    modules: dict[str, list[Item]] = {}
    for name, item in items:
        modules.setdefault(name, []).append(item)
    order = list(modules.values())
    for tests in order:
        rng.shuffle(tests)
    rng.shuffle(order)
    return [item for tests in order for item in tests]
