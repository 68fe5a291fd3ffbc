r"""What Slurm keeps of jobs and nodes: which job or task failed, on which node, and why.

| given | as |
|---|---|
| `sacct` with JobID and State among its columns: `-p`, `-P`, `--delimiter`, fixed widths, `--json` | jobs, and steps |
| `scontrol show job`, `squeue`, also with `--json` | jobs |
| `sinfo -R`, `scontrol show node`, `sacctmgr list event`, also with `--json` | nodes that are out (`slurm_nodes`) |

A job's state names the reason; where it only FAILED, its exit code and signal do, or those of its steps. Steps that
were cancelled follow from their job's end. A node that is out is a symptom: it may be another job's.

>>> [one.text for one in jobs_in("JobID|State|ExitCode|NodeList|\n7_2|FAILED|0:11|n3|\n", "s.txt")]
['job 7_2 on n3: FAILED, signal 11 (SIGSEGV)']
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise
from signal import Signals

import msgspec

from federation.base.foreign import MALFORMED
from federation.base.hostlist import hostlist
from federation.base.reading import DEFAULT_LIMITS, CappedReader, ReadLimits, beginning
from federation.base.slurm_nodes import events_of, events_told
from federation.base.visible import counted_as
from federation.protocol.toml_tables import convert, loads, shipped
from tenant_client.doctor.sources import exit_status
from tenant_client.doctor.sources.cues import match_line
from tenant_client.doctor.sources.evidence import Evidence, NoFault, Role
from tenant_client.doctor.sources.prefixes import below_command
from tenant_client.doctor.sources.reasons import UNKNOWN

SOURCE = "slurm_records"
_FILE = "slurm_records.toml"
_MOST_BYTES, _MOST_ROWS, _MOST_SHOWN, _MOST_NAMED, _TEXT = 1 << 26, 200_000, 256, 8, 300
_BY_EXIT = "by_exit"
_NOT_ENDED = frozenset({"RUNNING", "R", "PENDING", "PD", "COMPLETING", "CG", "CONFIGURING", "CF", "SUSPENDED", "S"})
_HEADER = re.compile(
    r"\s*+(?=[^\n]*\bJob_?ID(?:Raw)?\b)(?=[^\n]*\bState\b)[\w%+-]+(?:[ |,;\t]+[\w%+-]+)+[|,;\t ]*\r?(?:\n|$)", re.I
)
_QUEUE = re.compile(r"\s*JOBID +PARTITION +NAME +USER +ST +TIME +NODES +NODELIST\(REASON\)")
_SHOWN = re.compile(r"\s*JobId=\d+ ")
_JSON = re.compile(
    r'(?s)\s*+\{(?=.{0,16000}"job_id"\s*:)(?=.{0,16000}"(?:job_)?state"\s*:)(?=.{0,16000}"(?:jobs|exit_code)"\s*:)'
)
_NODES = re.compile(
    r"\s*+(?:(?:\w{3} \w{3} [^\n]*\n)?(?=[^\n]*\bREASON\b)(?=[^\n]*\b(?:NODELIST|HOSTNAMES)\b)"
    r"(?:[A-Z:_]++[ \t]*+){1,8}+\r?(?:\n|$)"
    r"|NodeName=\S+\s|(?:\w+\|)*NodeName\|)"
)
_NODES_JSON = re.compile(
    r'(?s)\s*+\{(?=.{0,16000}"(?:nodes|sinfo)"\s*:\s*\[)'
    r'(?=.{0,16000}"(?:slurmd_start_time|state_flags|reason_changed_at|cpu_load|alloc_cpus|partitions?|weight)"\s*:)'
)
_SET = re.compile(r"(\w[\w/:]*)=(.*?)(?=\s+\w[\w/:]*=|\s*$)", re.DOTALL)
_CODE = re.compile(r"\s*(\d{1,5})(?::(\d{1,3}))?(?!\d)", re.ASCII)
_RAISED = re.compile(r"RaisedSignal:(\d{1,3})")


@dataclass(frozen=True)
class Job:
    """A job, or a step of one, as a record has it; `signal` is 0 for none."""

    id: str
    name: str
    states: tuple[str, ...]
    code: int
    signal: int
    nodes: str
    limit: str
    elapsed: str
    line: int

    @property
    def state(self) -> str:
        """The state that says most: a requeued job has two."""
        known = [state for state in self.states if reason_of(state)]
        return known[0] if known else self.states[0]

    @property
    def host(self) -> str:
        """Its node, where it has one alone."""
        names = [] if self.nodes.startswith(("(", "None")) else list(islice(hostlist(self.nodes[:_TEXT]), 2))
        return names[0] if len(names) == 1 else ""


def looks_like_jobs(head: str) -> bool:
    """Whether a file that begins so is a record of jobs."""
    head = below_command(head) or head
    return any(form.match(head) for form in (_SHOWN, _HEADER, _QUEUE)) or (
        head.lstrip()[:1] == "{" and bool(_JSON.match(head))
    )


def looks_like_nodes(head: str) -> bool:
    """Whether a file that begins so is a record of nodes that are out."""
    head = below_command(head) or head
    return bool(_NODES.match(head) or (head.lstrip()[:1] == "{" and _NODES_JSON.match(head)))


def read_jobs(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Evidence | NoFault]:
    """Each job that failed, in its order."""
    yield from jobs_in(_text(reader, limits), reader.file)


def jobs_in(text: str, file: str) -> Iterator[Evidence | NoFault]:
    """The same of a text."""
    steps: dict[str, list[Job]] = {}
    for job in _rows(text):
        steps.setdefault(job.id.partition(".")[0], []).append(job)
    failed = [found for own in steps.values() if (found := _judged(own, file)) is not None]
    if not failed:
        yield NoFault(_well([own[0] for own in steps.values()]))
    well = counted_as(len(steps) - len(failed), "other job")
    also = f"; {well} did not fail" if len(failed) < len(steps) else ""
    yield from (replace(one, text=f"{one.text}{also}") for one in failed[:_MOST_SHOWN])


def _well(jobs: Sequence[Job]) -> str:
    going = sum(any(state in _NOT_ENDED for state in job.states) for job in jobs)
    if not jobs:
        return "a record of jobs that lists none"
    if going:
        return f"of {counted_as(len(jobs), 'job')} {len(jobs) - going} completed, {going} had not ended"
    return f"all {len(jobs)} jobs completed" if len(jobs) > 1 else f"job {jobs[0].id} completed"


def _judged(own: Sequence[Job], file: str) -> Evidence | None:
    """Of a job and its steps; None where it did not fail."""
    job = next((one for one in own if "." not in one.id), own[0])
    reason = reason_of(job.state)
    if not reason:
        return None
    ended, told = job, f"{job.state}"
    if reason in (_BY_EXIT, "cancelled"):  # a step may say more
        step = next((one for one in own if reason_of(one.state) == "host_out_of_memory"), None)
        if step:
            ended, reason, told = step, "host_out_of_memory", f"{job.state}, its step {step.id} {step.state}"
    source, role = SOURCE, Role.ROOT
    if reason == _BY_EXIT:
        crashed = [one for one in (job, *own) if one.signal and one.signal != Signals.SIGTERM]
        coded = [one for one in (job, *own) if one.code]
        ended = next(iter([*crashed, *coded]), job)
        status = -ended.signal if ended in crashed else ended.code
        reason, role = exit_status.reason_of(status) if status else UNKNOWN, exit_status.role_of(status)
        source = SOURCE if reason == UNKNOWN else exit_status.SOURCE  # a verdict beside which a log may say more
        killer = exit_status.signal_of(status)
        which = "" if ended is job else f", its step {ended.id}"
        what = f"signal {killer.value} ({killer.name})" if killer else f"exit code {status}"
        told = f"{job.state}{which}, {what}" if status else job.state
    elif reason == "time_limit" and job.limit:
        told += f" of {job.limit}"
    name = f" ({job.name})" if job.name else ""
    where = f" on {job.nodes[:_TEXT]}" if job.nodes and not job.nodes.startswith(("(", "None")) else ""
    after = f" after {job.elapsed}" if job.elapsed else ""
    text = f"job {job.id}{name}{where}: {told}{after}"
    return Evidence(reason, role, source, file, ended.line, text, None, None, ended.host or job.host)


# ---- rows ------------------------------------------------------------------------------------------------------------


def _rows(text: str) -> Iterator[Job]:
    if text[:1] == "{":
        rows: Iterator[tuple[int, Mapping[str, str]]] = _of_json(text)
    elif _SHOWN.match(text):
        rows = _of_blocks(text)
    else:
        rows = _of_table(text)
    for number, (line, row) in enumerate(rows):
        if number >= _MOST_ROWS:
            return
        states = tuple(_whole(state.split()[0]) for state in row.get("state", "").split(",") if state.split())
        job_id = row.get("jobid", "")
        if job_id and states:
            code, by = _exit_of(row.get("exitcode", "") or row.get("derivedexitcode", ""))
            raised = _RAISED.search(row.get("reason", ""))
            told = row.get("jobname", ""), states, code, int(raised[1]) if raised else by
            yield Job(job_id, *told, row.get("nodelist", ""), row.get("timelimit", ""), row.get("elapsed", ""), line)


def _whole(state: str) -> str:
    """The state that sacct cut off at the width of its column, as in `OUT_OF_ME+`."""
    begin = state.upper().rstrip("+")
    return next((one for one in _table().state if one.startswith(begin)), begin) if state.endswith("+") else begin


def _exit_of(text: str) -> tuple[int, int]:
    """Exit code and signal of `1:0`; a signal beyond those of the system is none."""
    found = _CODE.match(text)
    if not found:
        return 0, 0
    return int(found[1]), int(found[2] or 0) if int(found[2] or 0) in _SIGNALS else 0


_SIGNALS = frozenset(member.value for member in Signals)
_NAMES = {
    "job_id": "jobid",
    "jobidraw": "jobid",
    "jobstate": "state",
    "job_state": "state",
    "st": "state",
    "name": "jobname",
    "nodes": "nodelist",
    "nodelist(reason)": "nodelist",
    "runtime": "elapsed",
    "time": "elapsed",
}


def _named(row: Mapping[str, str]) -> dict[str, str]:
    """With sacct's names; a column of a job's number in two forms keeps the first."""
    out: dict[str, str] = {}
    has_list = "nodelist" in row or "nodelist(reason)" in row
    for key, value in row.items():
        name = "nnodes" if key == "nodes" and has_list else _NAMES.get(key, key)
        out.setdefault(name, value.strip())
    return out


def _of_table(text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    lines = text.splitlines()
    at = next((number for number, line in enumerate(lines) if _HEADER.match(f"{line}\n") or _QUEUE.match(line)), None)
    if at is None:
        return
    header = lines[at]
    sign = max("|,;\t", key=header.count)
    spans: list[slice] = []
    if header.count(sign) == 0:
        below = lines[at + 1] if at + 1 < len(lines) else ""
        dashes = list(re.finditer(r"-+", below)) if below.strip() and set(below.strip()) <= {"-", " "} else []
        spans = [slice(found.start(), found.end()) for found in dashes]
    names = [header[span] for span in spans] if spans else header.split(None if header.count(sign) == 0 else sign)
    keys = [name.strip().lower().split("%")[0] for name in names]
    for number, line in enumerate(lines[at + 1 :], start=at + 2):
        if not line.strip() or set(line.strip()) <= {"-", " "}:
            continue
        if spans:
            cells = [line[span] for span in spans]
        else:
            cells = line.split(sign) if header.count(sign) else line.split(None, len(keys) - 1)
        yield number, _named(dict(zip(keys, cells, strict=False)))


def _of_blocks(text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Of `scontrol show job`."""
    begins = [found.start() for found in re.finditer(r"(?m)^\s*JobId=", text)]
    for begin, end in pairwise([*begins, len(text)]):
        row = {
            key.lower(): value for key, value in _SET.findall(text[begin : min(end, begin + 65536)].replace("\n", " "))
        }
        task = row.get("arraytaskid", "")
        if task.isdigit() and row.get("arrayjobid"):
            row["jobid"] = f"{row['arrayjobid']}_{task}"
        yield text.count("\n", 0, begin) + 1, _named(row)


