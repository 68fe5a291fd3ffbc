r"""What tools print of the state of GPUs, links and nodes: `nvidia-smi`, `amd-smi`, `dcgmi`, `ibstat`, `sinfo`.

A report is taken apart into values, each with its device and the path of words that it stands under. The table
`tool_reports.toml` says which tools there are and which values show a fault. Words that JSON, XML, CSV and text write
differently are the same path: `ECC Errors`, `ecc_errors` and `ecc.errors` are `ecc_errors`.

Guarantees: any text ends in evidence, or in what the report covers without a fault (`NoFault`). A report is a picture
of a moment, often taken afterwards: its evidence is a symptom, which names the cause where no log tells another.

Does not judge use, temperatures, power or clocks.

>>> [value.key for value in values("ECC Errors\n    DRAM Uncorrectable : 2", Tool("x", "", "list"))]
['ecc_errors/dram_uncorrectable']
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Literal

import msgspec

from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, beginning
from federation.base.visible import counted_as
from federation.protocol.toml_tables import BadTable, convert, loads, shipped
from tenant_client.doctor.sources.evidence import Evidence, NoFault, Role
from tenant_client.doctor.sources.prefixes import below_command
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN
from tenant_client.doctor.sources.xid import XIDS

SOURCE = "tool_report"
_XID = "xid"  # the value is a code of xid.toml
_FILE = "tool_reports.toml"
_MOST_BYTES, _MOST_VALUES, _MOST_FOUND, _MOST_DEPTH = 1 << 25, 1 << 20, 256, 32
_LONGEST, _SHOWN, _PATH, _TEXT, _MOST_COMMANDS = 400, 4, 4, 400, 16
_WORD, _HUMP = re.compile(r"[^a-z0-9]+"), re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
_DEVICE_KEYS = (
    "pci_bus_id",
    "gpu_bus_id",
    "bus_id",
    "gpu",
    "gpu_id",
    "entity_id",
    "device_id",
    "index",
    "neuron_device_index",
    "ifname",
)
_NAMED = ("name", "category", "metrics_type", "block")
_AS_KEY = re.compile(r"(?:card|gpu|device|npu)[ _]?(\d{1,4})", re.IGNORECASE)
_BUS = re.compile(r"\b[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]\b")
_NUMBER = re.compile(r"\s*(?:0x)?(\d{1,18})\b")
_COUNT = re.compile(
    r"\s*(?:0x)?(\d{1,18})\b(?!\.0*[1-9]|\s*(?:[%/]|[KMG]i?B\b|[CW]\b|MHz))"
)  # no share, size or reading
_TAG = re.compile(r"<(/?)([A-Za-z_][\w:.-]{0,100})([^<>]{0,400}?)(/?)>([^<]{0,400})")
_ID = re.compile(r'\bid="([^"]{1,64})"')
_PAIR = re.compile(r"(\s*)([^:=]{1,120}?)\s*(?::\.*|(?<=\w)\s*\.{3,}|\s=\s)\s*(.*)")
_INNER = re.compile(r"([A-Za-z][\w ]{2,40}): (\S.*)")
_RAS_COLUMNS = re.compile(r"\s*Block\s+Status\s+Correctable Error\s+Uncorrectable Error\s*")
_APART = re.compile(r"\s{2,}")
_BarredRow = tuple[int, list[str]]  # the number of the line and its cells
_LAST_RULE = f"+{'-' * 20}+"
_RULED = re.compile(r"[|+][-=+|]{8,}\s*$")  # between the parts of a table
_RULE = re.compile(r"[\s=_-]*")
_GPUS = re.compile(r"\bGPUs?(?: ID)?:? ?(\d{1,4})\b")
_SAMPLE = re.compile(r'(\w{1,100})(\{(?:[^}"]|"[^"]*")*?\b(?:gpu|gpu_id)="(\w{1,20})"[^\n]*)\}\s+([-+\w.]{1,30})')
_HOST = re.compile(r'\b[Hh]ostname="([^"]{1,200})"')
_ENTRY = re.compile(r"\s*GUID 0x\w{1,16} port (?P<port>\w{1,6}):(?P<counters>.*)")
_COUNTER = re.compile(r"\[(\w{1,60}) == (\d{1,20})")
_INFO = re.compile(r'\s*Link info:.{0,200}?==>\s+0x\w+\s+\d+\s+(?P<port>\d+)\[.{0,20}?\] "(?P<other>[^"]{1,200})"')


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool by its name; what a file begins with that is its report, and how that is taken apart."""

    name: str
    begins: str
    form: Literal["json", "xml", "csv", "box", "list", "lines", "metrics", "samples", "ibqueryerrors"]
    of: Literal["GPU", "NPU", "link", "port", "node"] = "GPU"
    device: str = ""
    part: str = ""
    line: str = ""
    only_faults: bool = False


