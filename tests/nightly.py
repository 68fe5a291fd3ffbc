"""All that is too long for `make test`.

    $ make nightly    # hours: out/nightly/report.md, and the log of each step beside it

The suite runs in several orders, on new examples, while other processes keep every processor busy; it has to notice
when a check is broken (`tests/mutants.py`); every decoder of foreign bytes goes through the fuzzer; the audit
measures what the whole path, from tenants to release, gives away; and jobs are made to fail for the diagnosis to find
out why (`pharoah-sim study diagnosis`). A federation soaks for an hour (`tests/soak`).
A step that fails ends none of the others. The exit status is 1 if any did.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SPIN = "while True: pass"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as the Makefile runs the suite
PARALLEL = ("-n", "auto", "--dist", "loadgroup", "--no-loadscope-reorder", "-m", "")
SHOWN_FAILURES = 40


@dataclass(frozen=True)
class Step:
    """One command; `under_load`: while every processor has something else to do."""

    name: str
    command: tuple[str, ...]
    under_load: bool = False


@dataclass(frozen=True)
class Done:
    """What came of a step."""

    step: Step
    status: int
    seconds: float
    said: tuple[str, ...]

    @property
    def last(self) -> str:
        """The last line that is not empty."""
        return next((line.strip(" =") for line in reversed(self.said) if line.strip()), "nothing")

    @property
    def failures(self) -> list[str]:
        """The tests that pytest names as failed."""
        return [line for line in self.said if line.startswith(("FAILED ", "ERROR "))]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    asked = _parser().parse_args(arguments)
    return run(steps(asked.orders, asked.seconds), asked.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--orders", type=int, default=10, help="orders of the suite (10)")
    parser.add_argument("--seconds", type=int, default=600, help="fuzzing of each decoder (600)")
    parser.add_argument("--out", type=Path, default=ROOT / "out/nightly", help="report and logs (out/nightly)")
    return parser


def steps(orders: int, fuzz_s: int) -> list[Step]:
    """The audit first, for it is the shortest."""
    suite = (sys.executable, "-m", "pytest", *PARALLEL, "--hypothesis-profile", "searching", "--order-seed")
    study = (sys.executable, "-m", "simulation", "study")
    return [
        Step("audit", (*study, "audit")),
        Step("diagnosis", (*study, "diagnosis")),
        Step("syndromes", (*study, "syndromes", "--jobs", "8", "--clean", "4", "--json")),
        Step("odd ranks", (*study, "odd-ranks")),
        Step("mutants", (sys.executable, "tests/mutants.py")),
        *(Step(f"order {seed}", (*suite, str(seed)), under_load=True) for seed in range(1, orders + 1)),
        Step("soak", ("make", "--no-print-directory", "soak")),
        Step("fuzz", ("make", "--no-print-directory", "fuzz", f"SECONDS_EACH={fuzz_s}")),
    ]


def run(todo: Sequence[Step], out: Path) -> int:
    """Takes all steps, reports after each, and keeps the report and the logs below `out`; the exit status."""
    out.mkdir(parents=True, exist_ok=True)
    done: list[Done] = []
    for step in todo:
        sys.stderr.write(f"nightly: {step.name}\n")
        done.append(take(step, out / f"{step.name.replace(' ', '-')}.log"))
        (out / "report.md").write_text(report(done), encoding="utf-8")
    sys.stdout.write(report(done))
    return int(any(one.status for one in done))


def take(step: Step, log: Path) -> Done:
    """Runs one step; its output goes to `log`."""
    began_s = time.monotonic()
    with ExitStack() as stack, log.open("wb") as output:
        if step.under_load:
            stack.enter_context(load(os.cpu_count() or 1))
        environment = {**os.environ, **ONE_THREAD}
        ended = subprocess.run(
            step.command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    said = tuple(log.read_text(encoding="utf-8", errors="replace").splitlines())
    return Done(step, ended.returncode, time.monotonic() - began_s, said)


@contextmanager
def load(processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes that are never idle, while the context lasts."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]
    try:
        yield spinning
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def report(done: Sequence[Done]) -> str:
    """A table of the steps, and the tests that failed in any."""
    rows = [
        f"| {one.step.name} | {'failed' if one.status else 'passed'} | {one.seconds / 60:.0f} | {one.last} |"
        for one in done
    ]
    failures = [f"- {one.step.name}: {line}" for one in done for line in one.failures[:SHOWN_FAILURES]]
    lines = ["| step | result | minutes | its last line |", "|---|---|---|---|", *rows]
    return "\n".join([*lines, *(["", *failures] if failures else []), ""])


if __name__ == "__main__":
    sys.exit(main())
