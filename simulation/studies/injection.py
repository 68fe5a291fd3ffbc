"""What injected faults teach about build-up: signals fitted on half of all kinds × doses, judged on the other half.

    traces of `benchmark inject`, played counters ─ Label.is_held_out ─┬─ fit ─▶ table, threshold
                                                                       └─ judge ─▶ AUROC, minutes of warning

Beside the fitted table stands what `buildup.toml` had before, which was chosen: `CHOSEN`, at a threshold of its own. A
window of a trace stands for an hour; minutes of warning are of such hours, from the first alarm to the end of the
fault. Differences are paired by trace, their intervals of resampled traces.
"""

import gzip
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from scipy.stats import rankdata

from federation.protocol.life_table import Floats
from pharoah_benchmarks.inject.played import DOSE_STEPS, PLAYED, label_of, play
from provider_server.fleet.analysis.buildup import Signal
from provider_server.fleet.analysis.fitted_buildup import (
    Fitted,
    Group,
    by_job,
    fit,
    healthy,
    leads,
    node_scores,
    telling,
    threshold_of,
)
from provider_server.fleet.analysis.injected import INJURED, Trace, read
from simulation.studies.study import Quick, Seed, Table

RECORDED = Path(__file__).with_suffix(".jsonl.gz")
GAUGES = ("gpu_temperature", "clock_offset")
REPEATS = 3  # of what is played
MINUTES = 60.0  # of a window
DRAWS, FITS = 1000, 20  # resampled differences, and fits
CHOSEN = {  # half-life and unit, before anything was fitted
    "ecc_corrected": (72.0, 4.0),
    "rows_remapped_correctable": (336.0, 0.5),
    "nvlink_crc_flit_errors": (72.0, 8.0),
    "nvlink_replays": (72.0, 4.0),
    "nvlink_recoveries": (168.0, 1.0),
    "thermal_violation": (72.0, 600.0),
    "gpu_temperature": (48.0, 2.0),
}


def played(seed: int) -> list[Trace]:
    """All kinds and doses, several times."""
    rng = np.random.default_rng([seed, 29])
    return [play(label_of(kind, dose), rng) for kind, dose, _ in itertools.product(PLAYED, DOSE_STEPS, range(REPEATS))]


def recorded(file: Path) -> list[Trace]:
    """Those of a file, which may be packed."""
    packed = file.read_bytes()
    text = gzip.decompress(packed) if file.suffix == ".gz" else packed
    return list(read(text.decode().splitlines()))


def _signal(metric: str, half_life: float, unit: float) -> Signal:
    words = "of a study"
    return Signal(metric, "mean" if metric in GAUGES else "increase", half_life, unit, words, words, words)


def _halves(traces: Sequence[Trace]) -> tuple[list[Group], list[Group]]:
    early, late = (by_job(one for one in traces if one.label.is_held_out is side) for side in (False, True))
    return early, late


class Judged(msgspec.Struct, frozen=True):
    """Of the half that was held out: AUROC of windows and of nodes, minutes of warning by trace, threshold."""

    auroc_windows: float
    auroc_nodes: float
    minutes: list[float]
    threshold: float


def judge(early: Sequence[Group], late: Sequence[Group], table: Sequence[Signal]) -> Judged:
    """What a table is worth in the later groups, at the threshold of one false alarm a node-month in the earlier."""
    threshold = threshold_of([(node_scores(group, table), group) for group in early])
    found = [(node_scores(group, table), group) for group in late]
    faulty = [series for one, group in found for series in one[group.onset :, :, INJURED].T]
    calm = [series for one, group in found for series in healthy(one, group)]
    minutes = MINUTES * np.concatenate([leads(one, group, threshold) for one, group in found])
    most = [np.array([np.nanmax(series) for series in some]) for some in (faulty, calm)]
    return Judged(_auroc(np.concatenate(faulty), np.concatenate(calm)), _auroc(*most), minutes.tolist(), threshold)


def _auroc(bad: Floats, good: Floats) -> float:
    bad = bad[np.isfinite(bad)]
    ranks = rankdata(np.concatenate([bad, good]))[: len(bad)]
    return float((ranks.sum() - len(bad) * (len(bad) + 1) / 2.0) / (len(bad) * len(good)))


def _compared(job: str, early: Sequence[Group], late: Sequence[Group], rows: Sequence[Fitted], seed: int) -> Any:
    """Both tables on the half that was held out of one job; of `moved` kinds some metric told in the other half."""
    chosen = judge(early, late, [_signal(metric, *numbers) for metric, numbers in CHOSEN.items()])
    fitted = judge(early, late, [_signal(row.metric, row.half_life_h, row.unit) for row in rows])
    ahead, rng = np.array(fitted.minutes) - np.array(chosen.minutes), np.random.default_rng([seed, 30])
    again = ahead[rng.integers(0, len(ahead), (DRAWS, len(ahead)))].mean(axis=1)
    kinds = [label.kind for group in late for label in group.labels]
    known = {one.kind for row in rows for one in row.moved if one.job == job}
    seen = [group.take([at for at, kind in enumerate(kinds) if kind in known]) for group in late]
    by_kind = {kind: [one for one, at in zip(fitted.minutes, kinds, strict=True) if at == kind] for kind in kinds}
    sides = {"fitted": fitted, "chosen": chosen}
    moved = judge(early, seen, [_signal(row.metric, row.half_life_h, row.unit) for row in rows])
    return {
        "traces": len(ahead),
        **{f"auroc_windows_{name}": side.auroc_windows for name, side in sides.items()},
        **{f"auroc_nodes_{name}": side.auroc_nodes for name, side in sides.items()},
        **{f"minutes_{name}": float(np.mean(side.minutes)) for name, side in sides.items()},
        **{f"warned_share_{name}": float(np.mean(np.array(side.minutes) > 0)) for name, side in sides.items()},
        "auroc_windows_moved": moved.auroc_windows,
        "auroc_nodes_moved": moved.auroc_nodes,
        "warned_share_moved": float(np.mean(np.array(moved.minutes) > 0)),
        "minutes_ahead": float(ahead.mean()),
        "minutes_ahead_interval": [float(one) for one in np.percentile(again, [2.5, 97.5])],
        "minutes_by_kind": {kind: float(np.mean(all_)) for kind, all_ in by_kind.items()},
    }


def run(
    seed: Seed = 0,
    traces: Annotated[Path, typer.Option(help="Traces of `pharoah-provider benchmark inject`.")] = RECORDED,
    *,
    quick: Quick = False,
) -> Table:
    """Build-up that is fitted to injected faults, beside what was chosen, on kinds and doses that were held out."""
    judged: dict[str, Any] = {}
    rows: list[Fitted] = []
    for some in (recorded(traces), played(seed)):
        early, late = _halves(some)
        found = fit(early, np.random.default_rng([seed, 31]), draws=2 if quick else FITS)
        rows += found
        for group in late:
            job = group.labels[0].job
            judged[job] = _compared(job, [one for one in early if one.labels[0].job == job], [group], found, seed)
    return Table({"judged": judged, "rows": [msgspec.to_builtins(row) for row in rows], "telling": telling(rows)})
