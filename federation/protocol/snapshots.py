"""Two snapshots of the same things, and what differs between them: two runs of a job, or a fleet before and after work.

A snapshot says of each thing (a node; of a run the run itself) what it is: features by name. A feature is of a kind,
alone (`precision`) or with a name of its own (`version:nccl`, `nic:mlx5_0`).

- A kind that only one of two snapshots tells is not compared: `untold` names it. Nothing is guessed.
- A thing that came or went is one difference, of the kind `node`, and not one for each of its features.

    >>> was = Snapshot("monday", {"n1": {"driver": "535.1", "rack": "3"}}, frozenset({"driver", "rack"}))
    >>> now = Snapshot("today", {"n1": {"driver": "550.2", "rack": "3"}}, frozenset({"driver", "rack"}))
    >>> [str(one) for one in differences(was, now)]
    ['n1: driver 535.1 → 550.2']
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from federation.protocol.version_ranges import order

THING = "node"  # the kind of a whole thing that came or went
_LONGEST = 60  # of values that are shown


@dataclass(frozen=True)
class Snapshot:
    """What there was at one time: features of things by name, and the kinds of features that it tells of.

    `lacks` are kinds that it ought to tell and does not, so that two snapshots that lack the same are not called alike.
    """

    name: str
    things: Mapping[str, Mapping[str, str]]
    tells: frozenset[str]
    lacks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Difference:
    """A feature of a thing that is not what it was; None where it was not there. `thing` is "" for a run."""

    thing: str
    feature: str
    before: str | None
    after: str | None

    @property
    def words(self) -> str:
        """The change without the thing."""
        name = short_name(self.feature)
        if self.before is None or self.after is None:
            return f"{name} {self.after or self.before or ''} is {'new' if self.before is None else 'gone'}"
        if self.before == self.after:
            return f"{name} {self.after if len(self.after) <= _LONGEST else ''} did not change"
        if len(self.before) + len(self.after) > _LONGEST:
            return f"{name} changed"
        return f"{name} {self.before} → {self.after}"

    @property
    def direction(self) -> int:
        """1 for a newer version, -1 for an older one, 0 where that cannot be said."""
        if self.before is None or self.after is None:
            return 0
        was, now = order(self.before), order(self.after)
        return (now > was) - (now < was)

    def __str__(self) -> str:
        return f"{self.thing}: {self.words}" if self.thing else self.words


def kind_of(feature: str) -> str:
    """`nic` of `nic:mlx5_0`, `rack` of `rack`."""
    return feature.partition(":")[0]


def short_name(feature: str) -> str:
    """How a feature is called among people: a version by its library alone."""
    kind, _, name = feature.partition(":")
    return name if name and kind in ("version", "software") else f"{kind} {name}".rstrip()


def matches(selector: str, feature: str) -> bool:
    """Whether a selector means this feature: by its kind, its name or both; a star at the end stands for anything.

    >>> [matches(text, "version:nccl") for text in ("nccl", "version", "version:nccl", "nc*", "torch")]
    [True, True, True, True, False]
    """
    kind, _, name = feature.partition(":")
    if selector.endswith("*"):
        return any(text.startswith(selector[:-1]) for text in (feature, name or feature))
    return selector in (kind, name, feature)


def differences(before: Snapshot, after: Snapshot) -> tuple[Difference, ...]:
    """What both tell of and differ in, in the order of things and features."""
    return tuple(_differences(before, after))


def untold(before: Snapshot, after: Snapshot) -> dict[str, str]:
    """The kinds that cannot be compared, each with the name of a snapshot that does not tell it."""
    kinds = (before.tells ^ after.tells) | before.lacks | after.lacks
    return {kind: (after if kind in before.tells else before).name for kind in sorted(kinds)}


def _differences(before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    both = before.tells & after.tells
    for thing in sorted(before.things.keys() | after.things.keys()):
        was, now = before.things.get(thing), after.things.get(thing)
        if was is None or now is None:
            yield Difference(thing, THING, None if was is None else thing, None if now is None else thing)
            continue
        for feature in sorted(was.keys() | now.keys()):
            if was.get(feature) != now.get(feature) and kind_of(feature) in both:
                yield Difference(thing, feature, was.get(feature), now.get(feature))
