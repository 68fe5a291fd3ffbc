"""`confirm determinism` on a card: healthy runs that it accuses, and a bit that was turned, found in its stage."""

from federation.protocol.service_messages import CheckVerdict
from pharoah_confirm import cuda, determinism
from pharoah_confirm.replay import Stages, card, digests, first_difference, work
from simulation.studies.gpu.notes import Notes

STARTS, SECONDS, SIDE = 4, 2.0, 1024
PLANTED = ("float32, step 1, backward", "bfloat16, step 2, forward", "int64, step 2, integers")


def replay(notes: Notes) -> None:
    """Starts it some times, and compares their runs; then turns single bits in this process."""
    found = [one for _ in range(STARTS) for one in determinism.replays([notes.device], SECONDS)]
    runs, problems = sum(one.runs for one in found), {one.problem for one in found if one.problem}
    verdicts = [finding.verdict.name for one in found for finding in determinism.judge([one])]
    starts = len({tuple(one.stages.items()) for one in found})
    notes.figures(runs=runs, runs_per_second=round(runs / (STARTS * SECONDS), 1), problems=sorted(problems))
    said = f"{runs} runs: {verdicts}; {starts} different results"
    healthy = verdicts == [CheckVerdict.OK.name] * STARTS and starts == 1
    notes.check(f"{STARTS} healthy starts compute the same", said, good=healthy)
    for stage in PLANTED:
        notes.check(f"a turned bit is found: {stage}", seen := _planted(notes.device, stage), good=seen == stage)


def _planted(device: str, stage: str) -> str:
    """The first stage that differs if a bit of this one is turned."""
    torch = cuda.torch_for(device)
    backend = card(torch, device, "", SIDE)
    inputs = backend.inputs()

    def turned() -> Stages:
        for name, result in work(inputs):
            if name == stage:
                result.view(torch.uint8)[7, 11] ^= 1 << 5
            yield name, result

    return first_difference(digests(work(inputs), backend.read), digests(turned(), backend.read))
