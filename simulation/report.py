"""The report of a simulated run: one HTML page with pictures, which loads nothing and runs no script.

`write_report` takes what `pharoah-sim run` found out, as plain JSON values. What is absent, None or not finite is shown as
"not available". Equal outcomes give equal bytes. Every picture has a description, and a table with its numbers; its
colours are roles of `report.css`, so it follows the reader's light or dark scheme.

Not promised: privacy. A report shows planted truth and results without noise, which only a simulation has.

    >>> "A quiet month" in render({"title": "A quiet month", "rounds": 4})
    True
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from io import StringIO
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from rich.filesize import decimal

from crypto.life_table import Floats
from tenant_client.check import WARNING_PROBABILITY

Row = Mapping[str, Any]
Draw = Callable[[Axes], None]

# ---- values for humans ---------------------------------------------------------------------------------------------

_MISSING = "not available"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TINY = 1e-3


def _finite(value: object) -> float:
    """Whatever is not a finite number becomes NaN, which drawings leave out and texts call not available."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _plain(value: object) -> str:
    if isinstance(value, float):
        if value and abs(value) < _TINY:
            digits, exponent = f"{value:.2e}".split("e")
            return f"{float(digits):g} × 10{str(int(exponent)).translate(_RAISED)}".removeprefix("1 × ")
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else str(value)


def _percent(share: float) -> str:
    return "> 99.9%" if 1 - _TINY < share < 1 else "< 0.1%" if 0 < share < _TINY else f"{100 * share:.3g}%"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds >= 1 or not seconds else f"{1000 * seconds:.3g} ms"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


_FORMS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("probability", "probability_without_privacy", "interval_coverage"), _percent),
    **dict.fromkeys(("seconds", "time"), _duration),
    **dict.fromkeys(("bytes", "bytes_per_tenant_round"), lambda size: decimal(round(size))),
    "mean_abs_log_rate_error": lambda error: f"× {math.exp(error):.3g}",  # the factor by which a rate is off
}


def _shown(row: Row, key: str) -> str:
    """The value of `key` as it is written for people, escaped for HTML."""
    value = row.get(key)
    if value is None or (isinstance(value, float) and math.isnan(_finite(value))):
        return _MISSING
    return escape(_FORMS.get(key.removesuffix("_without_privacy"), _plain)(value))


def _counted(value: object, noun: str, plural: str = "") -> str:
    many = plural or f"{noun}s"
    return f"an unknown number of {many}" if value is None else f"{_plain(value)} {noun if value == 1 else many}"
