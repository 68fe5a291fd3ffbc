"""Parts of the fabric that votes are counted for: leaf switches by rail, and units of nodes on the same leaves.

A tenant gets them with its lease as opaque tokens, anew each epoch: it learns which of its own nodes share a leaf, and
whether it had that leaf before in the epoch (docs/fabric.md). Which token is which part, only the provider knows.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from federation.protocol.round_messages import UnitParts
from provider_server.fleet.fabric import Fabric
from provider_server.fleet.leases import part_token


@dataclass(frozen=True)
class FabricParts:
    """The leaves by unit (`leaves[unit][rail]`, as rails are numbered in `rails`) and the unit of each node.

    A node without a leaf on each rail is in no unit. Without rails in the files all cards are one rail.
    """

    rails: tuple[int, ...]
    leaves: tuple[tuple[str, ...], ...]
    unit_of: Mapping[str, int]

    @classmethod
    def of(cls, fabric: Fabric) -> "FabricParts":
        """Those of a fabric."""
        at = {node: _leaves(fabric, node) for node in sorted(fabric.nodes)}
        rails = tuple(sorted({rail for own in at.values() for rail in own}))
        whole = {node: tuple(own[rail] for rail in rails) for node, own in at.items() if own.keys() == set(rails)}
        leaves = tuple(sorted({own for own in whole.values() if own}))
        number = {own: unit for unit, own in enumerate(leaves)}
        return cls(rails, leaves, {node: number[own] for node, own in whole.items() if own})

    def of_nodes(self, secret: bytes, epoch: int, nodes: Iterable[str]) -> tuple[UnitParts, ...]:
        """What a tenant is told with a lease of these nodes; those in no unit are left out."""
        by_unit: dict[int, list[str]] = defaultdict(list)
        for node in nodes:
            if node in self.unit_of:
                by_unit[self.unit_of[node]].append(node)
        return tuple(self._told(secret, epoch, unit, tuple(own)) for unit, own in by_unit.items())

    def _told(self, secret: bytes, epoch: int, unit: int, nodes: tuple[str, ...]) -> UnitParts:
        *rails, whole = (part_token(secret, epoch, name) for name in self.names(unit))
        return UnitParts(nodes, tuple(rails), whole)

    def names(self, unit: int) -> tuple[str, ...]:
        """The leaf of each rail of a unit, and the unit itself: no two parts of a fabric are called alike."""
        leaves = self.leaves[unit]
        own = (f"{rail}\0{leaf}" for rail, leaf in zip(self.rails, leaves, strict=True))
        return (*own, "unit\0" + "\0".join(leaves))

    def tokens(self, secret: bytes, epoch: int) -> list[list[str]]:
        """The token of every row: units × (rails, none known), in hexadecimal."""
        return [[str(part_token(secret, epoch, name)) for name in self.names(unit)] for unit in range(len(self.leaves))]


def _leaves(fabric: Fabric, node: str) -> dict[int, str]:
    """The first switch on each rail that the node has a cable to."""
    found: dict[int, str] = {}
    for cable in fabric.cables.get(node, ()):
        found.setdefault(cable.rail or 0, cable.other(node).device)
    return found
