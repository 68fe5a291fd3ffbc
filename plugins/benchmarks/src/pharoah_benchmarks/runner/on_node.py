"""`pharoah-provider benchmark` on a node, for a runner elsewhere: it ends when its standard input does, or is asked to.

Then what it started is ended with it (`guard`), and its folder is removed. Nothing of the home of a runner whose
environment it was given is its own.
"""

import os
import signal
import sys
import threading
from types import FrameType

from provider_server.program.cli import app


def main() -> None:
    """As the module says."""
    for name in [name for name in os.environ if name.startswith("PHAROAH_")]:
        del os.environ[name]
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_input, daemon=True).start()
    sys.argv[1:1] = ["benchmark"]
    app(prog_name="pharoah-provider")


def _end(_: int, __: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
