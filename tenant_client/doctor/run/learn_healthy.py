"""What a healthy attempt teaches: lines that its workload prints when nothing is wrong, which become filter rules."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from federation.base.sqlite import Connection, transaction
from tenant_client.doctor.diagnosis.filter_rules import FILE, Rule, append_rules, healthy_patterns, load_rules
from tenant_client.doctor.records.attempts import Attempts
from tenant_client.doctor.records.healthy_lines import HealthyLines
from tenant_client.doctor.records.journal import Journal

_MOST_RULES = 4096


def workload_name(connection: Connection, home: Path, unit: str) -> str:
    """What rules go by: the archetype of a described workload under this machine's key, else the name of the job."""
    descriptor = Journal(connection).descriptors().get(unit)
    if descriptor is None:
        return Attempts(connection).jobs().get(unit, "")
    from tenant_client.doctor.workload.descriptor import rungs
    from tenant_client.doctor.workload.local_tokens import local_key, local_ladder

    return f"archetype {local_ladder(rungs(descriptor, ()), local_key(home)).archetype}"


def learn(connection: Connection, home: Path, unit: str, attempt: int, at_s: float, logs: Iterable[Path]) -> int:
    """Takes the lines of a healthy attempt; the number of rules that came of them."""
    workload = workload_name(connection, home, unit)
    if not workload:
        return 0
    patterns = healthy_patterns(logs)
    with transaction(connection):  # another observer may learn at the same time
        known = load_rules(home / FILE).known(workload)
        if len(known) >= _MOST_RULES:
            return 0
        ready = HealthyLines(connection).add(workload, f"{unit} attempt {attempt}", at_s, patterns - known)
        day = datetime.fromtimestamp(at_s, UTC).date()
        if ready:
            append_rules(home / FILE, [Rule(workload, line, seen, day) for line, seen in ready.items()])
    return len(ready)
