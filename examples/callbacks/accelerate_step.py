"""Hugging Face Accelerate: its loop is the user's own, so a call after each step saves when a hint asks for it.

for batch in loader:
    ...
    optimizer.step()
    after_step(accelerator, "hinted")
"""

from accelerate import Accelerator

import pharoah


def after_step(accelerator: Accelerator, folder: str) -> None:
    """Saves the state when a hint of the provider asks for a checkpoint; needs `pharoah-tenant run`."""
    if pharoah.should_checkpoint():
        with pharoah.phase("checkpoint"):
            accelerator.save_state(folder)
