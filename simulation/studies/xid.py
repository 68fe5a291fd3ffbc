"""Whether an error of a GPU is called hardware where it is: planted cases, and public threads that became known.

Planted: a fleet where a job fails on a node with a code, and what the owner has seen of that job elsewhere, of other
jobs there, and of the rest. What it came from is one of eight kinds. How often a code is hardware is drawn for each
seed around a mix that is not the judge's: by the classes of Fire-Flyer AI-HPC (arXiv 2408.14158), which holds a failing
GSP and engine for hardware, where NVIDIA's columns name the driver too. Rates are drawn case by case from uniform laws;
the judge assumes beta laws. Lines say nothing of the truth, but that clean-ups follow hardware errors.

Threads: `tests/tenant_client/doctor/xid_threads.toml`, labelled before there was a judge, and halved by a hash. Labels
and the judge's table are by one hand, which had read the threads: the unseen half was scored once, and not tuned on.

Not measured: own outcomes of a fleet; logs of data centres beside what trackers show.
"""

import hashlib
import random
import tomllib
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from federation.protocol.xid_judge import NONE, CodeHistory, CodeLine, Tally, judge
from simulation.studies.study import ROOT, Quick, Seed, Table

THREADS = ROOT / "tests" / "tenant_client" / "doctor" / "xid_threads.toml"
CALLED = 0.9
MOST_BRIER, LEAST_RIGHT = 0.10, 0.95

# What it comes from: which share of pairs (job, node) shows it, of this job elsewhere, of others here, of all others.
Range = tuple[float, float]
PROGRAM: dict[str, tuple[Range, Range, Range]] = {
    "bug": ((0.8, 1.0), (0.0, 0.0), (0.0, 0.0)),
    "rare_bug": ((0.1, 0.6), (0.0, 0.0), (0.0, 0.0)),
    "bug_of_one_input": ((0.0, 0.15), (0.0, 0.0), (0.0, 0.0)),
}
DRIVER: dict[str, tuple[Range, Range, Range]] = {
    "driver_everywhere": ((0.05, 0.7), (0.05, 0.7), (0.05, 0.7)),
    "driver_under_such_jobs": ((0.2, 0.9), (0.0, 0.2), (0.0, 0.2)),
}
HARDWARE: dict[str, tuple[Range, Range, Range]] = {
    "broken": ((0.0, 0.0), (0.7, 1.0), (0.0, 0.0)),
    "intermittent": ((0.0, 0.0), (0.1, 0.5), (0.0, 0.0)),
    "under_load": ((0.0, 0.05), (0.0, 0.25), (0.0, 0.01)),
}
# By code: Beta(a, b) of the share of hardware, the share of programs in the rest, how often other jobs show it anyway.
MIX: dict[str, tuple[Range, float, float]] = {
    "13": ((2, 8), 0.8, 0.03),
    "31": ((2, 8), 0.8, 0.03),
    "43": ((2, 8), 0.8, 0.03),
    "45": ((2, 8), 0.8, 0.03),
    "48": ((60, 1), 0.0, 0.002),
    "62": ((8, 2), 0.0, 0.002),
    "63": ((60, 1), 0.0, 0.004),
    "69": ((6, 4), 0.7, 0.004),
    "74": ((30, 2), 0.0, 0.004),
    "79": ((20, 2), 0.0, 0.002),
    "94": ((60, 2), 0.0, 0.004),
    "119": ((7, 3), 0.0, 0.004),
}
LINES: dict[str, tuple[str, ...]] = {
    "13": (
        "Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Out Of Range Address",
        "Graphics SM Global Exception on (GPC 9, TPC 1, SM 1): Multiple Warp Errors",
        "Graphics Exception: ESR 0x546fb0=0x11f000e",
    ),
    "31": (
        "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
        "MMU Fault: ENGINE CE2 HUBCLIENT_CE0 faulted. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
        "Ch 00000013, engmask 00000101, intr 10000000",
    ),
}
FOLLOWERS, CLEANED = ("43", "45"), ("48", "74", "79", "94")


class Planted(NamedTuple):
    """One case: what it came from, and what its owner sees."""

    code: str
    kind: str
    truth: str
    lines: tuple[CodeLine, ...]
    history: CodeHistory


def planted(rng: random.Random, each: int) -> list[Planted]:
    """As many cases of each code."""
    shares = {code: rng.betavariate(*law) for code, (law, _, _) in MIX.items()}
    return [_case(rng, code, shares[code]) for code in MIX for _ in range(each)]


def _case(rng: random.Random, code: str, share: float) -> Planted:
    _, of_program, background = MIX[code]
    kinds = HARDWARE if rng.random() < share else PROGRAM if rng.random() < of_program else DRIVER
    kind = rng.choice(sorted(kinds))
    truth = "hardware" if kinds is HARDWARE else "program" if kinds is PROGRAM else "driver"
    rates = [max(background, rng.uniform(*span)) for span in kinds[kind]]
    ran = (rng.choice((0, 0, 1, 2, 4, 8)), rng.choice((0, 0, 1, 2, 4, 8)), rng.choice((0, 5, 20, 60)))
    tallies = [Tally(sum(rng.random() < rate for _ in range(n)), n) for rate, n in zip(rates, ran, strict=True)]
    return Planted(code, kind, truth, _lines(rng, code, kind, truth), CodeHistory(*tallies))


