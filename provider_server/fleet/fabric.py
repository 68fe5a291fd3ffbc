"""The provider's own graph of its fabric: node → network card → port → switch → rail.

    inventory, lldpctl, ibnetdiscover, topology.conf ─ fabric_files ─▶ Cable × n ─ Fabric.of

Pure; it holds no tenant, lease or token, and never leaves the provider.

Not promised: that cards of one number are one rail unless a file says so.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class CableEnd:
    """One end of a cable: a node's card or a switch's port; `port` is "" where the file names none."""

    device: str
    port: str = ""

    def __str__(self) -> str:
        return f"{self.device} {self.port}".rstrip()


@dataclass(frozen=True)
class Cable:
    """A link between two devices; `rail` is None where no file says which."""

    a: CableEnd
    b: CableEnd
    rail: int | None = None

    def end(self, device: str) -> CableEnd:
        """The end at this device."""
        return self.a if self.a.device == device else self.b

    def other(self, device: str) -> CableEnd:
        """The end at the other device."""
        return self.b if self.a.device == device else self.a


@dataclass(frozen=True)
class Fabric:
    """All cables by device. A cable that both ends told of is there once."""

    cables: Mapping[str, tuple[Cable, ...]]
    nodes: frozenset[str]

    @classmethod
    def of(cls, cables: Iterable[Cable], nodes: Iterable[str]) -> "Fabric":
        """From what files say; a statement without ports gives way to one of the same devices with them."""
        said: dict[frozenset[str], dict[frozenset[CableEnd], Cable]] = defaultdict(dict)
        for cable in cables:
            ends, same = frozenset({cable.a, cable.b}), said[frozenset({cable.a.device, cable.b.device})]
            before = same.get(ends)
            same[ends] = cable if before is None or before.rail is None else before
        by_device: dict[str, list[Cable]] = defaultdict(list)
        for same in said.values():
            detailed = [one for one in same.values() if one.a.port or one.b.port]
            for cable in detailed or same.values():
                by_device[cable.a.device].append(cable)
                by_device[cable.b.device].append(cable)
        known = {device: tuple(sorted(found, key=lambda one: (one.a, one.b))) for device, found in by_device.items()}
        return cls(known, frozenset(nodes))
