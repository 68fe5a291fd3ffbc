"""Which nodes' standing changed since the last time that a receiver took it: what is worth an event."""

from collections.abc import Sequence

from provider_server.hints.node_reports import NodeReport, NodeStanding

LEAST_LEVEL = 1  # receivers choose their own threshold; each event carries the level


class Changes:
    """The standing of each node as a receiver has it. A silent node keeps its standing.

    >>> from provider_server.hints.node_reports import NodeReport
    >>> changes, one = Changes(), NodeReport("n1", 1, 2, True, "memory")
    >>> len(changes.of([one])), changes.taken([one]), len(changes.of([one]))
    (1, None, 0)
    """

    def __init__(self) -> None:
        self._last: dict[str, NodeStanding] = {}

    def of(self, reports: Sequence[NodeReport]) -> list[NodeReport]:
        """Nodes that are raised now and were not, or are no longer."""
        return [
            one
            for one in reports
            if one.is_heard and one.standing(LEAST_LEVEL) != self._last.get(one.node, NodeStanding.OK)
        ]

    def taken(self, reports: Sequence[NodeReport]) -> None:
        """The receiver has these; without this they are sent again."""
        self._last |= {one.node: one.standing(LEAST_LEVEL) for one in reports if one.is_heard}
