"""Explanations over both sides: top-1, top-3 and whose side, on cases with labels.

A case is a line of a file of `explanations/`; README.md there says what it has. The tenant's
lines are diagnosed as logs are, so that part is the tool's own work; findings, hints, own runs, tests and the bundle's
verdict come in as the case has them. The halves are split by a hash of the case's name: weights were set on the seen
one.

`--of folders` scores the cases of `two_sided/` instead, which others wrote: the tenant's half is diagnosed, and of the
provider's half hints about the job's hosts are made (`provider_half`). Their halves are every other name of the sorted
list, the first one seen; a half is scored without reading the other.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from simulation.studies.diagnosis import two_sided
from simulation.studies.diagnosis.provider_half import hints_of
from simulation.studies.study import Table
from tenant_client.doctor.advice.clues import FailureFacts, FindingFact, HintFact, RunCounts
from tenant_client.doctor.advice.explanation import Explanation, FailureSide, explain
from tenant_client.doctor.diagnosis.diagnose import Diagnosis, diagnose, gather
from tenant_client.doctor.sources import exit_status

CASES = Path(__file__).resolve().parent / "explanations"
Corpus = Literal["cases", "published", "later", "folders"]
Half = Literal["seen", "unseen", "both"]
Case = Mapping[str, Any]


def cases(half: str = "both", corpus: str = "cases") -> Iterator[Case]:
    """The cases of one half, or all."""
    for line in (CASES / f"{corpus}.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if half in ("both", half_of(case["id"])):
            yield case


def half_of(name: str) -> str:
    """Which half a case belongs to."""
    return "unseen" if hashlib.sha256(name.encode()).digest()[0] % 2 else "seen"


def facts_of(case: Case) -> FailureFacts:
    """The facts of a case as the tenant's journal would have them."""
    tenant, end_h = case["tenant"], case["tenant"]["hours"]
    diagnosis = _diagnosed(tenant["lines"], tenant["exit_code"])
    own = [hint for hint in case["provider"]["hints"] if hint["lease"] == "own"]
    return FailureFacts(
        diagnosis.reason,
        diagnosis.sentence if diagnosis.root or diagnosis.symptom else "",
        tenant["state"] == "stopped",
        end_h,
        tuple(FindingFact(one["kind"], tuple(one["ranks"]), one["text"]) for one in tenant["findings"]),
        tuple(_hint(one, end_h) for one in own),
        case["bundle"]["verdict"],
        case["bundle"]["ratio"],
        RunCounts(**tenant["runs"]),
        tuple((one["suspicion"], one["passed"]) for one in tenant["tests"]),
    )


def _diagnosed(lines: Sequence[str], exit_code: int | None) -> Diagnosis:
    with tempfile.TemporaryDirectory(prefix="pharoah-") as folder:
        log = Path(folder) / "job.log"
        log.write_text("\n".join(lines) + "\n", encoding="utf-8")
        evidence = gather([log]).evidence
    code = 128 - exit_code if exit_code is not None and exit_code < 0 else exit_code or 0
    ended = exit_status.of(code)
    return diagnose([*evidence, *([ended] if ended else [])])


def _hint(hint: Mapping[str, Any], end_h: float) -> HintFact:
    cleared = hint["cleared_hours"] is not None and hint["cleared_hours"] < end_h
    escalated = hint["state"] == "escalated"
    return HintFact(hint["suspicion"], hint["low"], hint["ratio"], end_h - hint["hours"], escalated, cleared)


# ---- the folders of two_sided ----------------------------------------------------------------------------------------

_RIGHT = {
    "gpu": ("gpu",),
    "interconnect": ("nvlink",),
    "network": ("network",),
    "node": ("host", "gpu"),
    "host_memory": ("capacity", "host"),
    "storage": ("storage", "capacity"),
    "scheduler": ("ended", "undecided"),
    "job": ("code", "software"),
}
_NAMES_RANKS = re.compile(r"\[?\b[Rr]ank ?:? ?(\d{1,5})\b")


def labelled_folders(half: str = "both") -> Iterator[tuple[Case, FailureFacts]]:
    """The folders of one half, or all, with what is right, and their facts."""
    for place, case in enumerate(two_sided.cases()):
        if half not in ("both", ("seen", "unseen")[place % 2]):
            continue
        causes = ("undecided", "ended") if case.side == "nobody" else _RIGHT[case.organ]
        tenant = diagnose(gather([case.folder / "tenant"]).evidence)
        files = (case.folder / "tenant").rglob("*")
        text = "\n".join(file.read_text(errors="replace") for file in files if file.is_file())
        ranks = 1 + max(map(int, _NAMES_RANKS.findall(text)), default=-1)
        facts = FailureFacts(
            tenant.reason,
            tenant.sentence if tenant.root or tenant.symptom else "",
            hints=hints_of(case.folder / "provider", text),
            ranks=ranks or None,
            domain=tenant.domain or "",
        )
        yield {"id": case.folder.name, "right": {"causes": causes, "side": case.side}}, facts


def score(todo: Iterable[tuple[Case, FailureFacts]]) -> dict[str, Any]:
    """Shares of cases whose right cause comes first, among the first three, and whose side is right."""
    said = [(case, explain(facts)) for case, facts in todo]
    firsts = [said_.cause.value in case["right"]["causes"] for case, said_ in said]
    threes = [
        bool({one.cause.value for one in said_.ranked[:3]} & set(case["right"]["causes"])) for case, said_ in said
    ]
    sides = [said_.side.value == case["right"]["side"] for case, said_ in said]
    missed = [_missed(case, said_) for (case, said_), *fine in zip(said, firsts, sides, strict=True) if not all(fine)]
    figures = {"top1": firsts, "top3": threes, "side": sides}
    shares = {name: sum(right) / len(said) for name, right in figures.items()}
    wrong = [_is_claimed(said_.side) for (_, said_), fine in zip(said, sides, strict=True) if not fine]
    counts = {"wrong_side_claimed": sum(wrong), "side_left_open": len(wrong) - sum(wrong)}
    return {"n": len(said), **shares, **counts, "missed": missed}


def _is_claimed(side: FailureSide) -> bool:
    """Whether somebody's part is named; nobody's part is what `undecided` and `ended` say."""
    return side is not FailureSide.NOBODY


def _missed(case: Case, said: Explanation) -> dict[str, Any]:
    ranked = {one.cause.value: one.weight for one in said.ranked[:4]}
    return {"case": case["id"], "right": case["right"], "said": ranked}


def labelled(corpus: str, half: str) -> Iterator[tuple[Case, FailureFacts]]:
    """The cases of a corpus, or of one half of it, with their facts."""
    if corpus == "folders":
        return labelled_folders(half)
    return ((case, facts_of(case)) for case in cases(half, corpus))


def run(
    of: Annotated[Corpus, typer.Option(help="Which cases.")] = "cases",
    half: Annotated[Half, typer.Option(help="Which half of them.")] = "both",
) -> Table:
    """Explanations over both sides: the first cause, the first three, and whose side, on cases with labels."""
    halves = ("seen", "unseen") if half == "both" else (half,)
    return Table({one: score(labelled(of, one)) for one in halves})
