"""Measures the log classifier; one JSON object per figure goes to stdout, progress to stderr.

    python benchmarks/classification.py [NAME…]     all figures, or the named ones

`speed`: lines per CPU second of reading a synthetic job log and naming the cause, on one core, best of five, beside
Drain3 with three masks over the first lines of the same log (left out where Drain3 is not installed). CPU time, so
that other work on the machine counts for neither. `score`: the 29 reasons on the logs of tests/logs, by count and
weighted by lost GPU time; cues and logs are of one hand. `real`: diagnosis
against what a person read in the logs of ../shared/data.
"""

import importlib
import random
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import DATA, Figure, fastest, main
from federation.protocol.causes import CAUSES
from tenant_client.diagnosis.diagnose import diagnose, gather
from tenant_client.diagnosis.log_templates import Templates
from tenant_client.sources.reasons import counted_as

LOGS = Path(__file__).resolve().parents[1] / "tests" / "logs"

LINES, DRAIN_LINES = 400_000, 40_000
MIX = {"progress": 0.60, "nccl_info": 0.25, "other": 0.14, "traceback": 0.01}
TRACEBACK = (
    "[rank{r}]: Traceback (most recent call last):",
    '[rank{r}]:   File "/opt/train/track.py", line 20, in push',
    "[rank{r}]:     session.post(url, timeout=5)",
    "[rank{r}]: requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='tracking', port=443): Read timed out.",
)
LAST = "[rank3]: KeyError: 'input_ids'"


def speed() -> Figure:
    """Classification of the synthetic log, from the file to the diagnosis."""
    lines = list(synthetic_log(random.Random(29)))  # noqa: S311 -- a fixed log, no secret
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.log"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        seconds = fastest(lambda: diagnose(gather([file]).evidence), 5, time.process_time)
        megabytes = file.stat().st_size / 1e6
        reason = diagnose(gather([file]).evidence).reason
    rate = len(lines) / seconds
    templates = DRAIN_LINES / fastest(lambda: _learn(lines[:DRAIN_LINES]), 2, time.process_time)
    drain = _drain_lines_per_second(lines[:DRAIN_LINES])
    return {
        "lines": len(lines),
        "megabytes": round(megabytes, 1),
        "mix": MIX,
        "reason": reason,
        "lines_per_second": round(rate),
        "megabytes_per_second": round(megabytes / seconds, 1),
        "templates_lines_per_second": round(templates),
        "drain3_lines_per_second": round(drain) if drain else None,
        "times_faster_than_drain3": round(rate / drain, 1) if drain else None,
        **({} if drain else {"note": "Drain3 is not installed"}),
    }


def synthetic_log(rng: random.Random) -> Iterator[str]:
    """A job that survives failures to reach its tracker and ends with a KeyError of rank 3."""
    makers: dict[str, Callable[[random.Random, int], list[str]]] = {
        "progress": _progress,
        "nccl_info": _nccl_info,
        "other": _other,
        "traceback": _traceback,
    }
    weights = [MIX[name] / (len(TRACEBACK) if name == "traceback" else 1) for name in makers]
    written = 0
    while written < LINES - len(TRACEBACK):
        made = rng.choices(list(makers.values()), weights)[0](rng, written)
        written += len(made)
        yield from made
    yield from (line.format(r=3) for line in TRACEBACK[:-1])
    yield LAST


def _progress(rng: random.Random, at: int) -> list[str]:
    return [
        f"iteration {at:7d}/  900000 | consumed samples: {at * 1024:12d} | elapsed time per iteration (ms): "
        f"{rng.uniform(1400, 1600):.1f} | learning rate: 2.8E-04 | lm loss: {rng.uniform(1.8, 2.2):.6E} | "
        f"grad norm: {rng.uniform(0.2, 0.9):.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    ]


def _nccl_info(rng: random.Random, at: int) -> list[str]:
    rank, channel = rng.randrange(64), rng.randrange(16)
    text = f"Channel {channel:02d}/0 : {rank}[{rank % 8}] -> {rank + 1}[{(rank + 1) % 8}] via P2P/CUMEM"
    return [f"gpu-{rank // 8:03d}:{3100 + rank}:{3900 + at % 1000} [{rank % 8}] NCCL INFO {text}"]


def _other(rng: random.Random, at: int) -> list[str]:
    return [
        rng.choice(
            (
                f"[2025-11-03 04:00:{at % 60:02d},101] [INFO] [checkpoint.py:88:save] saved ckpt/step_{at} in 12.1 s",
                "  warnings.warn(",
                f"WARNING: rank {rng.randrange(64)} is {rng.randrange(9)} ms behind the median step",
                f"validation at step {at} | perplexity {rng.uniform(6, 9):.3f} | error rate {rng.random():.3f}",
            )
        )
    ]


def _traceback(rng: random.Random, _at: int) -> list[str]:
    rank = rng.randrange(64)
    return [line.format(r=rank) for line in TRACEBACK]


def _learn(lines: list[str]) -> None:
    known = Templates()
    for line in lines:
        known.learn(line)


def _drain_lines_per_second(lines: list[str]) -> float | None:
    try:
        drain3, masking = importlib.import_module("drain3"), importlib.import_module("drain3.masking")
    except ImportError:
        return None
    config = importlib.import_module("drain3.template_miner_config").TemplateMinerConfig()
    masks = (r"\b0x[0-9a-fA-F]+\b", r"\b\d+(?:\.\d+)+\b", r"\b\d+\b")
    config.masking_instructions = [masking.MaskingInstruction(mask, "N") for mask in masks]

    def mine() -> None:
        miner = drain3.TemplateMiner(config=config)
        for line in lines:
            miner.add_log_message(line)

    return len(lines) / fastest(mine, 2, time.process_time)


def score() -> Figure:
    """Each reason's two logs, and the logs that must stay unknown."""
    wanted = {name: row["reason"] for name, row in _table(LOGS / "expected.toml").items()}
    found = {name: diagnose(gather([LOGS / name]).evidence).reason for name in wanted}
    reasons = Counter(reason for reason in wanted.values() if reason != "unknown")
    wrong = {reason for name, reason in wanted.items() if found[name] != reason}
    lost = {slug: cause.share_of_lost_gpu_time for slug, cause in CAUSES.items()}
    right = {counted_as(reason) for reason in reasons} - {counted_as(reason) for reason in wrong}
    return {
        "logs": len(wanted),
        "logs_right": sum(found[name] == reason for name, reason in wanted.items()),
        "reasons": len(reasons),
        "reasons_right_in_all_logs": len(set(reasons) - wrong),
        "share_of_lost_gpu_time_right": round(sum(lost[slug] for slug in right & set(lost)) / sum(lost.values()), 4),
        "unknown_logs": sum(reason == "unknown" for reason in wanted.values()),
        "guessed": sorted(name for name, reason in wanted.items() if reason == "unknown" != found[name]),
    }


def real() -> Figure:
    """Rows of the confusion table: what a log says, what the diagnosis says, how many logs."""
    table = _table(LOGS / "real.toml")
    names = [name for name in table if (DATA / name).exists()]
    if not names:
        raise FileNotFoundError("../shared/data is missing")
    pairs = {name: (table[name]["reason"], diagnose(gather([DATA / name]).evidence).reason) for name in names}
    return {
        "logs": len(names),
        "right": sum(says == found for says, found in pairs.values()),
        "confusion": [
            {"says": says, "found": found, "logs": n} for (says, found), n in Counter(pairs.values()).items()
        ],
    }


def _table(file: Path) -> dict[str, dict[str, Any]]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(speed, score, real)