def _of_json(text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    jobs = document.get("jobs", [document]) if isinstance(document, dict) else []
    for job in jobs if isinstance(jobs, list) else []:
        if not isinstance(job, dict):
            continue
        array, het = (_part(job, key) for key in ("array", "het"))
        array_id = _number(array.get("job_id", job.get("array_job_id"))) or 0
        task = _number(array.get("task_id", job.get("array_task_id")))
        is_task = array_id and task is not None
        number = f"{array_id}_{task}" if is_task else str(_number(job.get("job_id")) or job.get("job_id") or "")
        if het_id := _number(het.get("job_id")):
            number = f"{het_id}+{_number(het.get('job_offset')) or 0}"
        yield 0, _row(job, number)
        steps = job.get("steps")
        for step in steps if isinstance(steps, list) else []:
            if isinstance(step, dict):
                name = str(_part(step, "step").get("name", ""))
                yield 0, {**_row(step, f"{number}.{name or 'step'}"), "jobname": name}


def _row(job: Mapping[str, object], number: str) -> dict[str, str]:
    state = job.get("job_state", job.get("state"))
    state = state.get("current") if isinstance(state, dict) else state
    states = [str(one) for one in state] if isinstance(state, list) else [str(state or "")]
    code = _part(job, "exit_code")
    signal = code.get("signal")
    by = _number(signal.get("id", signal.get("signal_id"))) if isinstance(signal, dict) else _number(signal)
    nodes, times = job.get("nodes"), _part(job, "time")
    limit, elapsed = _number(times.get("limit", job.get("time_limit"))), _number(times.get("elapsed"))
    return {
        "jobid": number[:_TEXT],
        "jobname": str(job.get("name") or "")[:_TEXT],
        "state": ",".join(states),
        "exitcode": f"{_number(code.get('return_code')) or 0}:{by or 0}",
        "nodelist": nodes if isinstance(nodes, str) else str(_part(job, "nodes").get("range", "")),
        "timelimit": f"{limit} minutes" if limit else "",
        "elapsed": f"{elapsed} s" if elapsed else "",
        "reason": str(job.get("state_reason") or ""),
    }


def _part(of: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = of.get(key)
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int | None:
    """A number, or one as Slurm's JSON writes it: {"set": true, "number": 7}; None for none."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


# ---- nodes -----------------------------------------------------------------------------------------------------------


def read_nodes(reader: CappedReader, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Evidence | NoFault]:
    """Each reason for which nodes are out, with these nodes."""
    text = _text(reader, limits)
    left_out: list[str] = []
    try:
        told = json.loads(text) if text[:1] == "{" else {}
        nodes = told.get("nodes", told.get("sinfo")) if isinstance(told, dict) else None
        events = list(events_told(nodes, left_out)) if isinstance(nodes, list) else events_of(text, left_out) or []
    except (ValueError, *MALFORMED):
        return
    lasting = [event for event in events[:_MOST_ROWS] if not event[3]]
    out: dict[str, list[str]] = {}
    since: dict[str, str] = {}
    for _, node, start, _, kind in lasting:
        if _of_kind(kind):
            out.setdefault(kind, []).append(node)
            since.setdefault(kind, f", since {start}" if "T" in start else "")
    for kind, named in list(out.items())[:_MOST_SHOWN]:
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        what = (kind.rpartition("/")[2] if kind != UNKNOWN else "no reason told") + since[kind]
        cue = match_line(what, ("kernel", "job"))
        reason = cue.reason if cue else _said(what) or _of_kind(kind)
        text = f"{'node' if len(named) == 1 else 'nodes'} {', '.join(named[:_MOST_NAMED])}{more}: {what}"[:_TEXT]
        yield Evidence(reason, Role.SYMPTOM, SOURCE, reader.file, 0, text, None, None, named[0])
    if not out:
        by_plan = f" but {counted_as(len(lasting), 'node')} by plan" if lasting else ""
        yield NoFault(f"a record of nodes: none is out{by_plan}")


def _said(what: str) -> str:
    """The reason of the table whose words the text has; "" for none."""
    return next((reason for reason, words in _table().said.items() if re.search(words, what, re.IGNORECASE)), "")


def _of_kind(kind: str) -> str:
    table = _table().node
    return next((table[key] for key in sorted(table, key=len, reverse=True) if kind.startswith(key)), "node_failure")


# ---- the table -------------------------------------------------------------------------------------------------------


def reason_of(state: str) -> str:
    """The reason that a state tells; "" for none."""
    return _table().state.get(state, "")


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    state: dict[str, str]
    node: dict[str, str]
    said: dict[str, str]


@cache
def _table() -> _Table:
    return convert(loads(shipped("tenant_client.doctor.sources", _FILE), _FILE), _Table, _FILE)


def _text(reader: CappedReader, limits: ReadLimits) -> str:
    """What stands below a command that printed it, each line in its place."""
    text = beginning(reader, limits, _MOST_BYTES)
    if below := below_command(text):
        text = "\n" * (text.count("\n") - below.count("\n")) + below
    return text.lstrip() if text.lstrip()[:1] == "{" else text  # columns keep their places
