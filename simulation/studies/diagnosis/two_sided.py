"""Cases with two halves: what the tenant has, what the provider has, and what is right to say from one or both.

A case is a folder below `two_sided/`: `tenant/` (logs), `provider/` (kernel log, telemetry) and `case.toml`, the truth,
written before any tool saw the case. The tool is called three times, with the folder of one half, of the other, and
with both; README.md says what it prints. What it does not say of organ and side follows from its reason.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from federation.protocol.causes import Domain
from simulation.studies.diagnosis.answers import Answer, Asked, Tool, asked_of, fits, grade, here, tally
from simulation.studies.study import Table
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN

CASES = Path(__file__).resolve().parent / "two_sided"
HALVES = {"tenant": ("tenant",), "provider": ("provider",), "both": ("tenant", "provider")}
SIDES = {Domain.INFRASTRUCTURE: "provider", Domain.FRAMEWORK: "tenant", Domain.SCRIPT: "tenant"}
ORGANS = {
    "gpu": ("cuda_error", "ecc_error", "device_lost", "gpu_page_fault"),
    "interconnect": ("nvlink_error",),
    "network": ("network_error", "connection_error", "transport_error", "rendezvous_timeout"),
    "node": ("node_failure", "driver_mismatch"),
    "host_memory": ("host_out_of_memory",),
    "storage": ("s3_storage_error",),
    "scheduler": ("time_limit", "preempted", "evicted", *(slug for slug in REASONS if slug.startswith("cancelled"))),
    "job": ("device_side_assert",),
    UNKNOWN: ("killed", "exit_code", "nccl_timeout_error", "nccl_remote_error"),
}  # a finer reason is in none of these where its parent tells; all other reasons are the job's
ABSTAINS = (UNKNOWN, "nobody")


@dataclass(frozen=True)
class Case:
    """One case: where its halves lie, and its truth."""

    folder: Path
    reasons: Mapping[str, tuple[str, ...]]
    rank: int | None
    side: str
    organ: str
    names: tuple[str, ...]
    names_not: tuple[str, ...]

    @property
    def may_abstain(self) -> bool:
        """Whether it is right to say of both halves that nobody can tell."""
        return fits(UNKNOWN, self.reasons["both"])

    def halves(self, which: str) -> list[Path]:
        """The folders that the tool is given."""
        return [self.folder / half for half in HALVES[which]]


def cases(folder: Path = CASES) -> Iterator[Case]:
    """All cases of a folder."""
    for file in sorted(folder.glob("*/case.toml")):
        told = tomllib.loads(file.read_text(encoding="utf-8"))
        reasons = {half: tuple(told[half]["reasons"]) for half in HALVES}
        names, names_not = tuple(told.get("names", ())), tuple(told.get("names_not", ()))
        yield Case(file.parent, reasons, told.get("rank"), told["side"], told["organ"], names, names_not)


def organ_of(answer: Answer) -> str:
    """What it says that the cause lies in, or what its reason tells of that."""
    if answer.organ or answer.reason == UNKNOWN:
        return answer.organ or UNKNOWN
    slugs = (answer.reason, REASONS[answer.reason].parent if answer.reason in REASONS else "")
    return next((organ for slug in slugs for organ, reasons in ORGANS.items() if slug in reasons), "job")


def side_of(answer: Answer) -> str:
    """Whose fault it says that it is, or what its reason tells of that; `nobody` where nobody can tell."""
    if answer.side or answer.reason == UNKNOWN:
        return answer.side or UNKNOWN
    known = REASONS.get(answer.reason)
    return SIDES[known.domain] if known and known.domain else "nobody"


def score(todo: Sequence[Case], asked: Asked) -> dict[str, Any]:
    """Reasons by half, and rank, side, organ and words from both halves; `missed` says what was wrong of them."""
    answers = {half: [asked(*case.halves(half)) for case in todo] for half in HALVES}
    graded = {
        half: [grade(answer.reason, case.reasons[half]) for case, answer in zip(todo, answers[half], strict=True)]
        for half in HALVES
    }
    both = list(zip(todo, answers["both"], strict=True))
    ranks = [answer.rank == case.rank for case, answer in both if case.rank is not None]
    worded = [_is_worded(case, answer) for case, answer in both]
    return {
        **{half: tally(graded[half]) for half in HALVES},
        "rank": {"n": len(ranks), "right": sum(ranks)},
        "side": tally([_graded(side_of(said), case.side, may_abstain=case.may_abstain) for case, said in both]),
        "organ": tally([_graded(organ_of(said), case.organ, may_abstain=case.may_abstain) for case, said in both]),
        "names": {"n": len(worded), "right": sum(worded)},
        "missed": [
            {"case": case.folder.name, "half": half, "right": case.reasons[half], "said": answer.reason}
            for half in HALVES
            for case, answer, mark in zip(todo, answers[half], graded[half], strict=True)
            if mark != "right"
        ],
    }


def _graded(told: str, right: str, *, may_abstain: bool) -> str:
    """As `grade`; that nobody can tell is an abstention."""
    if told == right or (told in ABSTAINS and (may_abstain or right in ABSTAINS)):
        return "right"
    return "unknown" if told in ABSTAINS else "wrong"


def _is_worded(case: Case, answer: Answer) -> bool:
    text = answer.text.casefold()
    return all(name.casefold() in text for name in case.names) and not any(
        name.casefold() in text for name in case.names_not
    )


def run(
    folder: Annotated[
        Path, typer.Option("--cases", exists=True, file_okay=False, help="Other cases.", show_default="ours")
    ] = CASES,
    tool: Tool = None,
) -> Table:
    """Causes that are found from the tenant's half of a case, from the provider's, and from both."""
    return Table(score(list(cases(folder)), asked_of(tool) if tool else here))
