"""Watches the ranks of one host for the four syndromes; `Syndromes.poll` tells what is new.

    cells → (somebody stands still?) → flight recorders, stacks, /proc → who waits for whom → a hang?
          → step records → slow?

The ranks are asked only after `SUSPECT_S` without a change of place on some rank, once for each standstill; until then
a poll reads shared memory and nothing else.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tenant_client.doctor.run.hook.answers import RECORDS, STACK
from tenant_client.doctor.run.hook.cell import CellState
from tenant_client.doctor.run.syndromes import hangs, links, waits
from tenant_client.doctor.run.syndromes.hangs import HangLimits
from tenant_client.doctor.run.syndromes.process import Activity, pressure_percent
from tenant_client.doctor.run.syndromes.ranks import Ranks
from tenant_client.doctor.run.syndromes.slowness import SlowLimits, Slowness
from tenant_client.doctor.run.syndromes.stacks import stack_of
from tenant_client.doctor.run.syndromes.views import Link, RankView, Syndrome, Verdict, Views, Waiting

SUSPECT_S = 3.0
CROWDED_PERCENT, STARVED_PERCENT = 25.0, 80.0
HANGS = (Syndrome.NON_COMMUNICATION_HANG, Syndrome.COMMUNICATION_HANG, Syndrome.MISMATCHED_COLLECTIVE)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/")
_FOLDERS = re.compile(r"\([^()\n]*/")
_ANSWER_S = 3.0
_AGAIN_S = 15.0
# What functions are called in which a rank may rightly keep others waiting, by the words of their names.
_ASIDE_WORDS = {
    "loader": (
        "batch",
        "batches",
        "collate",
        "dataset",
        "dataloader",
        "getitem",
        "fetch",
        "loader",
        "prefetch",
        "next",
    ),
    "checkpoint": ("checkpoint", "ckpt", "save", "restore"),
    "eval": ("eval", "evaluate", "evaluation", "validate", "validation", "generate"),
    "start": ("compile", "inductor", "dynamo", "warmup"),
}


@dataclass
class _Standstill:
    """What was learnt when the ranks `entries` stood still; worthless once one of them moves."""

    entries: Mapping[int, int]
    asked_s: float
    waiting: Waiting | None
    stacks: Mapping[int, str]
    links: set[Link] = field(default_factory=set)
    hang: Verdict | None = None

    @property
    def complete(self) -> bool:
        """Whether every rank that others wait for has shown its stack."""
        return self.waiting is None or self.waiting.missing <= self.stacks.keys()


class Syndromes:
    """The watch of one attempt. Times are of the monotonic clock."""

    def __init__(
        self,
        run_dir: Path,
        hang_limits: HangLimits = HangLimits(),  # noqa: B008  # frozen
        slow_limits: SlowLimits = SlowLimits(),  # noqa: B008  # frozen
        activity: Callable[[int], Activity] = Activity,
    ) -> None:
        self._run_dir = run_dir
        self._ranks = Ranks(run_dir)
        self._hang_limits = hang_limits
        self._slow_limits = slow_limits
        self._slowness = Slowness(slow_limits)
        self._new_activity = activity
        self._activity: dict[int, Activity] = {}
        self._restart = 0
        self._still: _Standstill | None = None
        self._looks, self._seen = 0, Counter[Link]()
        self.steps = 0

    def poll(self, now_s: float) -> Verdict | None:
        """The verdict that holds now, or None."""
        states = self._ranks.states()
        if self._still is not None and self._still.hang is not None and not self._still.entries.keys() <= states.keys():
            return self._still.hang  # a rank that ended did not go on
        if len(states) < 2:
            return None
        self._follow_restart(states)
        self.steps = min(state.step for state in states.values())
        pressure = pressure_percent()
        records = {rank: state.records for rank, state in states.items()}
        slow = self._slowness.feed(now_s, records, crowded=pressure > CROWDED_PERCENT)
        if slow is not None and pressure > STARVED_PERCENT:
            slow = _for_want_of_processors(slow)
        still = {rank: state for rank, state in states.items() if now_s - state.since_ns / 1e9 >= SUSPECT_S}
        if not still:
            self._still, self._activity = None, {}
            return self._with_link(slow, states, pressure)
        return self._judge_standstill(now_s, states, still, pressure) or slow

    def stack_of(self, rank: int) -> str:
        """Where the rank stands in its program, "" where that cannot be known."""
        state = self._ranks.states().get(rank)
        return stack_of(self._ranks, state.who, self._run_dir) if state is not None else ""

    def close(self) -> None:
        """Ends the watch."""
        self._ranks.close()

    def _with_link(self, slow: Verdict | None, states: Mapping[int, CellState], pressure: float) -> Verdict | None:
        """Collectives that are slow, with the ranks whose connections have data under way at most looks."""
        suspected = self._slowness.suspected
        if suspected is None or suspected.syndrome is not Syndrome.COMMUNICATION_SLOW:
            self._looks, self._seen = 0, Counter()
            return slow
        self._looks += 1
        crowded = pressure > CROWDED_PERCENT
        self._seen.update(links.look({rank: state.who.pid for rank, state in states.items()}, crowded=crowded))
        if slow is None or slow.syndrome is Syndrome.UNDECIDED:
            return slow
        found = [one for one, seen in self._seen.items() if 2 * seen > self._looks]
        if not found and crowded:
            return _for_want_of_processors(slow)
        ranks, link = hangs.blamed(found)
        return replace(slow, ranks=ranks or (tuple(states) if len(states) == 2 else ()), link=link)

    def _follow_restart(self, states: Mapping[int, CellState]) -> None:
        restart = next(iter(states.values())).who.restart
        if restart != self._restart:
            self._restart, self._still, self._activity = restart, None, {}
            self._slowness = Slowness(self._slow_limits)

    def _judge_standstill(
        self, now_s: float, states: Mapping[int, CellState], still: Mapping[int, CellState], pressure: float
    ) -> Verdict | None:
        views = {rank: self._view(now_s, state) for rank, state in states.items()}
        entries = {rank: state.entries for rank, state in still.items()}
        known = self._still
        again_s = _AGAIN_S if known is None or known.complete else 0.0
        if known is None or entries != known.entries or now_s - known.asked_s >= again_s:
            again = known is not None and entries == known.entries
            hang = known.hang if known is not None and again else None
            known = self._still = replace(self._ask(now_s, views, entries), hang=hang)
        if known.hang is not None:
            return known.hang  # what was said holds until somebody moves: connections look different later on
        views, crowded = {rank: _with_stack(one, known) for rank, one in views.items()}, pressure > CROWDED_PERCENT
        if known.waiting is not None and known.waiting.stuck:
            seen = links.look({rank: state.who.pid for rank, state in states.items()}, crowded=crowded)
            known.links = seen if not known.links else known.links & seen
        waiting = known.waiting or Waiting()
        found = hangs.judge(now_s, views, waiting, self._hang_limits, known.links, crowded=crowded)
        known.hang = found if found is not None and found.syndrome in HANGS else None
        return found

    def _view(self, now_s: float, state: CellState) -> RankView:
        who = state.who
        if who.rank not in self._activity:
            self._activity[who.rank] = self._new_activity(who.pid)
        doing = self._activity[who.rank].look(now_s)
        since_s = state.since_ns / 1e9
        return RankView(who.rank, state.place, since_s, state.step, state.entries, doing, records=state.records)

    def _ask(self, now_s: float, views: Views, entries: Mapping[int, int]) -> _Standstill:
        reachable = [rank for rank, one in views.items() if not one.doing.stopped]
        waiting = waits.of(views, self._ranks.ask(RECORDS, reachable, _ANSWER_S))
        missing = [] if waiting is None else [rank for rank in waiting.missing if rank in reachable]
        answers = self._ranks.ask(STACK, missing, _ANSWER_S) if missing else {}
        stacks = {rank: text.decode(errors="replace") for rank, text in answers.items()}
        return _Standstill(entries, now_s, waiting, stacks)


def _with_stack(one: RankView, known: _Standstill) -> RankView:
    asked = known.waiting is not None and one.rank in known.waiting.missing
    stack = known.stacks.get(one.rank, "")
    return replace(one, aside=aside_of(stack), answered=bool(stack) or not asked)


def aside_of(stack: str) -> str:
    r"""Where a rank is by the names of the functions on its stack, "" where they tell nothing.

    >>> aside_of("main (train.py:3)\n_fetch_data (dataloader.py:788)")
    'loader'
    >>> aside_of("main (save_everything.py:3)\nall_reduce (distributed_c10d.py:3)")
    ''
    """
    functions = [line.partition(" (")[0].lower() for line in stack.splitlines()]
    words = {word for function in functions for word in re.split(r"[^a-z]+", function)}
    return next((place for place, telling in _ASIDE_WORDS.items() if not words.isdisjoint(telling)), "")


def _for_want_of_processors(slow: Verdict) -> Verdict:
    return replace(slow, syndrome=Syndrome.UNDECIDED, why=f"{slow.why}, but the host is short of processors")


def sentence(verdict: Verdict, stacks: Mapping[int, str]) -> str:
    """The verdict for a person, with the innermost lines of each named rank's stack."""
    shown = [f"; rank {rank} at {_innermost(stack)}" for rank, stack in stacks.items() if stack]
    return verdict.why + "".join(shown)


def _innermost(stack: str, lines: int = 2) -> str:
    """The innermost lines of the job's own code, or one and what it called of a library."""
    frames = stack.splitlines()[::-1]
    own = [one for one in frames if not _LIBRARY.search(one)] or frames
    called = [frames[0].partition(" (")[0]] if own[0] is not frames[0] else []
    return _FOLDERS.sub("(", " < ".join([*called, *own[: lines - len(called)]]))