@dataclass(frozen=True)
class Value:
    """A value of a report: its device, "" above the first, the path of words above it, and its line, 0 in JSON.

    `at` is when it was read, as a table of times has it.
    """

    device: str
    key: str
    value: str
    line: int
    at: str = ""
    host: str = ""


@dataclass(frozen=True)
class Fault:
    """Values that show a fault, and of which reason; `earlier` where they may be of long ago."""

    reason: str
    key: re.Pattern[str] | None
    but: re.Pattern[str] | None
    value: re.Pattern[str] | None
    above: int | None
    of: tuple[str, ...]
    earlier: bool

    def shown_by(self, one: Value, tool: Tool) -> bool:
        """Whether the value of this tool shows it."""
        if self.of and tool.of not in self.of:
            return False
        if (self.key and not self.key.search(one.key)) or (self.but and self.but.search(one.key)):
            return False
        if self.value is not None:
            return self.value.search(one.value) is not None
        number = _COUNT.match(one.value)
        return number is not None and int(number[1]) > (0 if tool.only_faults else self.above or 0)


def tool_of(head: str) -> Tool | None:
    """The tool whose report begins so, below the command that printed it or without."""
    for _ in range(_MOST_COMMANDS):
        found = next((tool for tool, begins in _tools() if begins.match(head)), None) if _any().match(head) else None
        below = "" if found else below_command(head)
        if not below:
            return found
        head = below
    return None


def looks_like(head: str) -> bool:
    """Whether a file that begins so is a report of one of the tools."""
    return tool_of(head) is not None


def read(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Evidence | NoFault]:
    """The faults of each device, those that say most first; where there is none, what was looked at."""
    text = beginning(reader, limits, _MOST_BYTES)
    tool = tool_of(text[: 16 << 10])
    if tool is None:
        return
    above = 0
    while not re.match(tool.begins, text) and (below := below_command(text)):
        above, text = above + text.count("\n") - below.count("\n"), below
    devices, shown = dict[str, int](), dict[str, list[tuple[int, Value]]]()
    for one in islice(values(text, tool), _MOST_VALUES):
        devices[one.device] = devices.get(one.device, 0) + 1
        rank = next((rank for rank, fault in enumerate(_faults()) if fault.shown_by(one, tool)), None)
        if rank is not None and (one.device in shown or len(shown) < _MOST_FOUND):
            shown.setdefault(one.device, []).append((rank, one))
    named = counted_as(len(devices.keys() - {""}), tool.of) if len(devices) > 1 else f"one {tool.of}"
    if not shown:
        looked_at = f": {named}, {counted_as(sum(devices.values()), 'value')}" if devices else ""
        yield NoFault(f"{tool.name} shows no fault{looked_at}")
    if len(shown) > 1:
        shown.pop("", None)  # what sums up the others
    worst = sorted(shown.items(), key=lambda item: (min(rank for rank, _ in item[1]), -len(item[1])))
    for device, own in worst:
        found = _evidence(tool, device, sorted(own, key=lambda one: one[0]), reader.file)
        yield replace(found, line=found.line + above) if found.line else found


def _evidence(tool: Tool, device: str, own: Sequence[tuple[int, Value]], file: str) -> Evidence:
    """Of one device; the first of its values says most."""
    fault, first = _faults()[own[0][0]], own[0][1]
    said = dict.fromkeys(f"{' '.join(one.key.split('/')[-_PATH:])} {one.value[:120]}" for _, one in own)
    what = f"{tool.of} {device}" if device else f"the {tool.of}"
    more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    when = ", perhaps of an earlier time" if fault.earlier else f", from {first.at[:40]} on" if first.at else ""
    shown = ", ".join(list(said)[:_SHOWN]).replace("_", " ")
    text = f"{tool.name}: {what}: {shown}{more}{when}"[:_TEXT]
    gpu, host = (device if tool.of in ("GPU", "NPU") else ""), (device if tool.of == "node" else first.host)
    reason = _of_xid(first.value) if fault.reason == _XID else fault.reason
    return Evidence(reason, Role.SYMPTOM, SOURCE, file, first.line, text, None, None, host, gpu)


