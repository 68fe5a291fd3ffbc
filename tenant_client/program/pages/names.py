"""What the tenant's page calls jobs and workloads: the owner's own name first, then the script that ran, then a token.

Names never leave this machine.
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from tenant_client.doctor.records.journal import Unit
from tenant_client.doctor.records.starts import Started

SHORT = 12  # digits of a token that are shown
LEAST_DIGITS = 6  # of a token, by which a workload can be named


def job_names(jobs: Mapping[str, str], starts: Mapping[str, Started]) -> dict[str, str]:
    """By lease, the name that the scheduler knows, or else the script that the command ran.

    >>> started = Started(command=("torchrun", "--nproc-per-node=8", "/me/train.py", "--lr", "1"))
    >>> job_names({"a": shlex.join(started.command), "b": "llama"}, {"a": started, "b": started})
    {'a': 'train.py', 'b': 'llama'}
    """
    return {lease: _job_name(job, starts.get(lease)) for lease, job in jobs.items()}


def _job_name(job: str, started: Started | None) -> str:
    is_command = started is not None and job and shlex.join(started.command).startswith(job)
    return started.program if started and is_command else job


def workload_names(leases: Sequence[Unit], jobs: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """By token, the name that the owner set for it or for its jobs, or else that of its newest job.

    `own` has names by the first digits of a token, or by the name of a job. Workloads of one name have digits, too.
    """
    found: dict[str, str] = {}
    for lease in sorted(leases, key=lambda one: one.start_h):
        token, job = lease.labels.get("subarchetype", ""), jobs.get(lease.unit, "")
        if token and (name := _own_name(token, job, own) or job):
            found[token] = name
    often = Counter(found.values())
    return {token: name if often[name] == 1 else f"{name} {token[:LEAST_DIGITS]}" for token, name in found.items()}


def _own_name(token: str, job: str, own: Mapping[str, str]) -> str:
    by_token = (name for digits, name in own.items() if len(digits) >= LEAST_DIGITS and token.startswith(digits))
    return next(by_token, "") or own.get(job, "")
