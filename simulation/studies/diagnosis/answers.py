"""What a tool says about a log, and when that is right.

A tool is a command: it is called with the paths of logs or folders of them and prints one JSON object with `reason`, a
slug of `pharoah-tenant patterns reasons --json` or "unknown", and `rank`, a number or null.

    >>> fits("gpu_out_of_memory", {"out_of_memory_error"}), fits("out_of_memory_error", {"gpu_out_of_memory"})
    (True, True)
    >>> fits("nan_loss", {"segmentation_fault"}), fits("unknown", {"killed"})
    (False, False)
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from federation.base.screen import say
from federation.protocol.causes import Domain
from tenant_client.doctor.diagnosis.diagnose import diagnose, gather
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN

OURS = (sys.executable, "-m", "tenant_client", "diagnose", "--json")
CALL_S = 120.0
Asked = Callable[..., "Answer"]  # with the paths that a tool may read
Tool = Annotated[
    str | None, typer.Option(help="Command that is called, instead of pharoah-tenant.", show_default=False)
]


@dataclass(frozen=True)
class Answer:
    """A reason and a rank, how long the call took, and, where the tool says so, organ, side and a sentence."""

    reason: str
    rank: int | None = None
    seconds: float = 0.0
    organ: str = ""
    side: str = ""
    text: str = ""


def ask(tool: Sequence[str], *paths: Path, home: str | None = None) -> Answer:
    """The tool's answer; `unknown`, and a line on stderr, if what it prints is no answer."""
    began_s = time.monotonic()
    env = os.environ | ({"PHAROAH_HOME": home} if home else {})
    command = [*tool, *map(str, paths)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=CALL_S, check=False)
    seconds = time.monotonic() - began_s
    try:
        said = json.loads(done.stdout)
        reason, rank = said["reason"], said.get("rank")
        organ, side, text = (str(said.get(key) or "") for key in ("organ", "side", "sentence"))
    except (ValueError, KeyError, TypeError):
        say(f"{paths[0]}: the tool gave no answer: {done.stderr.strip()[-200:]}")
        return Answer(UNKNOWN, None, seconds)
    return Answer(str(reason), rank if isinstance(rank, int) else None, seconds, organ, side, text)


def asked_of(tool: str | None, home: str | None = None) -> Asked:
    """The command that a person gave, or ours, with that home: nobody's lessons help in an empty one."""
    return partial(ask, shlex.split(tool) if tool else OURS, home=home)


def here(*paths: Path) -> Answer:
    """The program's answer without a process of its own, for many logs."""
    found = diagnose(gather(paths).evidence)
    return Answer(found.reason, found.rank, text=found.sentence)


def fits(reason: str, right: Collection[str]) -> bool:
    """Whether a reason is one of the right ones, a finer one of theirs, or what they belong to."""
    above = {REASONS[slug].parent for slug in right if slug in REASONS}
    return reason in right or reason in above or (reason in REASONS and REASONS[reason].parent in right)


def blames_infrastructure(reason: str) -> bool:
    """Whether rounds would count it against the infrastructure."""
    return reason in REASONS and REASONS[reason].counted and REASONS[reason].domain is Domain.INFRASTRUCTURE


def grade(reason: str, right: Collection[str]) -> str:
    """`right`, `unknown` or `wrong`."""
    if fits(reason, right):
        return "right"
    return "unknown" if reason == UNKNOWN else "wrong"


def tally(grades: Sequence[str]) -> dict[str, int]:
    """How many of each grade."""
    count = Counter(grades)
    return {"n": len(grades), **{grade: count[grade] for grade in ("right", "unknown", "wrong")}}
