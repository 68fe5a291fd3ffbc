"""Verbs that other distributions add to a program. They are found by metadata, and imported when they are called.

    [project.entry-points."pharoah.verbs"]
    "pharoah-provider.kubernetes" = "pharoah_kubernetes.verb:kubernetes"    # a function, or a `typer.Typer` of verbs
    "pharoah-provider.leases.slurm" = "pharoah_slurm.verb:slurm"            # in a group

Keys are in these processes: nothing of a plug-in runs because another verb is called. A verb of the program itself is
never replaced. In the program's settings, the section with the verb's name is the plug-in's to read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from crypto.errors import PharoahError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "pharoah.verbs"
# Plug-ins of this project by verb: where one is not installed, its verb says what to install.
DISTRIBUTIONS = {
    "pharoah-provider.benchmark": "pharoah-benchmarks",
    "pharoah-provider.kubernetes": "pharoah-kubernetes",
    "pharoah-provider.leases.slurm": "pharoah-slurm",
    "pharoah-provider.nodes.check": "pharoah-nodes",
    "pharoah-provider.nodes.path": "pharoah-fabric",
    "pharoah-provider.nodes.service": "pharoah-nodes",
    "pharoah-tenant.confirm": "pharoah-confirm",
    "pharoah-tenant.privacy.evidence": "pharoah-claims",
}
T = TypeVar("T")


class BrokenPlugIn(PharoahError):
    """The verb of a plug-in cannot be had; the program's other verbs can."""


@dataclass(frozen=True)
class PlugIn:
    """A verb by the entry points that name it: one, unless distributions disagree."""

    verb: str
    entries: "Sequence[EntryPoint]"

    @property
    def distributions(self) -> str:
        """Who adds it."""
        return ", ".join(sorted({entry.dist.name for entry in self.entries if entry.dist}))

    @property
    def summary(self) -> str:
        """What its distribution says of itself, in one line."""
        whose = self.entries[0].dist
        told = whose.metadata["Summary"] if whose and "Summary" in whose.metadata else "A plug-in"
        return f"{told} ({self.distributions})"

    def load(self, used: Callable[[Any], T]) -> T:
        """What `used` makes of the function or group, which is imported; BrokenPlugIn if that fails."""
        if len(self.entries) > 1:
            raise BrokenPlugIn(
                f"more than one plug-in adds {self.verb}: {self.distributions}", hint="uninstall all but one"
            )
        try:
            return used(self.entries[0].load())
        except Exception as error:  # a module of somebody else's may fail in any way
            cause = f"{type(error).__name__}: {error}"
            raise BrokenPlugIn(
                f"the plug-in {self.distributions} cannot be imported: {cause}",
                hint=f"install it anew, or uninstall it; {self.entries[0].value} is its verb {self.verb}",
            ) from error


def plug_ins(group: str) -> dict[str, PlugIn]:
    """The plug-ins of a program, or of a group as `PROGRAM.GROUP`, by their verbs; none is imported."""
    from importlib.metadata import entry_points  # a fifth of what the command line takes to load

    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        whose, _, verb = entry.name.rpartition(".")
        if whose == group and verb:
            found.setdefault(verb, []).append(entry)
    return {verb: PlugIn(verb, entries) for verb, entries in sorted(found.items())}
