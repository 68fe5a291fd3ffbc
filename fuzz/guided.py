"""One target under atheris, in a process of its own: libFuzzer ends the process when it is done.

python fuzz/guided.py TARGET [libFuzzer's options] CORPUS
"""

import sys
from importlib import import_module
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
GUIDING = ["crypto", "tenant_client", "simulation", "tomllib"]  # what coverage is taken of


def main() -> None:
    """Never returns."""
    sys.path[:1] = [str(REPOSITORY)]
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=GUIDING):
        targets = import_module("fuzz.targets").TARGETS
    atheris.Setup([sys.argv[0], *sys.argv[2:]], targets[sys.argv[1]].check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
