"""Put in front of PYTHONPATH by `pharoah-tenant run`: once a process of the job imports torch, its steps are watched.

Python runs this file at the start of every process. It does nothing but wait for `import torch`, and that only where
PHAROAH_RUN_DIR is set; the `sitecustomize` that it hides is run as ever. Whatever interpreter the job uses: where
anything is missing in it, the job runs unwatched.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in typing, which is not worth its import here
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib takes longer to import than this

_PACKAGE = "tenant_client.doctor.run.hook"


class TorchWatch:
    """A finder that leaves finding to the others, and arranges that torch is followed once it is complete."""

    def __init__(self) -> None:
        self.stderr = _stderr()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders say of torch; None for everything else, so that they are asked."""
        if name != "torch":
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is not None:
                _follow_after_loading(spec, self)  # which need not happen: some only look whether there is one
                return spec
        return None


def _follow_after_loading(spec: Any, watch: Any) -> None:
    """Hears of the end of the import by the mark that importlib sets on the spec.

    A wrapper of the loader would stand in the traceback of an import that fails.
    """
    plain = type(spec)

    class Watched(plain):  # type: ignore[misc, valid-type]
        @property
        def _initializing(self) -> bool:
            return bool(self.__dict__.get("_initializing"))

        @_initializing.setter
        def _initializing(self, begins: bool) -> None:
            self.__dict__["_initializing"] = begins
            if not begins:
                self.__class__ = plain
                _loaded(sys.modules.get(self.name), watch)

    try:
        spec.__class__ = Watched
    except TypeError:  # of a finder of its own kind: the job runs without us
        sys.meta_path.remove(watch)


def _loaded(module: Any, watch: Any) -> None:
    """Follows torch, unless its import failed: then there is no module, and another try may follow."""
    if module is None or watch not in sys.meta_path:
        return
    sys.meta_path.remove(watch)
    try:
        _follow(module)
    except Exception as error:  # noqa: BLE001  # an older torch, another Python: the job runs without us
        if watch.stderr != _stderr():  # it may be a checkpoint of the job by now
            return
        import logging

        logging.getLogger("pharoah").warning("pharoah: this process is not watched: %r", error)


def _stderr() -> tuple[int, int] | None:
    try:
        status = os.fstat(2)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _follow(torch: Any) -> None:
    _load_package()
    from tenant_client.doctor.run.hook.follow import follow

    follow(torch)


def _load_package() -> None:
    """The hook's package from its own folder: nothing is looked up by a name that a folder of the job could shadow."""
    if _PACKAGE in sys.modules:
        return
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(_HERE)  # noqa: PTH120
    spec = spec_from_file_location(_PACKAGE, folder + "/__init__.py", submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {folder}")
    sys.modules[_PACKAGE] = package = module_from_spec(spec)
    spec.loader.exec_module(package)


def _run_hidden_sitecustomize() -> None:
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]  # noqa: PTH100
    by_path = next((finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "PathFinder"), None)
    spec = by_path.find_spec("sitecustomize", elsewhere) if by_path is not None else None
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec  # half of what a process without a sitecustomize would wait for

        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # and not when it is imported as part of the package
    if os.environ.get("PHAROAH_RUN_DIR") and "torch" not in sys.modules:
        sys.meta_path.insert(0, TorchWatch())
    _run_hidden_sitecustomize()