def _lines(rng: random.Random, code: str, kind: str, truth: str) -> tuple[CodeLine, ...]:
    """What is judged comes last; other GPUs of the job show a bug that is in all of them, half of the time."""
    told = rng.choice(LINES.get(code, ("pid=1234, name=python3",)))
    before = [rng.choice(CLEANED)] if truth == "hardware" and code in FOLLOWERS and rng.random() < 0.7 else []
    peers = rng.randint(1, 7) if kind == "bug" and rng.random() < 0.5 else 0
    words = [(0, one, "") for one in before] + [(gpu, code, told) for gpu in range(1, peers + 1)] + [(0, code, told)]
    return tuple(CodeLine(f"NVRM: Xid (PCI:0000:{gpu:02x}:00): {one}, {text}") for gpu, one, text in words)


# ---- scores ----------------------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """The probability that was said, and the truth; `group` is what figures are told by."""

    group: str
    truth: str
    hardware: float


def score(judged: Sequence[Judged]) -> dict[str, Any]:
    """Brier's score, and what came of those called hardware; `accused` are healthy GPUs by whose fault it was."""
    called = [one for one in judged if one.hardware >= CALLED]
    wrong = [one.truth for one in called if one.truth != "hardware"]
    true = sum(one.truth == "hardware" for one in judged)
    return {
        "n": len(judged),
        "hardware": true,
        "brier": sum((one.hardware - (one.truth == "hardware")) ** 2 for one in judged) / len(judged),
        "called": len(called),
        "right": (len(called) - len(wrong)) / len(called) if called else None,
        "found": (len(called) - len(wrong)) / true if true else None,
        "accused_by_program": wrong.count("program"),
        "accused_by_driver": len(wrong) - wrong.count("program"),
    }


def _views(cases: Sequence[Planted]) -> list[dict[str, Any]]:
    """The same cases with less: the code and its line alone, this job elsewhere alone, and this node alone."""
    told = {
        "the code alone": lambda case: CodeHistory(),
        "this job elsewhere": lambda case: CodeHistory(case.history.job, NONE, case.history.rest),
        "other jobs here": lambda case: CodeHistory(NONE, case.history.node, case.history.rest),
        "both": lambda case: case.history,
    }
    return [{"view": view, **score(_judged(cases, history))} for view, history in told.items()]


def _judged(cases: Sequence[Planted], history: Callable[[Planted], CodeHistory]) -> list[Judged]:
    verdicts = [judge(case.lines, history(case))[-1] for case in cases]
    return [Judged(case.kind, case.truth, one.hardware) for case, one in zip(cases, verdicts, strict=True) if one]


def _groups(judged: Iterable[Judged]) -> list[dict[str, Any]]:
    by_group: dict[str, list[Judged]] = {}
    for one in judged:
        by_group.setdefault(one.group, []).append(one)
    return [{"of": group, **score(ones)} for group, ones in by_group.items()]


def is_unseen(url: str) -> bool:
    """Whether a thread is of the half on which nothing was set."""
    return hashlib.sha256(url.encode()).digest()[0] % 2 == 1


def threads(half: str) -> list[Judged]:
    """What is said of each public thread of one half: of its lines, the one that most accuses the hardware."""
    found = []
    for one in tomllib.loads(THREADS.read_text(encoding="utf-8"))["threads"]:
        if is_unseen(one["url"]) == (half == "unseen"):
            history = CodeHistory(*(Tally(*one.get(name, (0, 0))) for name in ("job", "node", "rest")))
            verdicts = judge([CodeLine(line) for line in one["lines"]], history)
            truth = "hardware" if one["truth"] == "hardware" else "program"
            found.append(Judged(one["url"], truth, max(verdict.hardware for verdict in verdicts if verdict)))
    return found


def run(
    seed: Seed = 0,
    each: Annotated[int, typer.Option(min=1, help="Cases of each code.")] = 40,
    *,
    quick: Quick = False,
) -> Table:
    """Called hardware where it is: planted cases of 12 codes and 8 kinds, and public threads in two halves."""
    cases = planted(random.Random(seed), 10 if quick else each)  # noqa: S311 -- cases, no secret
    by_kind = _judged(cases, lambda case: case.history)
    by_code = [one._replace(group=case.code) for case, one in zip(cases, by_kind, strict=True)]
    halves = {half: threads(half) for half in ("seen", "unseen")}
    halves["both"] = halves["seen"] + halves["unseen"]
    whole, public = score(by_kind), {half: score(judged) for half, judged in halves.items()}
    found = {
        "planted": whole,
        "threads": public,
        "views": _views(cases),
        "by_kind": _groups(by_kind),
        "by_code": _groups(by_code),
        "wrong_threads": [one._asdict() for one in halves["both"] if _is_wrong(one)],
        "wanted": {"brier": MOST_BRIER, "right": LEAST_RIGHT, "accused_by_program": 0},
    }
    return Table(found, failed=not all(map(_holds, (whole, public["unseen"], public["both"]))))


def _is_wrong(one: Judged) -> bool:
    return (one.hardware >= 0.5) != (one.truth == "hardware")


def _holds(part: dict[str, Any]) -> bool:
    right = part["right"] is None or part["right"] >= LEAST_RIGHT
    return bool(part["brier"] <= MOST_BRIER and right and part["accused_by_program"] == 0)
