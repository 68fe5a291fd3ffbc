"""How much of a healthy attempt's log filter rules drop, and whether they drop a line that tells of a failure.

    python -m benchmarks.diagnosis.filters [--json] [--mlperf CLONE] [--logs FILE.jsonl…] [--campaign FOLDER…] [--jobs]

Rules are learnt from the first three runs of a workload; the fourth is what they drop lines of. Workloads are:

- of a clone of mlcommons/training_results_v3.0 (real training jobs of many vendors, MLPerf's, Apache-2.0) forty with at
  least four runs, of those whose path hashes to an even byte: nobody looked at these while the rules were written;
- with `--jobs` and PyTorch, the campaign's own job under torchrun, which trains without a fault four times.

Then each labelled log (of this folder, gpualert and `--logs`) is written behind most of a healthy run of each of two of
these workloads, and logs of `--campaign` are filtered by the rules of the campaign's job. `roots_lost` counts decisive
lines that were dropped, `said_lost` all dropped lines of failing logs that a healthy run does not have.
"""

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.diagnosis import logs
from benchmarks.diagnosis.campaign import JOB
from tenant_client.diagnosis.diagnose import diagnose, gather
from tenant_client.diagnosis.filter_rules import healthy_patterns, keeps, pattern_of, read_lines
from tenant_client.records.healthy_lines import ENOUGH

WORKLOADS, SEED = 40, 3
_RESULT = re.compile(r"(.*/results/.*)/result_(\d+)\.txt")


@dataclass
class Workload:
    """One workload: the rules, a healthy run that they were not learnt from, and how much of it they drop."""

    name: str
    rules: AbstractSet[str]
    healthy: list[str]
    left: list[str]

    @cached_property
    def usual(self) -> AbstractSet[str]:
        """What the healthy run says."""
        return {pattern_of(line) for line in self.healthy}

    @property
    def dropped(self) -> float:
        """The share of the healthy run's lines."""
        return 1 - len(self.left) / len(self.healthy)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.diagnosis.filters", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--mlperf", type=Path, metavar="CLONE", help="a clone of mlcommons/training_results_v3.0")
    parser.add_argument("--logs", nargs="*", type=Path, default=[], metavar="FILE", help="more labelled excerpts")
    parser.add_argument(
        "--campaign", nargs="*", type=Path, default=[], metavar="FOLDER", help="campaigns that have run"
    )
    parser.add_argument("--jobs", action="store_true", help="train the campaign's job four times without a fault")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        real = list(mlperf(asked.mlperf, Path(folder))) if asked.mlperf else []
        own = [learnt("campaign", list(train(Path(folder))))] if asked.jobs else []
    labelled = [*logs.labelled(), *(row for file in asked.logs for row in logs.excerpts(file))]
    report = {
        "healthy": {"mlperf": healthy(real), "campaign": healthy(own)},
        "failing": {"labelled": injected(labelled, real + own), "campaign": of_campaigns(asked.campaign, own)},
    }
    sys.stdout.write(json.dumps(report) + "\n" if asked.json else shown(report))
    return 0


# ---- healthy runs --------------------------------------------------------------------------------------------------


def mlperf(clone: Path, folder: Path) -> Iterator[Workload]:
    """Workloads by lot, of the half that was not looked at."""
    git = ["git", "-C", str(clone)]
    listed = subprocess.run([*git, "ls-tree", "-r", "HEAD"], check=True, capture_output=True, text=True)
    runs: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for line in listed.stdout.splitlines():
        blob, _, path = line.partition("\t")
        if found := _RESULT.fullmatch(path):
            runs[found[1]].append((int(found[2]), blob.split()[2]))
    unseen = [name for name in sorted(runs) if not hashlib.sha256(name.encode()).digest()[0] % 2]
    enough = [name for name in unseen if len(runs[name]) > ENOUGH]
    random.Random(SEED).shuffle(enough)  # noqa: S311 -- a lot, no secret
    for name in enough[:WORKLOADS]:
        files = []
        for number, blob in sorted(runs[name])[: ENOUGH + 1]:
            files.append(folder / f"{number}.log")
            with files[-1].open("wb") as file:
                subprocess.run([*git, "cat-file", "blob", blob], check=True, stdout=file)
        yield learnt(name, files)


