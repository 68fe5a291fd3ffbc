"""What a diagnosis says of its evidence, in a few words.

>>> told("DistBackendError: NCCL error " + 20 * "in: a.cpp:7, " + "Last error: socketProgress: closed")[-36:]
'… Last error: socketProgress: closed'
"""

import re
from collections.abc import Sequence

from tenant_client.doctor.sources.evidence import Evidence, Role

_OF_ADDRESSES = ("illegal_memory_access", "gpu_page_fault")
_MOST = 200
_BEGINNING = 90
_FOLDER = re.compile(r"(?<=: )/(?:[^/:]+/)+(?=[^/:]+: )")
# Where in its source a C++ message was written.
_PLACE = re.compile(r"\[(?:enforce fail at )?/?(?:[\w.+-]+/)+[\w.-]+\.(?:cc|cpp|cu|h|hpp):\d+\][. ]*", re.ASCII)


def told(text: str) -> str:
    """A line's beginning; of a long error of NCCL also its last words, which say what happened."""
    flat = _PLACE.sub("", " ".join(text.split()))
    before, mark, last = flat.partition("Last error: ")
    return f"{before[:_BEGINNING]}… {mark}{last}"[:_MOST] if mark and len(flat) > _MOST else flat[:_MOST]


def without_folder(sentence: str) -> str:
    """The sentence of a diagnosis with the name of the file alone.

    >>> without_folder("key_error: rank 1: /me/a b/runs/j-1/stderr.log, line 7: KeyError: 'lr'")
    "key_error: rank 1: stderr.log, line 7: KeyError: 'lr'"
    """
    return _FOLDER.sub("", sentence, count=1)


def shared_fault(seen: Sequence[Evidence], root: Evidence) -> str:
    """On how many ranks kernels reached beyond their memory, if on several: one bad GPU is one rank's."""
    ranks = {one.rank for one in seen if one.reason == root.reason and one.role is Role.ROOT} - {None}
    return f"the same on {len(ranks)} ranks" if root.reason in _OF_ADDRESSES and len(ranks) > 1 else ""
