"""`pharoah-tenant`, and `python -m tenant_client`."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Runs the command line."""
    _look_among_the_jobs_modules_last()
    from tenant_client.program.cli import app

    app(prog_name="pharoah-tenant")


def _look_among_the_jobs_modules_last() -> None:
    """Moves the job's folders to the end of `sys.path`: they may have packages named `crypto` or `federation`."""
    ours = str(Path(__file__).resolve().parents[1])
    jobs = {str(Path(entry).resolve()) for entry in (*os.environ.get("PYTHONPATH", "").split(os.pathsep), ".")} - {ours}
    sys.path.sort(key=lambda entry: str(Path(entry).resolve()) in jobs)


if __name__ == "__main__":
    main()
