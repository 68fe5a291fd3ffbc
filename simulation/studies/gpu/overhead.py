"""What the hook and the sampler cost a training loop, as the study `overhead` does: paired steps, then samples.

Each step waits for the card before the clock is read: what the hook does beside the card's work is then counted in
full, though most jobs hide it.
"""

import os
import time
from typing import Any

from simulation.studies.gpu.notes import Notes
from simulation.studies.overhead import NEVER, UNGUARDED, Switch, figures, plan

MOST = 0.01  # of a step, all told
ROUNDS, SECONDS = 6, 14.0


def measure(notes: Notes, mode: str) -> None:
    """Runs the loop with the hook switched on and off."""
    import torch

    from simulation.studies.gpu.training import Size, stepper
    from tenant_client.doctor.run.hook.follow import follow
    from tenant_client.doctor.run.hook.hook import current_hook
    from tenant_client.doctor.run.hook.pacing import PacingSettings

    on_card = notes.device != "cpu"
    size = Size(1024, 6, 16, 512) if on_card else Size(64, 2, 2, 32)
    run_dir = notes.folder / f"overhead-{mode}"
    run_dir.mkdir()
    step = stepper("transformer", mode, notes.device, size)
    wait = torch.cuda.synchronize if on_card else _nothing
    for _ in range(5):
        step(size.batch, size.length)
    wait()
    usual_s = _seconds(step, size, wait)
    rounds = ROUNDS if on_card else 2
    pairs = max(10, min(60, int(SECONDS / (2 * rounds * usual_s)))) if on_card else 10
    os.environ |= UNGUARDED | NEVER | {"PHAROAH_RUN_DIR": str(run_dir)}
    hook = current_hook()
    hook.explicit = mode == "graphs"  # what is captured calls nothing when it is replayed
    follow(torch)
    switch = Switch(hook, plan(rounds, pairs))
    loss: Any = None
    for _ in switch.steps:
        loss = step(size.batch, size.length)
        if hook.explicit:
            hook.step(loss)
        wait()
        switch.after_step()
    found = {name: getattr(switch, name) for name in ("steps", "wall_s", "cpu_s", "inside_s", "charged_s")}
    told = figures(found | {"patterns_share": switch.patterns_share}, "wall_s", PacingSettings().budget)
    notes.figures(pairs=rounds * pairs, loss=float(loss), **told)
    notes.check("every sample was taken", f"{len(switch.charged_s)} of {rounds}", good=len(switch.charged_s) == rounds)
    notes.check("the hook went on to the end", hook._steps, good=not hook._complained)
    if on_card:
        low, usual = (told["amortised"][name] for name in ("low", "median"))
        said = f"{usual:.2%} (surely {low:.2%}) of steps of {told['step_ms']:.1f} ms"
        notes.check(f"at most {MOST:.0%} of the time", said, good=low <= MOST)


def _seconds(step: Any, size: Any, wait: Any) -> float:
    began_s = time.perf_counter()
    for _ in range(5):
        step(size.batch, size.length)
        wait()
    return (time.perf_counter() - began_s) / 5


def _nothing() -> None:
    """There is nothing to wait for."""
