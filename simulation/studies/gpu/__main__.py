"""Tries all that needs a GPU on this machine's, and says what was tried: out/gpu/report.json and report.txt.

    make gpu PYTHON=python3     # or, with the wheels installed: python3 -m simulation.studies.gpu [PART ...]

Each part is a process of its own with a time limit of its own: one that fails, crashes or hangs stops no other. What
would not end within the budget of all is left out, and says so. Without a card the parts that need none are tried.
Nothing is downloaded, and no setting of a card is changed. Exit code 1: a part failed. 2: nothing could be tried.

This file needs nothing but Python. Packages that the interpreter lacks come from wheels (`make gpu-wheels`), installed
into an environment of their own that also sees the interpreter's packages.
"""

import argparse
import json
import os
import secrets
import signal
import site
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from simulation.studies.gpu.notes import LINES, written
from simulation.studies.gpu.parts import PARTS, Part

# ---- the report ------------------------------------------------------------------------------------------------------


PASSED, FAILED, SKIPPED = "pass", "fail", "skipped"


@dataclass
class Result:
    """What became of one part; `why` says it in words unless it passed."""

    name: str
    result: str = SKIPPED
    why: str = ""
    seconds: float = 0.0
    limit_s: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    evidence: dict[str, str] = field(default_factory=dict)


def judged(result: Result, lines: list[dict[str, Any]], ended: str, stderr: str) -> Result:
    """Puts a part's notes into its result. `ended` says how its process ended badly, "" if it did not."""
    for line in lines:
        result.figures |= line.get("figures", {})
        result.checks += [line] if "check" in line else []
        result.evidence |= {line["evidence"]: line["text"]} if "evidence" in line else {}
    bad = [f"{one['check']}: {one['said']}".removesuffix(": ") for one in result.checks if not one["good"]]
    skipped = next((line["skipped"] for line in lines if "skipped" in line), "")
    if ended:
        result.result, result.why = FAILED, "; ".join([ended, *bad])
        result.evidence["stderr"] = stderr
    elif bad:
        result.result, result.why = FAILED, "; ".join(bad)
    elif skipped or not result.checks:
        result.result, result.why = SKIPPED, skipped or "it checked nothing"
    else:
        result.result, result.why = PASSED, ""
    return result


def write(folder: Path, results: list[Result], began_s: float, budget_s: float) -> str:
    """Writes report.json and report.txt; the text."""
    card = next((one.figures for one in results if one.name == "card"), {})
    seconds = round(time.time() - began_s, 1)
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began_s))
    counts = {kind: sum(one.result == kind for one in results) for kind in (PASSED, FAILED, SKIPPED)}
    told = {"version": 1, "began": began, "seconds": seconds, "budget_s": budget_s, **counts, "card": card}
    text = json.dumps({**told, "parts": list(map(asdict, results))}, indent=1)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    head = f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped in {seconds:.0f} s ({began})"
    said = "\n".join([head, " · ".join(f"{name} {value}" for name, value in card.items()), "", *_rows(results)]) + "\n"
    (folder / "report.txt").write_text(said, encoding="utf-8")
    return said


def _rows(results: list[Result]) -> list[str]:
    rows = []
    for one in results:
        rows.append(f"{one.result:<8} {one.name:<24} {one.seconds:>6.1f} s  {one.why}".rstrip())
        rows += [f"{'':<9}{name}: {_short(value)}" for name, value in one.figures.items() if one.name != "card"]
        rows += [
            f"{'':<9}{'ok ' if check['good'] else 'NOT'} {check['check']}: {check['said']}" for check in one.checks
        ]
    return rows


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(inner)}" for name, inner in value.items())
    return str(value)


ROOT = Path(__file__).resolve().parents[3]
PLUG_IN = ROOT / "plugins" / "confirm" / "src"  # which nothing has installed
BUDGET_S, LEAST_S, ENDING_S, AT_ONCE = 480.0, 5.0, 10.0, 4
PRESENT = ("torch", "numpy", "scipy", "msgpack", "typer", "rich")
WHEELS = ("click", "msgspec", "packaging", "shellingham", "typer")
MARK = "PHAROAH_GPU_ACCEPTANCE"  # in the environment of all that a part starts, so that none of it stays


