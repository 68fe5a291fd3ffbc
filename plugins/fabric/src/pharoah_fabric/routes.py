"""Paths between two nodes in the provider's graph of its fabric, rail by rail.

Where several switches lie on equally short ways, which of them a flow takes is the fabric's choice: they are one hop,
"one of". Pure.

Not promised: that forwarding takes the shortest way.
"""

from collections.abc import Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise

from federation.base.route import Hop, HopHealth, Route, worst
from provider_server.fleet.fabric import Cable, CableEnd, Fabric

_SHOWN = 8


@dataclass(frozen=True)
class FabricHealth:
    """What telemetry says: state and notes of nodes, and errors of the ports that it has counters of."""

    nodes: Mapping[str, tuple[HopHealth, str]] = field(default_factory=dict)
    ports: Mapping[CableEnd, Sequence[str]] = field(default_factory=dict)

    def of_end(self, end: CableEnd) -> tuple[HopHealth, Sequence[str]]:
        """The health of one end of a cable; cards are told with and without their port's number."""
        names = (end.port, f"{end.port}:1")
        notes = next((self.ports[one] for name in names if (one := CableEnd(end.device, name)) in self.ports), None)
        if notes:
            return HopHealth.DOUBT, notes
        return (HopHealth.CLEAR, ()) if notes is not None else (HopHealth.UNKNOWN, ("no telemetry of this port",))


def routes(fabric: Fabric, start: str, end: str, health: FabricHealth) -> tuple[Route, ...]:
    """A route for each rail that both nodes have; over all cards together where no file tells rails."""
    rails = sorted(_rails(fabric, start) & _rails(fabric, end))
    asked: Sequence[int | None] = rails or [None]
    found = [_route(fabric, start, end, rail, health) for rail in asked]
    return tuple(found)


def _rails(fabric: Fabric, node: str) -> set[int]:
    return {cable.rail for cable in fabric.cables.get(node, ()) if cable.rail is not None}


def _route(fabric: Fabric, start: str, end: str, rail: int | None, health: FabricHealth) -> Route:
    title = f"{start} to {end}{f' on rail {rail}' if rail is not None else ''}"
    layers = _layers(fabric, start, end, rail)
    if not layers:
        hops = (_node(start, health), Hop("link", "", HopHealth.UNKNOWN, ("no file joins them",)), _node(end, health))
        return Route(title, hops, ("any switch between them",))
    hops_: list[Hop] = [_node(start, health)]
    for here, there in pairwise(layers):
        ends = [(cable.end(one), cable.other(one)) for one in sorted(here) for cable in _of(fabric, one, rail)]
        ends = [(near, far) for near, far in ends if far.device in there]
        hops_.append(_ports("nic" if here == {start} else "port", [near for near, _ in ends], health))
        hops_.append(_ports("nic" if there == {end} else "port", [far for _, far in ends], health))
        hops_.append(_node(end, health) if there == {end} else _switches(there))
    return Route(title, tuple(hops_), tuple(_limits(layers, rail)))


def _of(fabric: Fabric, device: str, rail: int | None) -> Iterator[Cable]:
    """A device's cables; of a node those of the rail."""
    for cable in fabric.cables.get(device, ()):
        if rail is None or cable.rail in (None, rail):
            yield cable


def _layers(fabric: Fabric, start: str, end: str, rail: int | None) -> list[set[str]]:
    """Devices on any shortest way, by their distance from the start. Nodes in between forward nothing."""
    reached, layers = {start}, [{start}]
    while layers[-1] and end not in layers[-1]:
        near = {cable.other(device).device for device in layers[-1] for cable in _of(fabric, device, rail)}
        layers.append({device for device in near - reached if device == end or device not in fabric.nodes})
        reached |= layers[-1]
    if end not in layers[-1]:
        return []
    layers[-1] = {end}
    for place in range(len(layers) - 2, -1, -1):
        after = layers[place + 1]
        layers[place] = {
            device
            for device in layers[place]
            if any(cable.other(device).device in after for cable in _of(fabric, device, rail))
        }
    return layers


def _node(name: str, health: FabricHealth) -> Hop:
    state, note = health.nodes.get(name, (HopHealth.UNKNOWN, "no report of telemetry"))
    return Hop("node", name, state, (note,) if note else ())


def _ports(kind: str, ends: Sequence[CableEnd], health: FabricHealth) -> Hop:
    """One port, or one of several; the worst of them tells the hop's health."""
    states = [(end, *health.of_end(end)) for end in dict.fromkeys(ends)]
    notes = [f"{end}: {note}" for end, state, told in states if state is HopHealth.DOUBT for note in told]
    notes += list(dict.fromkeys(note for _, state, told in states if state is HopHealth.UNKNOWN for note in told))
    known = [end for end, _, _ in states if end.port]
    return replace(_named(kind, known), health=worst([state for _, state, _ in states]), notes=tuple(notes[:_SHOWN]))


def _switches(names: AbstractSet[str]) -> Hop:
    return replace(_named("switch", [CableEnd(name) for name in sorted(names)]), notes=("seen by its ports only",))


def _named(kind: str, ends: Sequence[CableEnd]) -> Hop:
    shown = ", ".join(map(str, ends[:_SHOWN])) + (f" and {len(ends) - _SHOWN} more" if len(ends) > _SHOWN else "")
    return Hop(kind, f"one of {shown}" if len(ends) > 1 else shown, HopHealth.UNKNOWN)


def _limits(layers: Sequence[AbstractSet[str]], rail: int | None) -> Iterator[str]:
    if any(len(layer) > 1 for layer in layers):
        yield "which of several equal ways a flow takes"
    if rail is None:
        yield "rails: no file names one that both nodes have"
