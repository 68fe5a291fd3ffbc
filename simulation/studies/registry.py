"""The studies by name. A study is a module of this package with a function `run`, whose parameters are its options."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from simulation.studies.study import Table


@dataclass(frozen=True)
class Study:
    """A question and the module that answers it, which is imported when it is run."""

    name: str
    question: str
    module: str

    @property
    def function(self) -> Callable[..., Table]:
        """The module's `run`."""
        found: Callable[..., Table] = import_module(f"simulation.studies.{self.module}").run
        return found

    def run(self, seed: int = 0, *, quick: bool = False, **more: Any) -> Table:
        """The answer. What draws nothing takes no seed, and what has no small size takes no notice of `quick`."""
        takes = inspect.signature(self.function).parameters
        given = {"seed": seed, "quick": quick}
        return self.function(**{name: value for name, value in given.items() if name in takes}, **more)


STUDIES = (
    Study("field", "Which kinds of cloud, and which sizes, let the provider find which mismatches?", "field"),
    Study("learning", "How good are findings at epsilon 1 and 2, and without privacy?", "learning"),
    Study("attendance", "What do noise and findings lose when not everybody answers?", "attendance"),
    Study("epochs", "What remains known when tokens change with the epoch?", "epochs"),
    Study("looks", "How many false accusations does a year of bundles make?", "looks"),
    Study("impact", "What are checks and hints worth to those who heed them?", "impact"),
    Study("check-history", "What does a tenant's own history add to its checks?", "check_history"),
    Study("world", "How far are simulated faults from those of a real fleet?", "world"),
    Study("poison", "How soon is a member named that sends false counts?", "poison"),
    Study("audit", "What does the whole path, from counts to releases, give away?", "audit.study"),
    Study("aggregation", "What does a secure sum cost, beside Flower's SecAgg+?", "aggregation"),
    Study("scale", "What does a round cost each party as tenants and cells grow?", "scale"),
    Study("check", "How fast are checks of the online service, and what do idle streams cost?", "check"),
    Study("cost", "What do masks, noise, tokens, the codec, the help and the learner cost?", "cost"),
    Study("diagnosis", "How often are causes found in jobs made to fail and in labelled logs?", "diagnosis.study"),
    Study("labelled-logs", "How often are causes found in other labelled logs?", "diagnosis.logs"),
    Study(
        "two-sided",
        "How often are causes found from the tenant's half, the provider's, and both?",
        "diagnosis.two_sided",
    ),
    Study(
        "explanations",
        "How often is the first cause that `show --only explain` names the right one?",
        "diagnosis.explanations",
    ),
    Study("sureness", "How sure may a diagnosis be, by what it rests on?", "diagnosis.sureness"),
    Study("syndromes", "Which hangs and slow ranks of real jobs are told right, and how soon?", "syndromes"),
    Study("odd-ranks", "Does the observer say what is odd about a rank of a real job, and which?", "odd_ranks"),
    Study("stragglers", "Do our what-if slowdowns agree with those that ByteDance published?", "stragglers"),
    Study("confirm", "How often is a healthy machine accused, and a slow one found?", "confirm"),
    Study("replacement", "How long does a job stand until a spare has replaced a node that hangs?", "replacement"),
    Study("overhead", "What does the hook cost a training job?", "overhead"),
    Study("install-size", "What does `pip install pharoah` bring to a training image?", "install_size"),
    Study("gpu", "Does all that needs a GPU work on this machine's?", "gpu.study"),
)