def _of_xid(value: str) -> str:
    code = _NUMBER.match(value)
    xid = XIDS.get(int(code[1])) if code else None
    return xid.reason if xid and xid.reason else UNKNOWN


# ---- taking a report apart -------------------------------------------------------------------------------------------


def values(text: str, tool: Tool) -> Iterator[Value]:
    """All values of a report, in its order."""
    match tool.form:
        case "json":
            yield from _of_json(text)
        case "samples":
            yield from _of_samples(text)
        case "xml":
            yield from _of_xml(text)
        case "csv":
            yield from _of_csv(text)
        case "box":
            yield from _of_box(text)
        case "lines":
            yield from _of_lines(text, re.compile(tool.line))
        case "metrics":
            yield from _of_metrics(text)
        case "ibqueryerrors":
            yield from _of_links(text)
        case _ if text.lstrip()[:1] in ("{", "["):  # mlxlink --json
            yield from _of_json(text)
        case _:
            yield from _of_list(text, tool)


def _words(text: str) -> str:
    return _WORD.sub("_", _HUMP.sub("_", text[:_LONGEST]).lower()).strip("_")[:120]


def _of_json(text: str) -> Iterator[Value]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    yield from _walk(document, "", "", 0)


def _of_samples(text: str) -> Iterator[Value]:
    """A sample a line, as monitors write them: what a counter rose by, and where; of a single sample what it counts."""
    first, rose = dict[tuple[str, str], int](), dict[tuple[str, str], Value]()
    for number, line in enumerate(text.splitlines(), start=1):
        for one in _of_json(line):
            count, of = _COUNT.fullmatch(one.value), (one.device, one.key)
            if count and int(count[1]) > first.setdefault(of, int(count[1])) and of not in rose:
                rose[of] = Value(*of, str(int(count[1]) - first[of]), number)
    yield from (rose.get(of, Value(*of, str(count if text.count("\n{") == 0 else 0), 1)) for of, count in first.items())


def _walk(node: object, device: str, path: str, depth: int) -> Iterator[Value]:
    if depth > _MOST_DEPTH:
        return
    if isinstance(node, dict):
        device = _device_of(node, device)
        for key, inner in node.items():
            found = _AS_KEY.fullmatch(key)
            below = f"{path}/{_words(key)}".lstrip("/") if not found else path
            if key == "value" and isinstance(node.get("metrics_type"), str):
                below = path  # a list of measures, each with its name
            yield from _walk(inner, found[1] if found else device, below, depth + 1)
    elif isinstance(node, list):
        for inner in node:
            names = inner if isinstance(inner, dict) else {}
            named = next((names[key] for key in _NAMED if isinstance(names.get(key), str)), "")
            yield from _walk(inner, device, f"{path}/{_words(named)}".strip("/") if named else path, depth + 1)
    elif node is not None:
        yield Value(device, path, str(node)[:_LONGEST], 0)


def _device_of(node: Mapping[str, object], device: str) -> str:
    for key in _DEVICE_KEYS:
        value = node.get(key)
        if isinstance(value, int | str) and not isinstance(value, bool) and len(str(value)) <= 64:
            port = node.get("port")
            return f"{value} port {port}" if key == "ifname" and isinstance(port, int) else str(value)
    return device


def _of_xml(text: str) -> Iterator[Value]:
    """Tags as they come: what is cut off or not closed matters as little as in a text."""
    path: list[str] = []
    device, line, at = "", 1, 0
    for tag in _TAG.finditer(text):
        closes, name, attributes, is_empty, inner = tag.groups()
        line, at = line + text.count("\n", at, tag.start()), tag.start()
        if closes:
            if name in path:
                del path[len(path) - 1 - path[::-1].index(name) :]
            continue
        if name == "gpu" and (found := _ID.search(attributes)):
            path, device = ["nvidia_smi_log"], found[1]
        if inner.strip():
            yield Value(device, "/".join(map(_words, [*path[1:], name])), inner.strip(), line)
        if not is_empty and len(path) < _MOST_DEPTH:
            path.append(name)


