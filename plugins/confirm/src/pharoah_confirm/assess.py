"""Turns measurements into a finding. A slow result is confirmed only if a second run shows it too.

The second run starts a moment later, so that a burst of load from other programs is not mistaken for slow hardware.
Wrong results need no comparison and no second run.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from federation.protocol.service_messages import CheckVerdict, Suspicion
from pharoah_confirm.criteria import BOUND, Criterion, SampleJudgement, judge
from pharoah_confirm.sample import CannotMeasure, Sample, WrongResult

MOST_BUSY = 0.25
SHOWN = (0.05, 0.25, 0.50, 0.75, 0.95)
BINS, BARS = 24, " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Measured:
    """A sample, and what other programs used: of the CPU during it, of the GPU before it.

    Above `MOST_BUSY` no slowness is confirmed.
    """

    sample: Sample
    busy: float
    on_device: float = 0.0


@dataclass(frozen=True)
class BenchmarkFinding:
    """The result of one benchmark. `compared_with` is fleet, own or nothing; `wrong` means wrong results."""

    suspicion: Suspicion
    benchmark: str
    verdict: CheckVerdict
    reason: str
    compared_with: str
    samples: tuple[Sample, ...]
    judgement: SampleJudgement | None = None
    criterion: Criterion | None = None
    wrong: bool = False

    @property
    def shortfall_percent(self) -> float:
        """The loss of speed in percent; 100 for wrong results, 0 if unknown."""
        if self.wrong:
            return 100.0
        return 100 * min(1.0, max(0.0, self.judgement.shortfall)) if self.judgement else 0.0


Find = Callable[[Sample], tuple[Criterion | None, str]]


def assess(
    suspicion: Suspicion,
    benchmark: str,
    measure: Callable[[], Measured],
    find: Find,
    *,
    undisturbed: bool = False,
    bound: float = BOUND,
) -> BenchmarkFinding:
    """Measures, compares with the criterion that `find` returns, and repeats a slow measurement once."""
    samples: list[Sample] = []
    judgement, criterion, compared = None, None, "nothing"
    verdict, reason = CheckVerdict.UNKNOWN, "no earlier runs or criteria to compare with"
    try:
        for number in (1, 2):
            measured = measure()
            samples.append(measured.sample)
            criterion, compared = find(measured.sample)
            if criterion is None:
                compared = "nothing"
                break
            judgement = judge(measured.sample, criterion, bound)
            verdict, reason = _lenient(judgement, measured, undisturbed=undisturbed, again=number == 2)
            if judgement.verdict is not CheckVerdict.MISMATCH:
                break
    except CannotMeasure as error:
        verdict, reason = CheckVerdict.UNKNOWN, f"{error.what}; {error.hint}"
    except WrongResult as error:
        return BenchmarkFinding(
            suspicion,
            benchmark,
            CheckVerdict.MISMATCH,
            error.what,
            "the known correct result",
            tuple(samples),
            wrong=True,
        )
    return BenchmarkFinding(suspicion, benchmark, verdict, reason, compared, tuple(samples), judgement, criterion)


def _lenient(
    judgement: SampleJudgement, measured: Measured, *, undisturbed: bool, again: bool
) -> tuple[CheckVerdict, str]:
    """A verdict, lowered if other programs used the CPU or the GPU, or if the run before disagrees."""
    used = {"GPU": measured.on_device, "CPU": 0.0 if undisturbed else measured.busy}
    what = max(used, key=used.__getitem__)
    if judgement.verdict is CheckVerdict.MISMATCH and used[what] > MOST_BUSY:
        return (
            CheckVerdict.WARNING,
            f"slow, but other programs used {used[what]:.0%} of the {what}; stop them and repeat the test",
        )
    if again and judgement.verdict is not CheckVerdict.MISMATCH:
        return CheckVerdict.WARNING, "slow in the first run, not in the second"
    return judgement.verdict, judgement.reason


def overall(verdicts: Iterable[CheckVerdict]) -> CheckVerdict:
    """MISMATCH if any verdict is, else WARNING if any is, else OK if all are, else UNKNOWN."""
    said = set(verdicts)
    for verdict in (CheckVerdict.MISMATCH, CheckVerdict.WARNING, CheckVerdict.UNKNOWN):
        if verdict in said:
            return verdict
    return CheckVerdict.OK if said else CheckVerdict.UNKNOWN


def bars(sample: Sample, low: float, high: float) -> str:
    """A histogram in one line, from rate `low` to rate `high`."""
    counts, _ = np.histogram(np.clip(sample.values, low, high), bins=BINS, range=(low, high))
    return "".join(BARS[int(np.ceil((len(BARS) - 1) * count / counts.max()))] for count in counts)


def rows(finding: BenchmarkFinding) -> list[str]:
    """Quantiles and histograms for a person: the usual first, then each run."""
    shown = [("usual", Sample("", "", "", np.array(finding.criterion.centre)))] if finding.criterion else []
    shown += [(f"run {number}", sample) for number, sample in enumerate(finding.samples, 1)]
    if not shown:
        return []
    low = float(min(np.quantile(sample.values, 0.01) for _, sample in shown))
    high = float(max(np.quantile(sample.values, 0.99) for _, sample in shown)) * (1 + 1e-9)
    head = f"{'':<8}" + "".join(f"{share:>10.0%}" for share in SHOWN)
    return [head] + [
        f"{name:<8}"
        + "".join(f"{rate:>10.4g}" for rate in np.quantile(sample.values, SHOWN))
        + f"  {bars(sample, low, high)}"
        for name, sample in shown
    ]
