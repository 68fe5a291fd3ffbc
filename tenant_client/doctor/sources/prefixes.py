"""What the beginning of a line tells about its origin: rank, host, GPU and time.

Times without a zone are taken as UTC; times without a year, and seconds since boot, are no times here. Two times are
compared only where the same kind of source wrote both.

    >>> place("[rank3]: KeyError: 'x'").rank
    3
    >>> stamp("[Sun Feb 23 16:24:18 2025] NVRM: GPU at PCI:0000:9b:00")
    1740327858.0
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

_LOOKED_AT = 512
_PROMPT = re.compile(
    r"(?:[\w.@~:/\[\]() -]{0,80}[$#>+] ?(?:[A-Z_]{1,40}=\S* )*(?:sudo )?[a-z][\w./-]*(?: [^\n]*)?\n(?:[ \t]*\n)*){1,4}"
)
_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: n for n, name in enumerate(_NAMES, 1)}
_CLOCK = r"(?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)"
_ISO = re.compile(
    rf"(?<!\d)(?P<Y>\d{{4}})-(?P<m>\d\d)-(?P<d>\d\d)[T ]{_CLOCK}(?:[.,](?P<f>\d{{1,9}}))? ?(?P<zone>Z|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_DMESG = re.compile(rf"\[[A-Z][a-z]{{2}} (?P<m>[A-Z][a-z]{{2}}) +(?P<d>\d+) {_CLOCK} (?P<Y>\d{{4}})\]", re.ASCII)
_FABRIC = re.compile(rf"\[(?P<m>[A-Z][a-z]{{2}}) +(?P<d>\d+) (?P<Y>\d{{4}}) {_CLOCK}\]", re.ASCII)

_RANK = re.compile(  # but not that of a tensor or of an adapter
    r"\[rank(\d{1,7})\]|\[Rank (\d{1,7})\]|^\[?default(\d{1,7})\]?:|^(\d{1,7}): "
    r"|^\[(?:\d+,(?:mpirank:)?)?(\d{1,7})(?:,[\w-]+)?\]<std"
    r"|(?<!lora[_ ])(?<!LoRA )(?<!tensor )(?<!matrix )(?<!expected )(?<!has )(?<!have )(?<!with )(?<!got )(?<!be )"
    r"\b[Rr]ank[ =:]{1,2}(\d{1,7})\b(?! (?:tensor|matri|array|dim|but|or|input|adapter)|,? (?:but|got))"
    r"|: task (\d{1,7}): |local_rank: (\d{1,7}) ",
    re.ASCII,
)
NCCL_LINE = re.compile(
    r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<gpu>\d*)\] (?:[\w/.]+:\d+ )?NCCL (?:INFO|WARN|VERSION|TRACE|ERROR)",
    re.ASCII,
)
_EXCEPTION = r"(?:[\w-]+\.)*[A-Z]\w*(?:Error|Exception|Warning|Exit|Interrupt|Failure|Timeout|NotFound|Killed): "
_HOST = re.compile(
    rf"^(?!python|slurm|lib|{_EXCEPTION}|[\w.-]+\.(?:py|sh|cc?|cpp|cu|h|so|yaml|json): |(?:\w+\.)+[A-Z])"
    r"(?P<label>[A-Za-z][\w.-]*\d[\w.-]*|[A-Za-z]\w*-[\w.-]+): |\bON (?P<slurm>[\w.-]+) CANCELLED"
    r"|srun: error: (?P<srun>[\w.-]+): task|[Nn]ode failure on (?P<failed>[\w.-]+)|\bip=(?P<ray>[\w.:-]+)\)"
    r"|(?:[T ]\d\d:\d\d:\d\d\S*|^-) (?P<syslog>[\w.-]+) kernel: ",
    re.ASCII,
)
_GPU = re.compile(
    r"\bPCI:([0-9a-fA-F:.]+)|Xid \(([0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+)\)|pci bus id ([0-9a-fA-F:.]+)"
    r"|NVRM: GPU ([0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+[0-9a-fA-F])|\bGPU (\d{1,3})\b|\bcuda:(\d{1,3})\b"
    r"|\b(?:nvidia|amdgpu|habanalabs|xe|i915|neuron) ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): "
    r"|\b(?:habanalabs (?=hl)|accel (?=accel))([a-z]{2,5}\d{1,3}): "
)
_DEVICES = re.compile(r"\b(?:cuda:\d{1,3}|cpu|meta|mps)\b")


@dataclass(frozen=True)
class LineOrigin:
    """Where a line comes from, as far as it says."""

    rank: int | None = None
    host: str = ""
    gpu: str = ""


def below_command(text: str) -> str:
    """What stands below a command at a prompt; "" where there is none."""
    prompt = _PROMPT.match(text)
    return text[prompt.end() :] if prompt else ""


def place(text: str) -> LineOrigin:
    """Rank, host and GPU of a line; of a line that compares devices, none failed."""
    head = text[:_LOOKED_AT]
    if "cuda:" in head and len({*_DEVICES.findall(head)}) > 1:
        head = _DEVICES.sub("", head)
    nccl = NCCL_LINE.search(head)
    host, gpu = (nccl["host"], nccl["gpu"]) if nccl else ("", "")
    rank = _first(_RANK, head)
    return LineOrigin(int(rank) if rank else None, host or _first(_HOST, head), gpu or _first(_GPU, head))


def stamp(text: str) -> float | None:
    """Seconds since the epoch at which a line was written, where it says so."""
    head = text[:128]
    for pattern in (_ISO, _DMESG, _FABRIC):
        found = pattern.search(head)
        if found:
            return _seconds(found)
    return None


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return next((group for group in found.groups() if group), "") if found else ""


def _seconds(found: re.Match[str]) -> float | None:
    parts = found.groupdict()
    month = _MONTHS.get(parts["m"], 0) if parts["m"].isalpha() else int(parts["m"])
    try:
        day = datetime(int(parts["Y"]), month, int(parts["d"]), int(parts["H"]), tzinfo=_zone(parts))
        whole = day.replace(minute=int(parts["M"]), second=int(parts["S"]))
    except (ValueError, OverflowError):  # a day or an hour of many digits
        return None
    return whole.timestamp() + float(f"0.{parts.get('f') or 0}")


def _zone(parts: dict[str, str]) -> timezone:
    zone = parts.get("zone")
    if not zone or zone == "Z":
        return UTC
    minutes = 60 * int(zone[1:3]) + int(zone[-2:])
    return timezone(timedelta(minutes=minutes if zone[0] == "+" else -minutes))
