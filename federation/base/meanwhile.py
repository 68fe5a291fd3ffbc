"""What runs in a thread of its own beside something else, and ends with it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(run: Callable[[], object], stop: Callable[[], object], name: str, wait_s: float | None) -> Iterator[None]:
    """Within it `run` runs; at the end `stop` tells it to end, and it has so long to do it (None: however long)."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(wait_s)
