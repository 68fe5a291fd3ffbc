"""Which metrics tell of trouble of a job of the benchmark catalogue: for the recipe of nodes where such jobs run.

The table is `signatures.toml`, beside this file: what moved most windows ahead while faults were injected into that job
(`pharoah-sim study injection`). A tenant's job is of an archetype that a job of the catalogue stands in for.
"""

from collections.abc import Collection
from typing import Annotated

import msgspec
from msgspec import Meta

from federation.protocol.toml_tables import BadTable, loads, rows, shipped
from provider_server.fleet.telemetry.catalogue import METRICS

FILE = "signatures.toml"


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metrics of a job, the earliest first."""

    job: str
    metrics: Annotated[tuple[str, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.metrics) - METRICS.keys()):
            raise ValueError(f"unknown metrics: {', '.join(unknown)}")


def metrics_of(jobs: Collection[str]) -> frozenset[str]:
    """The metrics that tell of any of these jobs; BadTable for a job that nothing was injected into."""
    text = shipped("provider_server.fleet.learning", FILE)
    found = {one.job: one.metrics for one in rows(loads(text, FILE), Signature, FILE, "job")}
    if unknown := sorted(set(jobs) - found.keys()):
        raise BadTable(
            f"nothing was injected into {unknown[0]!r} yet", hint=f"{FILE} has {', '.join(sorted(found))}; leave it out"
        )
    return frozenset(metric for job in jobs for metric in found[job])
