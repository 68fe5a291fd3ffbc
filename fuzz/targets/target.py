"""What a target is: a function of bytes with its invariant stated first.

It returns where its invariant holds and raises anything at all where it does not, so that an exception that a decoder
should not raise is a finding by itself. `Broken` is raised where a decoder returned something that it should not have.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


class Broken(Exception):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Target:
    """A decoder under test; `seeds` are inputs to start from."""

    name: str
    invariant: str
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]


TARGETS: dict[str, Target] = {}


def target(
    name: str, invariant: str, seeds: Callable[[], Iterable[bytes]]
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Enters a function as the target `name`."""

    def enter(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
        TARGETS[name] = Target(name, invariant, check, seeds)
        return check

    return enter


def require(invariant: str, *, holds: bool) -> None:
    """Broken unless it holds."""
    if not holds:
        raise Broken(invariant)
