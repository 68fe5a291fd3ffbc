"""Slurm's notation for lists of hosts.

>>> list(hostlist("gpu[01-03,7],login"))
['gpu01', 'gpu02', 'gpu03', 'gpu7', 'login']
>>> list(hostlist("rack[1-2]n[01-02]"))
['rack1n01', 'rack1n02', 'rack2n01', 'rack2n02']
"""

import re
from collections.abc import Iterator
from itertools import islice

from federation.base.foreign import number

_MOST_NODES = 1 << 16
_MOST_DIMENSIONS = 5
_LONGEST = 1 << 20
_PART = re.compile(r"(?P<prefix>[^,\[\]]*)(?:\[(?P<ranges>[^\[\]]*)\](?P<rest>.*))?")


def hostlist(text: str) -> Iterator[str]:
    """The hosts of Slurm's notation, `node[01-04,7],login`: widths are kept, a broken part is taken as it is."""
    left = _MOST_NODES
    for part in re.findall(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*", text[:_LONGEST]):
        for host in _expand(part) if part else ():
            if left == 0:
                return
            left -= 1
            yield host


def _expand(part: str) -> Iterator[str]:
    found = _PART.fullmatch(part)
    if not found or found["ranges"] is None or part.count("[") > _MOST_DIMENSIONS:
        yield part
        return
    rest = list(islice(_expand(found["rest"]), _MOST_NODES))  # of a name with several dimensions
    for piece in found["ranges"].split(","):
        first, _, last = piece.strip().partition("-")
        start, stop = number(first), number(last or first)
        if start is None or stop is None or not rest:  # where nothing follows, the range is not walked
            continue
        for each in range(start, stop + 1):
            yield from (f"{found['prefix']}{each:0{len(first)}}{end}" for end in rest)
