"""`confirm` on a card: its rates beside the maker's, healthy runs that it accuses, and a busy card, told as such."""

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.card import asked, published, shares, slot_gbs
from benchmarks.gpu.notes import Notes, Skipped
from federation.protocol.service_messages import CheckVerdict, Suspicion
from tenant_client.confirm import cuda
from tenant_client.confirm.assess import MOST_BUSY, BenchmarkFinding, Measured, assess
from tenant_client.confirm.criteria import Criterion, learn
from tenant_client.confirm.machine import Target
from tenant_client.confirm.sample import Sample

LEARNT, JUDGED, SECONDS = 10, 20, 0.35
TESTED = {"bf16": Suspicion.COMPUTE, "memory": Suspicion.MEMORY, "link": Suspicion.HOST_LINK}
HOG = """
import torch
one = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda:0")
for number in range(1 << 30):
    torch.matmul(one, one)
    if number % 20 == 0:
        torch.cuda.synchronize()
        print(number, flush=True)
"""


def confirm(notes: Notes) -> None:
    """Learns from some runs, judges others, then the same while another process computes."""
    target, name = Target(notes.device, notes.folder), cuda.described(notes.device)
    criteria = {what: rated(notes, target, what) for what in TESTED}
    rates = {what: criterion.usual for what, criterion in criteria.items()}
    notes.figures(**{f"{what}_rate": rate for what, rate in rates.items()})
    _beside_the_maker(notes, name, rates)
    _while_busy(notes, target, criteria)


def rated(notes: Notes, target: Target, what: str) -> Criterion:
    """The criterion of some runs, and a check that of the runs after them none is accused."""
    samples = [one_run(target, TESTED[what]) for _ in range(LEARNT)]
    criterion = learn({str(number): [sample] for number, sample in enumerate(samples)})
    verdicts = [judged(target, TESTED[what], criterion).verdict for _ in range(JUDGED)]
    accused, warned = (verdicts.count(verdict) for verdict in (CheckVerdict.MISMATCH, CheckVerdict.WARNING))
    said = f"{accused} accused, {warned} warned of; {criterion.finds():.2f} times slower would be found"
    notes.check(f"{what}: none of {JUDGED} healthy runs is accused", said, good=not accused)
    return criterion


def one_run(target: Target, suspicion: Suspicion, seconds: float = SECONDS) -> Sample:
    """One run, without a look at what others do."""
    benchmark, device, described = target.benchmark(suspicion)
    return benchmark.run(seconds, device, described=described, clock=time.monotonic)


def judged(target: Target, suspicion: Suspicion, criterion: Criterion) -> BenchmarkFinding:
    """The finding of one run, or two, that excuses no slowness by what others do."""
    benchmark, _, _ = target.benchmark(suspicion)
    return assess(
        suspicion, benchmark.name, lambda: Measured(one_run(target, suspicion), 0.0), lambda _: (criterion, "own")
    )


def _beside_the_maker(notes: Notes, name: str, rates: dict[str, float]) -> None:
    row = published(name)
    if row is None:
        notes.figures(published=f"nobody has entered {name} in cards.toml")
        return
    try:
        slot = slot_gbs(asked("pcie.link.gen.max", "pcie.link.width.max"))
    except Skipped:
        slot = None
    notes.figures(slot_gbs=slot, published=row["source"])
    for what, (share, least) in shares(rates, row, slot).items():
        notes.check(f"{what}: at least {least:.0%} of what is published", f"{share:.1%}", good=share >= least)


def _while_busy(notes: Notes, target: Target, criteria: dict[str, Criterion]) -> None:
    with subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE, cwd=Path("/")) as hog:
        try:
            if not hog.stdout or not hog.stdout.readline():
                raise Skipped("no second process can compute on this card")
            time.sleep(2)
            for what in ("bf16", "memory"):
                measured, found = _looked_at(target, TESTED[what], criteria[what])
                said = f"{found.verdict.name}: {found.reason} ({measured.on_device:.0%} used by others)"
                notes.check(f"{what}: a busy card is told as such", said, good=told(measured, found))
        finally:
            hog.kill()


def _looked_at(target: Target, suspicion: Suspicion, criterion: Criterion) -> tuple[Measured, BenchmarkFinding]:
    """The first of its runs, and the finding, as `confirm` comes to it."""
    runs: list[Measured] = []

    def measure() -> Measured:
        runs.append(target.measure(suspicion, 2 * SECONDS))
        return runs[-1]

    name = target.benchmark(suspicion)[0].name
    found = assess(suspicion, name, measure, lambda _: (criterion, "own"), undisturbed=True)
    return runs[0], found


def told(measured: Measured, found: BenchmarkFinding) -> bool:
    """Whether others' use of the card is seen, and what is slow is blamed on that and not on the card."""
    slow = found.judgement is not None and found.judgement.verdict is CheckVerdict.MISMATCH
    blamed = found.verdict is CheckVerdict.WARNING and "of the GPU" in found.reason
    return measured.on_device > MOST_BUSY and (blamed if slow else found.verdict is not CheckVerdict.MISMATCH)
