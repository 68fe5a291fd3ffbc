r"""What a rank that ran out of GPU memory wanted: so many bytes more, or at most such a batch. Pure.

Read is PyTorch's message, in its forms of 1.x to 2.11 ("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …",
"… (GPU 0; 11.17 GiB total capacity; 9.70 GiB already allocated; …)"), also that of NPUs and XPUs. It tells of the one
request that failed, so what is wanted is at least that, and the batch at most that. The batch is that of the command's
options. Memory is taken for a fixed part and one that grows with the batch: both from an earlier run of the workload
with another batch, whose peak the hook saw; else the fixed part is taken for nothing, which gives the largest batch.

>>> told = request("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which "
...     "512.00 MiB is free. Including non-PyTorch memory, this process has 78.63 GiB memory in use. Of the allocated "
...     "memory 76.00 GiB is allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but unallocated.")
>>> wanted(told, batch=16).sentence
'this worker wants at least 1.61 GB more GPU memory, or batch 15 at most (it ran with 16)'
>>> batch_of(["torchrun", "train.py", "--per_device_train_batch_size=16"])
16
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_GB = 1e9
_UNITS = {"bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(\d+(?:\.\d+)?) (bytes|[KMGT]?i?B)\b"
_TRIED = re.compile(rf"Tried to allocate {_SIZE}")
_TOTAL = re.compile(rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free;")
_ALLOCATED = re.compile(rf"allocated memory {_SIZE} is allocated|{_SIZE} already allocated")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by \w+ but unallocated")
_RESERVED = re.compile(rf"{_SIZE} reserved in total")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_BATCH = re.compile(
    r"^-{0,2}(?:[\w-]+\.)*(?P<which>per[-_]device[-_]train[-_]|(?:train[-_])?micro[-_]|train[-_]|)"
    r"(?:batch[-_]?size|mbs|bs)(?:[-_]per[-_]gpu)?(?:=(?P<size>\d+))?$"
)


@dataclass(frozen=True)
class Request:
    """A request for GPU memory that failed, in bytes; None: the message does not tell. `others` is other processes'."""

    tried: float
    capacity: float | None
    free: float | None
    allocated: float | None
    unallocated: float | None
    others: float | None


@dataclass(frozen=True)
class GpuWanted:
    """How much more GPU memory a rank wanted at least, or at most which batch would do, with what it ran with.

    `fragmented`: torch held as much as was wanted, in pieces. `others_bytes` is what other processes had on that GPU.
    """

    more_bytes: float
    capacity_bytes: float
    batch: int | None
    batch_at_most: int | None
    fragmented: bool
    others_bytes: float

    @property
    def sentence(self) -> str:
        """For a person."""
        batch = ""
        if self.batch_at_most:
            batch = f", or batch {self.batch_at_most} at most (it ran with {self.batch})"
        elif self.batch_at_most == 0:
            batch = f"; no batch fits (it ran with {self.batch})"
        more = f"this worker wants at least {self.more_bytes / _GB:.3g} GB more GPU memory{batch}"
        if self.others_bytes >= self.more_bytes:
            more += f"; other processes had {self.others_bytes / _GB:.3g} GB of that GPU"
        if self.fragmented:
            more += "; torch held as much in pieces: try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        return more


def request(text: str) -> Request | None:
    """What a message tells; None where it is none."""
    tried = _bytes(_TRIED, text)
    if tried is None:
        return None
    capacity, free, allocated = (_bytes(one, text) for one in (_TOTAL, _FREE, _ALLOCATED))
    unallocated, reserved, own = (_bytes(one, text) for one in (_UNALLOCATED, _RESERVED, _OWN))
    if unallocated is None and reserved is not None and allocated is not None:
        unallocated = max(0.0, reserved - allocated)
    known = capacity is not None and free is not None and own is not None
    others = max(0.0, capacity - free - own) if known else None  # type: ignore[operator]
    return Request(tried, capacity, free, allocated, unallocated, others)


def requests(texts: Iterable[str]) -> list[Request]:
    """Those of several lines that tell of what GPU."""
    found = (request(text) for text in texts)
    return [one for one in found if one is not None and one.capacity is not None and one.free is not None]


def wanted(told: Request, batch: int | None = None, earlier: Sequence[tuple[int, float]] = ()) -> GpuWanted | None:
    """What would have been enough; `earlier` are batches of runs of the workload with the peaks of torch's memory.

    None where the message does not tell of what GPU.
    """
    if told.capacity is None or told.free is None:
        return None
    more, unallocated = max(0.0, told.tried - told.free), told.unallocated or 0.0
    at_most = _batch_at_most(told, batch, earlier) if batch and more > 0.0 else None
    return GpuWanted(more, told.capacity, batch, at_most, unallocated >= told.tried, told.others or 0.0)


def _batch_at_most(told: Request, batch: int, earlier: Sequence[tuple[int, float]]) -> int | None:
    allocated = told.allocated
    if allocated is None or told.capacity is None or told.free is None:
        return None
    need, limit = allocated + told.tried, allocated + (told.unallocated or 0.0) + told.free
    other = max((one for one in earlier if one[0] != batch), default=None)
    fixed = 0.0
    if other is not None:
        slope = (need - other[1]) / (batch - other[0])
        fixed = max(0.0, need - slope * batch) if slope > 0 else 0.0
    if need <= fixed or limit <= fixed:
        return 0
    return max(0, min(batch - 1, int(batch * (limit - fixed) / (need - fixed))))


def batch_of(command: Sequence[str]) -> int | None:
    """The batch of a rank by the options of a command; None where it has none that is known."""
    found: dict[str, int] = {}
    for word, following in zip(command, [*command[1:], ""], strict=True):
        told = _BATCH.match(word)
        size = told and (told["size"] or (following if word.startswith("-") and following.isdecimal() else ""))
        if told and size:
            found[told["which"].partition("_")[0].partition("-")[0]] = int(size)
    return next((found[which] for which in ("per", "micro", "train", "") if which in found), None)


def _bytes(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    if found is None:
        return None
    number, unit = [part for part in found.groups() if part is not None]
    return float(number) * _UNITS.get(unit, 0)
