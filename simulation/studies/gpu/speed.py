"""`confirm` on a card: its rates beside the maker's, healthy runs that it accuses, and a busy card, told as such."""

import subprocess
import sys
import time
from collections.abc import Callable

from federation.protocol.service_messages import CheckVerdict, Suspicion
from pharoah_confirm import cuda
from pharoah_confirm.assess import MOST_BUSY, BenchmarkFinding, Measured, assess
from pharoah_confirm.criteria import Criterion, learn
from pharoah_confirm.machine import Target
from pharoah_confirm.sample import Benchmark
from simulation.studies.gpu.card import asked, published, shares, slot_gbs
from simulation.studies.gpu.notes import Notes, Skipped

LEARNT, JUDGED, SECONDS = 10, 20, 0.35
TESTED = {"bf16": Suspicion.COMPUTE, "memory": Suspicion.MEMORY, "link": Suspicion.HOST_LINK}
HOG = """
import torch
one = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda:0")
while True:
    for _ in range(20):
        torch.matmul(one, one)
    torch.cuda.synchronize()
    print("busy", flush=True)
"""


def confirm(notes: Notes) -> None:
    """Learns from some runs, judges others, then the same while another process computes."""
    target, name = Target(notes.device, notes.folder), cuda.described(notes.device)
    criteria = {what: rated(notes, target, what) for what in TESTED}
    rates = {what: criterion.usual for what, criterion in criteria.items()}
    notes.figures(**rates)
    _beside_the_maker(notes, name, rates)
    with subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE) as hog:
        try:
            if not hog.stdout or not hog.stdout.readline():
                raise Skipped("no second process can compute on this card")
            for what in ("bf16", "memory"):
                _while_busy(notes, target, what, criteria[what])
        finally:
            hog.kill()


def rated(notes: Notes, target: Target, what: str) -> Criterion:
    """The criterion of some runs, and a check that of the runs after them none is accused, whatever others do."""
    benchmark, device, described = target.benchmark(TESTED[what])

    def run() -> Measured:
        return Measured(benchmark.run(SECONDS, device, described=described, clock=time.monotonic), 0.0)

    criterion = learn({str(number): [run().sample] for number in range(LEARNT)})
    verdicts = [_found(benchmark, run, criterion).verdict for _ in range(JUDGED)]
    accused, warned = (verdicts.count(verdict) for verdict in (CheckVerdict.MISMATCH, CheckVerdict.WARNING))
    said = f"{accused} accused, {warned} warned of; {criterion.finds():.2f} times slower would be found"
    notes.check(f"{what}: none of {JUDGED} healthy runs is accused", said, good=not accused)
    return criterion


def _found(benchmark: Benchmark, run: Callable[[], Measured], criterion: Criterion) -> BenchmarkFinding:
    return assess(benchmark.suspicion, benchmark.name, run, lambda _: (criterion, "own"), undisturbed=True)


def _beside_the_maker(notes: Notes, name: str, rates: dict[str, float]) -> None:
    row = published(name)
    if row is None:
        notes.figures(published=f"nobody has entered {name} in cards.toml")
        return
    try:
        slot = slot_gbs(asked("pcie.link.gen.max", "pcie.link.width.max"))
    except Skipped:
        slot = None
    notes.figures(slot_gbs=slot)
    for what, (share, least) in shares(rates, row, slot).items():
        notes.check(f"{what}: at least {least:.0%} of what is published", f"{share:.1%}", good=share >= least)


def _while_busy(notes: Notes, target: Target, what: str, criterion: Criterion) -> None:
    runs: list[Measured] = []

    def run() -> Measured:
        runs.append(target.measure(TESTED[what], 2 * SECONDS))
        return runs[-1]

    found = _found(target.benchmark(TESTED[what])[0], run, criterion)
    said = f"{found.verdict.name}: {found.reason} ({runs[0].on_device:.0%} used by others)"
    notes.check(f"{what}: a busy card is told as such", said, good=told(runs[0], found))


def told(measured: Measured, found: BenchmarkFinding) -> bool:
    """Whether others' use of the card is seen, and what is slow is blamed on that and not on the card."""
    slow = found.judgement is not None and found.judgement.verdict is CheckVerdict.MISMATCH
    blamed = found.verdict is CheckVerdict.WARNING and "of the GPU" in found.reason
    return measured.on_device > MOST_BUSY and (blamed if slow else found.verdict is not CheckVerdict.MISMATCH)
