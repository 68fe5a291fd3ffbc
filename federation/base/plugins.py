"""Plug-ins: what other distributions offer under an entry-point group, for those that the settings name.

    [plugins]
    enable = ["acme-pharoah"]       # as pip names the distribution

Guarantees. Of a distribution that is not named nothing is imported; where none is named, none is looked for. Whatever a
plug-in raises, and its `sys.exit` too, is a `PluginFailed` with its name.

Not promised: that a plug-in which is named leaves alone what the process holds, keys among it, or that it returns.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from crypto.errors import PharoahError

_MOST_LETTERS = 200


class PluginFailed(PharoahError):
    """A plug-in cannot be loaded, raises, or breaks its contract."""

    default_hint = "tell its author, or take it out of [plugins] enable"

    def __init__(self, plugin: str, why: str) -> None:
        super().__init__(f"left out plug-in {plugin}: {why[:_MOST_LETTERS]}")
        self.plugin = plugin


@dataclass(frozen=True)
class Plugin:
    """What one entry point gave; `name` is its own, `where` names the distribution, too."""

    name: str
    where: str
    loaded: Any


def plugins(group: str, enabled: Collection[str], failed: Callable[[PluginFailed], None]) -> Iterator[Plugin]:
    """The entry points of the group in the enabled distributions; `failed` hears of each that cannot be had."""
    if not enabled:
        return
    from importlib.metadata import PackageNotFoundError, distribution

    for name in dict.fromkeys(enabled):
        try:
            offered = distribution(name).entry_points.select(group=group)
        except (PackageNotFoundError, ValueError):
            failed(PluginFailed(name, "it is not installed"))
            continue
        for point in offered:
            where = f"{point.name} of {name}"
            try:
                with calling(where):
                    loaded = point.load()
            except PluginFailed as fault:
                failed(fault)
            else:
                yield Plugin(point.name, where, loaded)


@contextmanager
def calling(plugin: str, passes: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Runs a plug-in's code; PluginFailed for whatever it raises, but for what `passes`."""
    try:
        yield
    except passes:
        raise
    except (Exception, SystemExit) as error:
        raise PluginFailed(plugin, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