def _of_csv(text: str) -> Iterator[Value]:
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    try:
        names = [_words(cell.split("[")[0]) for cell in next(rows, [])]
        of_device = next((names.index(name) for name in _DEVICE_KEYS if name in names), None)
        for cells in rows:
            device = cells[of_device].strip() if of_device is not None and of_device < len(cells) else ""
            at = next((cell.strip() for name, cell in zip(names, cells, strict=False) if name == "timestamp"), "")
            for name, cell in zip(names, cells, strict=False):
                yield Value(device, name, cell.strip()[:_LONGEST], rows.line_num, at)
    except csv.Error:  # a cell beyond the module's limit
        return


def _of_box(text: str) -> Iterator[Value]:
    """Cells between bars. Of two columns the first is the key; of more, the same place of the heading.

    A heading has as many rows as each device.
    """
    heading, block = list[_BarredRow](), list[_BarredRow]()
    device = key = ""
    for number, line in enumerate([*text.splitlines(), _LAST_RULE], start=1):
        if _RULED.match(line):
            if "=" in line and block and not block[0][1][0][:1].isdigit():
                heading, block = block, []
            for at in range(0, len(block) if heading else 0, len(heading) or 1):
                yield from _of_barred(heading, block[at : at + len(heading)])
            block = []
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) > 2:
                block.append((number, cells))
            elif len(cells) == 2 and not heading:
                key = _words(cells[0]) or key
                if cells[0] == "Device ID":
                    device = cells[1]
                of_gpu = _GPUS.search(f"{cells[0]} {cells[1]}")
                yield Value(of_gpu[1] if of_gpu else device, key, cells[1][:_LONGEST], number)


def _of_barred(heading: Sequence[_BarredRow], rows: Sequence[_BarredRow]) -> Iterator[Value]:
    """Of one device: its bus where the table has no health of parts (`npu-smi` has a bus for each part)."""
    index = rows[0][1][0].split()[:1]
    bus = next((found[0] for _, cells in rows if (found := _BUS.search(" ".join(cells)))), "")
    by_part = any(cell == "Health" for cell in heading[0][1])
    device = bus if bus and not by_part else index[0] if index and index[0].isdigit() else ""
    for (_, names), (number, cells) in zip(heading, rows, strict=False):
        for name, cell in zip(names, cells, strict=False):
            yield from (Value(device, key, value[:_LONGEST], number) for key, value in _named(name, cell))


def _named(heading: str, cell: str) -> Iterator[tuple[str, str]]:
    """A cell's values with their names, each with its own where both have as many, set apart by spaces."""
    names, inner = _APART.split(heading), _APART.split(cell)
    pairs = zip(names, inner, strict=True) if len(names) == len(inner) else ((heading, cell),)
    yield from ((_words(name), value) for name, value in pairs)


def _of_lines(text: str, form: re.Pattern[str]) -> Iterator[Value]:
    for number, line in enumerate(text.splitlines(), start=1):
        if found := form.match(line[:1000]):
            groups = {key: value for key, value in found.groupdict().items() if value is not None}
            device = groups.pop("device", "") or groups.pop("node", "")
            yield from (Value(device, key, value[:_LONGEST], number) for key, value in groups.items())


def _of_metrics(text: str) -> Iterator[Value]:
    """A scrape of an exporter, of samples that name a GPU."""
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _SAMPLE.match(line[:2000]):
            host = _HOST.search(found[2])
            yield Value(found[3], _words(found[1]), found[4], number, host=host[1] if host else "")


def _of_links(text: str) -> Iterator[Value]:
    """Of `ibqueryerrors`: the counters of each port, which it names with the other end of its link."""
    own, counters, entry = "", list[tuple[str, str]](), ("", 0)
    for number, line in enumerate([*text.splitlines(), "Errors for the end"], start=1):
        info, found = _INFO.match(line), _ENTRY.match(line)
        if info or found or line.startswith("Errors for "):
            other = f" to {info['other']} port {info['port']}" if info else ""
            yield from (Value(f"{entry[0]}{other}", key, value, entry[1]) for key, value in counters)
            counters = []
        if line.startswith("Errors for "):
            own = line.removeprefix("Errors for ").split('"')[1] if line.count('"') > 1 else line[11:200]
        elif found and found["port"] != "ALL":
            entry = f"{own} port {found['port']}", number
            counters = [(_words(name), value) for name, value in _COUNTER.findall(found["counters"])]