def main() -> int:
    """Runs the parts and writes the report after each; the exit code."""
    parser = argparse.ArgumentParser(prog="make gpu", description="acceptance on a GPU")
    parser.add_argument("parts", nargs="*", help=f"by default all: {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("out/gpu"), help="folder of the report")
    parser.add_argument("--wheels", type=Path, default=Path("out/gpu-wheels"), help="what `make gpu-wheels` made")
    parser.add_argument("--seconds", type=float, default=BUDGET_S, help="budget of all parts together")
    options = parser.parse_args()
    if unknown := set(options.parts) - {part.name for part in PARTS}:
        parser.error(f"no part {', '.join(sorted(unknown))}")
    began_s, results, said = time.time(), list[Result](), ""
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pharoah-gpu-") as folder:
        python = prepared(Path(folder), options.wheels)
        if missing := lacking(python):
            sys.stderr.write(f"make gpu: error: {sys.executable} lacks {missing}\n")
            sys.stderr.write("make gpu: hint: pass PYTHON=… with PyTorch; `make gpu-wheels` fetches the rest\n")
            return 2
        wanted = [part for part in PARTS if part.name in (options.parts or [part.name])]
        for result in tried(wanted, Path(folder), python, began_s + options.seconds):
            results.append(result)
            sys.stderr.write(f"{result.result:<8} {result.name:<24} {result.seconds:>6.1f} s  {result.why[:200]}\n")
            said = write(options.out, results, began_s, options.seconds)
    sys.stdout.write(said + f"report: {options.out / 'report.json'}\n")
    return int(any(result.result == FAILED for result in results))


# ---- the interpreter -----------------------------------------------------------------------------------------------


def prepared(folder: Path, wheels: Path) -> str:
    """The interpreter for the parts: this one, or where there are wheels one of an environment that has them."""
    if not wheels.is_dir():
        return sys.executable
    venv.EnvBuilder(symlinks=True).create(folder / "venv")
    packages = next((folder / "venv" / "lib").glob("python3*")) / "site-packages"
    # Behind its own packages, those of this interpreter, which may be a virtual environment itself.
    seen = [str(ROOT), *site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    (packages / "seen.pth").write_text("\n".join(seen) + "\n", encoding="utf-8")
    offline = ["--quiet", "--no-index", "--no-deps", "--no-cache-dir", "--find-links", str(wheels)]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", str(packages), *WHEELS]
    subprocess.run(command, check=False)  # what it cannot install will be said to be lacking
    return str(folder / "venv" / "bin" / "python")


def lacking(python: str) -> str:
    """The packages that are not there, or why the command line cannot be loaded with those that are."""
    find = f"import importlib.util as u; print(*(n for n in {(*PRESENT, *WHEELS)} if u.find_spec(n) is None))"
    found = subprocess.run(
        [python, "-c", f"{find}; import tenant_client.program.cli, pharoah_confirm.verb"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or (found.stderr.strip().splitlines()[-1] if found.returncode else "")


def environment() -> dict[str, str]:
    """This process's, in which Python also finds the plug-in."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(PLUG_IN), os.environ.get("PYTHONPATH"))))}


# ---- parts ---------------------------------------------------------------------------------------------------------


def tried(parts: list[Part], folder: Path, python: str, until_s: float) -> Iterator[Result]:
    """The result of each part, in their order; neighbours that disturb nobody run at the same time."""
    device = "cuda:0" if Path("/dev/nvidiactl").exists() else "cpu"
    width = max(1, min(AT_ONCE, (os.cpu_count() or 1) // 2))
    for beside, neighbours in groupby(parts, lambda part: part.beside):
        if beside:
            with ThreadPoolExecutor(width) as pool:
                yield from pool.map(partial(attempted, folder, python, device, until_s), neighbours)
            continue
        for part in neighbours:
            result = attempted(folder, python, device, until_s, part)
            device = result.figures.get("device", device)
            yield result


def attempted(folder: Path, python: str, device: str, until_s: float, part: Part) -> Result:
    """Runs one part in a process of its own, within its limit and what is left of the budget."""
    result, began_s = Result(part.name, limit_s=part.limit_s), time.time()
    left_s = min(part.limit_s, until_s - began_s)
    if part.needs_card and device == "cpu":
        result.why = "torch finds no CUDA device"
        return result
    if left_s < LEAST_S:
        result.why = "no time is left of the budget of all parts"
        return result
    mark, errors = secrets.token_hex(8), folder / f"{part.name}.err"
    command = [python, "-m", "simulation.studies.gpu.parts", part.name, device, str(folder), str(left_s)]
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={"OMP_NUM_THREADS": "1", **environment(), MARK: mark},
            stdout=stderr,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
        )
        try:
            code = process.wait(left_s)
            ended = "" if code == 0 else f"ended with {code}"
        except subprocess.TimeoutExpired:
            ended = f"took longer than {left_s:.0f} s"
        end_all(mark)
        process.wait()
    said = "\n".join(errors.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:])
    if ended.startswith("ended") and said:
        ended += f": {said.splitlines()[-1]}"
    result.seconds = round(time.time() - began_s, 1)
    return judged(result, written(folder / f"{part.name}.jsonl"), ended, said)


def end_all(mark: str) -> None:
    """Kills what a part has left, ranks in sessions of their own among it: their environment has the part's mark."""
    wanted, until_s = f"{MARK}={mark}".encode(), time.monotonic() + ENDING_S
    while (left := list(_marked(wanted))) and time.monotonic() < until_s:  # who is killed may just have started another
        for process in left:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def _marked(wanted: bytes) -> Iterator[int]:
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in file.read_bytes().split(b"\0"):
                yield int(file.parent.name)


if __name__ == "__main__":
    sys.exit(main())
