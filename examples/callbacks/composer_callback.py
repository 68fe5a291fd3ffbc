"""MosaicML Composer and trainers with its callbacks: saves when a hint asks for it.

trainer = Trainer(callbacks=[PharoahCallback(lambda state: save(state))])
"""

from collections.abc import Callable
from typing import Any

import pharoah

try:
    from composer import Callback
except ImportError:  # a trainer that calls the same methods
    Callback = object


class PharoahCallback(Callback):  # type: ignore[misc]  # it has no types here
    """`save` takes the trainer's state. Does nothing outside of `pharoah-tenant run`."""

    def __init__(self, save: Callable[[Any], object]) -> None:
        self.save = save

    def batch_end(self, state: Any, _logger: object) -> None:
        """Composer's event after each batch."""
        if pharoah.should_checkpoint():
            with pharoah.phase("checkpoint"):
                self.save(state)
