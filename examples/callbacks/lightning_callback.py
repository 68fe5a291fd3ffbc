"""PyTorch Lightning: saves when a hint of the provider asks for a checkpoint.

trainer = Trainer(callbacks=[PharoahCallback("hinted.ckpt")])
"""

from pytorch_lightning import Callback, LightningModule, Trainer

import pharoah


class PharoahCallback(Callback):  # type: ignore[misc]  # it has no types here
    """Does nothing outside of `pharoah-tenant run`, which sees the steps by itself."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint

    def on_train_batch_end(self, trainer: Trainer, _module: LightningModule, *_args: object) -> None:
        """Lightning's event after each batch."""
        if pharoah.should_checkpoint():
            with pharoah.phase("checkpoint"):
                trainer.save_checkpoint(self.checkpoint)