def train(folder: Path) -> Iterator[Path]:
    """Logs of the campaign's job without a fault."""
    (folder / "campaign.json").write_text('{"incidents": []}', encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(JOB)]
    env = os.environ | {"FAULT_CAMPAIGN": str(folder / "campaign.json"), "GLOO_SOCKET_IFNAME": "lo"}
    while len(list(folder.glob("train-*.log"))) <= ENOUGH:
        log = folder / f"train-{len(list(folder.glob('train-*.log')))}.log"
        with log.open("wb") as file:
            done = subprocess.run(command, env=env, stdout=file, stderr=subprocess.STDOUT, check=False)
        if done.returncode:  # Gloo does not always find its peers
            log.unlink()
        else:
            yield log


def learnt(name: str, files: Sequence[Path]) -> Workload:
    """Rules from all runs but the last."""
    seen = Counter(pattern for file in files[:-1] for pattern in healthy_patterns([file]))
    rules = {pattern for pattern, count in seen.items() if count >= ENOUGH}
    lines = [line for line in read_lines(files[-1]) if line.strip()]
    return Workload(name, rules, lines, [line for line in lines if keeps(line, rules)])


def healthy(workloads: Sequence[Workload]) -> dict[str, Any]:
    """How much is dropped, in all and of the workload of which the least is."""
    lines, left = sum(len(one.healthy) for one in workloads), sum(len(one.left) for one in workloads)
    shares = sorted(one.dropped for one in workloads)
    return {
        "workloads": len(workloads),
        "rules": sum(len(one.rules) for one in workloads),
        "lines": lines,
        "dropped": round(1 - left / lines, 5) if lines else None,
        "median": round(shares[len(shares) // 2], 5) if shares else None,
        "least": round(shares[0], 5) if shares else None,
    }


# ---- failing runs --------------------------------------------------------------------------------------------------


def injected(labelled: Sequence[logs.Labelled], workloads: Sequence[Workload]) -> dict[str, Any]:
    """Each log behind a part of a healthy run of two workloads, by lot."""
    rng, counts = random.Random(SEED), Counter[str]()  # noqa: S311 -- a lot, no secret
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        for one in labelled if workloads else ():
            for workload in rng.sample(workloads, min(2, len(workloads))):
                before = workload.healthy[: len(workload.healthy) * rng.randint(50, 95) // 100]
                log.write_text("\n".join([*before, one.text]), encoding="utf-8")
                counts += _lost(log, workload, len(before))
    return _figures(counts)


def of_campaigns(campaigns: Sequence[Path], own: Sequence[Workload]) -> dict[str, Any]:
    """The logs of jobs with a fault, by the rules of the same job without one."""
    counts = Counter[str]()
    for workload in own:
        for campaign in campaigns:
            for log in sorted(campaign.glob("jobs/*/job.log")):
                counts += _lost(log, workload, 0)
    return _figures(counts)


def _lost(log: Path, workload: Workload, skip: int) -> Counter[str]:
    root = diagnose(gather([log]).evidence).root
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    new = [line for line in lines[skip:] if line.strip()]
    said = [line for line in new if pattern_of(line) not in workload.usual]
    decisive = lines[root.line - 1] if root and root.line else ""
    return Counter(
        logs=1,
        lines=len(new),
        left=sum(keeps(line, workload.rules) for line in new),
        roots=bool(decisive),
        roots_lost=bool(decisive) and not keeps(decisive, workload.rules),
        said=len(said),
        said_lost=sum(not keeps(line, workload.rules) for line in said),
    )


def _figures(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in ("logs", "lines", "left", "roots", "roots_lost", "said", "said_lost")}


def shown(report: dict[str, Any]) -> str:
    """For a person."""
    rows = []
    for name, row in report["healthy"].items():
        if row["lines"]:
            rows.append(
                f"healthy, {name}: {row['dropped']:.2%} of {row['lines']:,} lines dropped,"
                f" {row['workloads']} workloads, median {row['median']:.2%}, least {row['least']:.2%}"
            )
    for name, row in report["failing"].items():
        if row["logs"]:
            rows.append(
                f"failing, {name}: {row['roots_lost']} of {row['roots']} decisive lines dropped,"
                f" {row['said_lost']} of {row['said']} unusual lines; {row['left']:,} of {row['lines']:,} left"
            )
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    sys.exit(main())
