"""Fuzzes the decoders of foreign bytes: `python fuzz/run.py [TARGET…] --seconds N`; without a name, all of them.

Coverage guides the search where atheris is installed (`pip install atheris`); without it, plain mutations of the seeds
are tried. Progress goes to stderr. An input that breaks a target's invariant is kept below `--out` and its path printed
to stdout; the exit status is 1 then. `--input FILE` tries one file again, with the whole traceback. The inputs that
reached something new stay in `--out`, and the next run goes on from there.
"""

import argparse
import hashlib
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(REPOSITORY)]

from fuzz.mutation import until_broken  # noqa: E402  # after the path: this file is a script
from fuzz.targets import TARGETS, Target  # noqa: E402

REPORT_EVERY_S = 10.0
SLOWEST_S = 25  # an input that takes longer is a finding
MOST_MB = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    asked = _asked(arguments)
    if asked.input:
        return _again([TARGETS[name] for name in asked.targets], asked.input)
    findings = []
    for name in asked.targets or TARGETS:
        _say(f"{name}: {TARGETS[name].invariant}")
        findings += _fuzz(TARGETS[name], asked.seconds, asked.out)
    for path in findings:
        sys.stdout.write(f"{path}\n")
    return 1 if findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], epilog=f"targets: {', '.join(TARGETS)}"
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which decoders; all by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each target (60)")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"), help="corpora and findings (out/fuzz)")
    parser.add_argument("--input", type=Path, help="try this file once, with the targets named")
    return parser


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.targets) - set(TARGETS)):
        parser.error(f"unknown target {', '.join(unknown)}; the targets are {', '.join(TARGETS)}")
    if asked.input and not asked.targets:
        parser.error("name the target that --input is for")
    return asked


def _again(targets: Sequence[Target], file: Path) -> int:
    for target in targets:
        target.check(file.read_bytes())
        _say(f"{target.name}: {file} is taken as it should be")
    return 0


def _fuzz(target: Target, seconds: float, out: Path) -> list[Path]:
    findings = out / "findings"
    findings.mkdir(parents=True, exist_ok=True)
    guided = find_spec("atheris") is not None
    return _guided(target, seconds, out) if guided else _mutating(target, seconds, findings)


def _mutating(target: Target, seconds: float, findings: Path) -> list[Path]:
    count, broken = until_broken(target.check, list(target.seeds()), seconds, seed=time.time_ns())
    _say(f"{target.name}: {count} inputs in {seconds:g} s, without coverage")
    if broken is None:
        return []
    data, error = broken
    path = findings / f"{target.name}-crash-{hashlib.sha256(data).hexdigest()[:16]}"
    path.write_bytes(data)
    _say("".join(traceback.format_exception(error)))
    return [path]


def _guided(target: Target, seconds: float, out: Path) -> list[Path]:
    """Runs atheris in a process of its own, whose output goes to a file and whose last word goes to stderr."""
    findings, corpus, log = out / "findings", out / "corpus" / target.name, out / f"{target.name}.log"
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    before = set(findings.iterdir())
    with log.open("wb") as output:
        guided = str(REPOSITORY / "fuzz" / "guided.py")
        command = [sys.executable, guided, target.name, *_options(target, seconds, findings), str(corpus)]
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
            status = _watch(target, process, log)
    if status == 0:
        return []
    _say("\n".join(_lines(log)[-40:]))
    return sorted(set(findings.iterdir()) - before) or [log]


def _options(target: Target, seconds: float, findings: Path) -> list[str]:
    return [
        f"-max_total_time={max(1, round(seconds))}",
        f"-artifact_prefix={findings}/{target.name}-",
        f"-timeout={SLOWEST_S}",
        f"-rss_limit_mb={MOST_MB}",
        "-max_len=65536",
        "-print_final_stats=1",
    ]


def _watch(target: Target, process: "subprocess.Popen[bytes]", log: Path) -> int:
    while True:
        try:
            status = process.wait(REPORT_EVERY_S)
        except subprocess.TimeoutExpired:
            status = None
        progress = [line for line in _lines(log) if line[:1] == "#" and line[1:2].isdigit()]
        _say(f"{target.name}: {progress[-1] if progress else 'starting'}")
        if status is not None:
            return status


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
