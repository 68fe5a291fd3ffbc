"""When to sample: pure arithmetic on steps and seconds, the same on every rank.

The candidates are known to all ranks without a word between them, so that ranks which sample do it at the same step
and none waits in a collective for one that samples later: steps 10, 11, …, 16, 18, 20, 22, …, each an eighth later than
the one before, and from the first sample on each twice as late. A candidate is taken when what sampling has cost, and
will cost once more, is at most `budget` of the time that has passed. The first sample has nothing to be measured
against:

- On a quiet host it is taken at the first candidate, and paid off before the second.
- On a busy host it is put off until the budget covers what it may cost there: `first_cost_s`, and the sampled steps
  taking twice as long as usual; but not beyond `patience_s`. The host is asked again at each candidate until then.

>>> pacer = Pacer(PacingSettings(), began_s=0.0)
>>> [step for step in range(1, 30) if pacer.due(step, now_s=step / 10, load_per_core=0.2)]
[10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 27]
>>> pacer = Pacer(PacingSettings(), began_s=0.0)
>>> pacer.due(10, now_s=1.0, load_per_core=0.2)
True
>>> pacer.charge(0.1)
>>> next(step for step in range(11, 9000) if pacer.due(step, now_s=step / 10, load_per_core=0.2))
2560
"""

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields

HISTORY_STEPS = 32


@dataclass(frozen=True)
class PacingSettings:
    """How the hook samples; each field can be set as `PHAROAH_SAMPLE_<FIELD>`.

    `first_step` is the first candidate, and `warmup` and `active` steps follow it; `budget` is a share of elapsed time;
    `samples` are the most per attempt; `load` is the load average per core and `jitter` the median deviation of a
    step's time from its median above which the host is busy; `first_cost_s` is what a first sample is taken to cost on
    a busy host, and `patience_s` how long it is put off at most; `local_ranks` samples on so many ranks of each node, 0
    for all.
    """

    first_step: int = 10
    warmup: int = 1
    active: int = 2
    budget: float = 0.0015
    samples: int = 4
    load: float = 1.5
    jitter: float = 0.5
    first_cost_s: float = 0.5
    patience_s: float = 600.0
    local_ranks: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "PacingSettings":
        """The defaults, but for what the environment sets; ValueError where that is no number."""
        names = {field.name: f"PHAROAH_SAMPLE_{field.name.upper()}" for field in fields(cls)}
        given = {name: environment[variable] for name, variable in names.items() if environment.get(variable)}
        return cls(**{name: type(getattr(cls, name))(text) for name, text in given.items()})


class Pacer:
    """Decides whether to sample, and adds up what that cost; reads no clock. `next_step` is the coming candidate.

    `busy` says in words what made it put off the last candidate, and is empty where nothing did.
    """

    def __init__(self, settings: PacingSettings, began_s: float) -> None:
        self.settings = settings
        self.spent_s = 0.0
        self.samples = 0
        self.stopped = settings.samples < 1
        self.busy = ""
        self._began_s = began_s
        self.next_step = max(1, settings.first_step)
        self._last_cost_s = 0.0
        self._durations_s: deque[float] = deque(maxlen=HISTORY_STEPS)

    def saw(self, duration_s: float) -> None:
        """Takes the time of one step that was not sampled."""
        self._durations_s.append(duration_s)

    def due(self, step: int, now_s: float, load_per_core: float) -> bool:
        """Whether to sample the steps that follow `step`; to be asked in order, at least at candidates."""
        while self.next_step < step:  # passed while a sample was under way
            self.next_step += self.next_step if self.samples else max(1, self.next_step // 8)
        if self.stopped or step != self.next_step:
            return False
        elapsed_s, self.busy = now_s - self._began_s, self._busy(load_per_core)
        if self.busy and self.samples:
            return False  # one is enough where others want the host
        if self.busy and elapsed_s < self.put_off_s():
            return False
        return self.spent_s + self._last_cost_s <= self.settings.budget * elapsed_s

    def put_off_s(self) -> float:
        """How long after the first step a busy host gets its first sample."""
        wanted = self.settings
        cost_s = wanted.first_cost_s + (wanted.warmup + wanted.active) * self.usual_step_s()
        return min(wanted.patience_s, cost_s / wanted.budget) if wanted.budget > 0 else wanted.patience_s

    def charge(self, cost_s: float) -> None:
        """Books one sample that took `cost_s` seconds from the job."""
        self.spent_s += cost_s
        self._last_cost_s = cost_s
        self.samples += 1
        self.stopped = self.samples >= self.settings.samples

    def usual_step_s(self) -> float:
        """The median time of a step that was not sampled; 0 before the first."""
        return statistics.median(self._durations_s) if self._durations_s else 0.0

    def _busy(self, load_per_core: float) -> str:
        if load_per_core > self.settings.load:
            return f"load {load_per_core:.1f} per core"
        if self._jitter() > self.settings.jitter:
            return "steps of very different length"
        return ""

    def _jitter(self) -> float:
        usual = self.usual_step_s()
        return statistics.median(abs(seconds - usual) for seconds in self._durations_s) / usual if usual else 0.0