def _of_list(text: str, tool: Tool) -> Iterator[Value]:
    """`key: value` lines below sections, which are lines without a value; counts of blocks below a line of names."""
    opens = re.compile(tool.device) if tool.device else None
    part = re.compile(tool.part) if tool.part else None
    device = port = ""
    sections: list[tuple[int, str]] = []
    in_table = False
    for number, line in enumerate(text.splitlines(), start=1):
        line = line[:1000].expandtabs(8)
        header = opens.match(line) if opens else None
        if header:
            device, port = next(filter(None, header.groups()), ""), ""
            sections, in_table = [], False
        if part and (found := part.match(line)):
            port = f" port {found[1]}"
        if header and line.count(":") < 2:
            continue
        pair = _PAIR.fullmatch(line)
        if in_table and not pair:
            yield from _of_row(device, line, number)
        elif _RULE.fullmatch(line) is None:
            in_table = in_table or _RAS_COLUMNS.fullmatch(line) is not None
            indent = len(line) - len(line.lstrip())
            while sections and sections[-1][0] >= indent:
                sections.pop()
            if pair and pair[3].strip():
                key, value = _key_and_value(pair[2], pair[3].strip())
                path = "/".join([*(name for _, name in sections), _words(key)])
                yield Value(device + port, path, value[:_LONGEST], number)
            elif len(sections) < _MOST_DEPTH:
                sections.append((indent, _words(line)))


def _key_and_value(key: str, value: str) -> tuple[str, str]:
    """Of `Link 0: Recovery Errors: 3` the key is all but the number."""
    inner = _INNER.fullmatch(value)
    return (f"{key} {inner[1]}", inner[2]) if inner else (key, value)


def _of_row(device: str, line: str, number: int) -> Iterator[Value]:
    """A block of a GPU with its counts, as `rocm-smi --showrasinfo` has them."""
    block, *cells = line.split() or [""]
    for name, cell in zip(("status", "correctable_error", "uncorrectable_error"), cells, strict=False):
        yield Value(device, f"{_words(block)}/{name}", cell, number)


# ---- the table -------------------------------------------------------------------------------------------------------


class _FaultRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str
    key: str | None = None
    but: str | None = None
    value: str | None = None
    above: int | None = None
    of: tuple[str, ...] = ()
    earlier: bool = False


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tool: tuple[Tool, ...]
    fault: tuple[_FaultRow, ...]


@cache
def _table() -> _Table:
    table = convert(loads(shipped("tenant_client.doctor.sources", _FILE), _FILE), _Table, _FILE)
    for row in table.fault:
        if row.reason not in (UNKNOWN, _XID) and row.reason not in REASONS:
            raise BadTable(f"{_FILE}: {row.reason!r} is not a reason")
        if (row.value is None) == (row.above is None):
            raise BadTable(f"{_FILE}: a fault of {row.reason} needs either value or above")
    return table


@cache
def _tools() -> tuple[tuple[Tool, re.Pattern[str]], ...]:
    return tuple((tool, re.compile(tool.begins)) for tool in _table().tool)


@cache
def _any() -> re.Pattern[str]:
    """What all reports begin with: a file that has none of it is asked nothing more."""
    return re.compile(
        r"\s*(?:[\[{]|<[?!n]|=|\+[-=+]{8}|#|-[-IWE]|\d+/\d+: |NPU ID|GPU|CA '|Infini|Errors |ibwarn|NIC |Operat"
        r"|mx-smi|-{20}|Running v|Load|link |NAME +STATUS|PARTITION|NODELIST|Success"
        r"|Settings for |\d+: \S+: <|\w{3} \w{3} |[\w.@-]{1,40}:?\s*\nNIC |DCGM_FI_"
        r"|[\w.-]+(?: \[[^\]\n]*\])?, ?)"
    )


@cache
def _faults() -> tuple[Fault, ...]:
    def compiled(text: str | None) -> re.Pattern[str] | None:
        return None if text is None else re.compile(text)

    return tuple(
        Fault(row.reason, compiled(row.key), compiled(row.but), compiled(row.value), row.above, row.of, row.earlier)
        for row in _table().fault
    )
