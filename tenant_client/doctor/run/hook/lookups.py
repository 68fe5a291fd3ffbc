"""How the hook hears of a call of the job without being in it.

A wrapper would stand in every traceback that passes through the wrapped function. These objects tell when the function
is looked up, which is just before it is called, and give the function itself to the caller: no frame of ours is on the
stack while it runs.

>>> class Model:
...     def eval(self): return "evaluated"
>>> Model.eval = LookupTold(Model.eval, lambda model: print("told"))
>>> Model().eval()
told
'evaluated'
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any


class LookupTold:
    """Stands for the method of a class; tells of each instance whose method is looked up, whatever `tell` raises."""

    def __init__(self, method: Any, tell: Callable[[Any], None]) -> None:
        self._method = method
        self._tell = tell

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """The method itself, bound to the instance where there is one."""
        if instance is not None:
            with suppress(Exception):
                self._tell(instance)
        return self._method.__get__(instance, owner)


class CallTold:
    """Stands for the function of a module; tells of each call, whatever `tell` raises."""

    def __init__(self, function: Any, tell: Callable[[], None]) -> None:
        self._function = function
        self._tell = tell

    @property
    def __call__(self) -> Any:
        """The function itself: what Python looks up in order to call this object."""
        with suppress(Exception):
            self._tell()
        return self._function
