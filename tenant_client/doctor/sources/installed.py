"""The software of this machine: packages of this Python environment, the driver, its GPUs, and the kernel.

Packages are looked up by name and not imported. Where a program has an environment of its own, these are its packages,
not a job's.
"""

import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tenant_client.doctor.sources.software import COMPONENTS, Software, of_versions, software_of

_DRIVER = Path("/proc/driver/nvidia")


def installed(driver: Path = _DRIVER) -> Software:
    """What is here; `driver` is the folder in which NVIDIA's driver describes itself."""
    machine = [("python", platform.python_version()), *([("linux", platform.release())] if _is_linux() else [])]
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in _descriptions(driver))
    models = (line.replace("Model:", "NVIDIA") for text in texts for line in text.splitlines())
    return of_versions([*machine, *_packages()]) | software_of(models)


def _is_linux() -> bool:
    return platform.system() == "Linux"


def _packages() -> Iterator[tuple[str, str]]:
    for package in (package for component in COMPONENTS.values() for package in component.packages):
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _descriptions(driver: Path) -> list[Path]:
    return [file for file in (driver / "version", *driver.glob("gpus/*/information")) if file.is_file()]
