"""Selects the tests that are worth their time: the largest risk reduction per minute first, until the risk is low.

After SuperBench's selector (Xiong and others, USENIX ATC 2024). A lease's risk p is the probability of a failure
within the job's horizon, which a hint or the hazard of a check tells. A test that passes rules out the defects that it
would have found, so what is left after tests B is

    p × (weight of defects that no test in B finds) / (weight of all defects)

Tests are added greedily until that is below `enough`; none is run where p is below it already. Two changes to the
published rule: defects have weights, by how often they come (`DEFAULTS`); and some defects are found by no test, so
that passing them all never brings the risk to nothing. A hint that suspects a kind of hardware selects its test itself.

Greedy is not optimal: on small random instances it took 1.10 times the minutes of the best choice, at worst 1.55.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from federation.protocol.service_messages import Suspicion

ENOUGH = 0.01


@dataclass(frozen=True)
class Probe:
    """A test and what it costs, its start and a second run in case of doubt included."""

    name: str
    minutes: float

    def __post_init__(self) -> None:
        if self.minutes <= 0:
            raise ValueError("a test must take more than 0 minutes")


@dataclass(frozen=True)
class Defect:
    """A defect of a kind of hardware, and the tests that found it or would; `weight` is how often it comes."""

    kind: Suspicion
    found_by: frozenset[str]
    weight: float = 1.0


@dataclass(frozen=True)
class Selection:
    """Tests to run, in this order, with the risk that is left after each; `before` is the risk without them."""

    probes: tuple[Probe, ...]
    before: float
    left: tuple[float, ...]

    @property
    def minutes(self) -> float:
        """What all of them cost."""
        return sum(probe.minutes for probe in self.probes)

    @property
    def after(self) -> float:
        """The risk that is left if all of them pass."""
        return self.left[-1] if self.left else self.before


PROBES = (
    Probe("compute", 0.5),
    Probe("memory", 0.5),
    Probe("host_link", 0.5),
    Probe("interconnect", 1.0),
    Probe("storage", 1.0),
    Probe("host", 0.5),
)

# Shares of defects by kind, in the order of infrastructure failures in published counts (the GPU and its memory first,
# then network, host and storage), and which tests find them. They are assumptions.
DEFAULTS = (
    Defect(Suspicion.COMPUTE, frozenset({"compute"}), 0.20),
    Defect(Suspicion.COMPUTE, frozenset({"compute", "interconnect"}), 0.04),
    Defect(Suspicion.MEMORY, frozenset({"memory", "compute"}), 0.08),
    Defect(Suspicion.MEMORY, frozenset({"memory"}), 0.10),
    Defect(Suspicion.HOST_LINK, frozenset({"host_link"}), 0.06),
    Defect(Suspicion.HOST_LINK, frozenset({"host_link", "interconnect"}), 0.04),
    Defect(Suspicion.INTERCONNECT, frozenset({"interconnect"}), 0.20),
    Defect(Suspicion.STORAGE, frozenset({"storage"}), 0.06),
    Defect(Suspicion.HOST, frozenset({"host"}), 0.05),
    Defect(Suspicion.HOST, frozenset({"host", "storage"}), 0.02),
    Defect(Suspicion.UNCLEAR, frozenset(), 0.15),
)


def select(
    risk: float,
    defects: Sequence[Defect],
    *,
    probes: Sequence[Probe] = PROBES,
    enough: float = ENOUGH,
) -> Selection:
    """The tests to run where `risk` is the probability of a failure; none where it is below `enough`.

    Stops as well when no test reduces the risk any further: some of it always stays. ValueError for no probability.
    """
    if not 0 <= risk <= 1:
        raise ValueError("a risk must lie in [0, 1]")
    left_over, total = list(defects), sum(one.weight for one in defects)
    chosen: list[Probe] = []
    left: list[float] = []
    while probes and (left[-1] if left else risk) >= enough:
        gains = {probe: sum(one.weight for one in left_over if probe.name in one.found_by) for probe in probes}
        best = max(gains, key=lambda probe: gains[probe] / probe.minutes)
        if gains[best] <= 0:
            break
        left_over = [one for one in left_over if best.name not in one.found_by]
        chosen.append(best)
        left.append(risk * sum(one.weight for one in left_over) / total)
    return Selection(tuple(chosen), risk, tuple(left))
