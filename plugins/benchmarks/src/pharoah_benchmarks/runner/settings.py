"""The section benchmark of provider.toml: every key with its default. See docs/learning.md."""

import os
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from federation.base.settings import BadSettings, load
from pharoah_benchmarks.catalogue import JOBS, SizeName
from pharoah_benchmarks.run import START_S

_QUIET = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
SLACK_S = 120.0  # to ask the tenant's client of a job that is over
DAY = timedelta(days=1)
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Benchmark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where `pharoah-provider benchmark start` runs what, and how much of it; see docs/learning.md.

    `seconds` is how long a job trains. `python` is that of an environment with PyTorch, `program` the Python that has
    this plug-in, both on the nodes; empty: the one that runs this. `stands_for` says which job of the catalogue stands
    in for a workload, by its token. `quiet` are hours of this machine's clock, "08:00-18:00", into which no run goes.
    `partition` and `qos` are Slurm's; the rest is for Kubernetes, where `limits` are what a run asks for.
    """

    place: Literal["local", "slurm", "kubernetes"] = "local"
    jobs: tuple[str, ...] = ()
    stands_for: dict[str, str] = {}
    seconds: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 600.0
    size: str = ""
    python: str = ""
    program: str = ""
    node_hours_a_day: Positive = 24.0
    share_of_idle: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    quiet: str = ""
    partition: str = ""
    qos: str = ""
    namespace: str = "default"
    image: str = ""
    priority_class: str = ""
    limits: dict[str, str] = {}
    node_labels: str = ""
    server: str = ""
    token_file: str = ""
    ca_file: str = ""

    @property
    def longest_s(self) -> float:
        """After which a run is ended that was to end itself."""
        return self.seconds + START_S + SLACK_S

    def check(self) -> None:
        """BadSettings for what cannot be used."""
        for name in (*self.jobs, *self.stands_for.values()):
            if name not in JOBS:
                raise BadSettings(f"[benchmark] no job {name!r}", hint=f"known: {', '.join(JOBS)}")
        if self.size and self.size not in set(SizeName):
            raise BadSettings(f"[benchmark] no size {self.size!r}", hint=f"known: {', '.join(SizeName)}")
        if self.quiet and not _QUIET.fullmatch(self.quiet):
            raise BadSettings(f"[benchmark] quiet: {self.quiet!r} are no hours", hint='write "08:00-18:00"')
        if self.place == "slurm" and not (self.partition or self.qos):
            raise BadSettings(
                "[benchmark] neither partition nor qos: runs could not be displaced",
                hint="name a partition or a QOS whose jobs are preempted: docs/learning.md",
            )
        if self.place == "kubernetes" and not (self.image and self.priority_class and self.limits):
            raise BadSettings(
                "[benchmark] Kubernetes needs image, priority_class and limits",
                hint="an image with this plug-in, a class that others displace, what a run asks for: docs/learning.md",
            )

    def quiet_until(self, now: datetime) -> datetime | None:
        """The end of the quiet hours that a run from now on would go into; None where it does not."""
        found = _QUIET.fullmatch(self.quiet)
        if found is None:
            return None
        first_h, first_min, last_h, last_min = map(int, found.groups())
        for day in (now - DAY, now, now + DAY):
            begins = day.replace(hour=first_h, minute=first_min, second=0, microsecond=0)
            ends = day.replace(hour=last_h, minute=last_min, second=0, microsecond=0)
            ends += DAY if ends <= begins else timedelta()
            if begins < now + timedelta(seconds=self.longest_s) and now < ends:
                return ends
        return None


class BenchmarkSettings(msgspec.Struct, frozen=True):
    """This plug-in's part of provider.toml; the provider reads the rest."""

    benchmark: Benchmark = Benchmark()


def settings_of(home: Path) -> Benchmark:
    """The settings of a home, overridden by the environment; BadSettings."""
    settings = load(BenchmarkSettings, home / "provider.toml", os.environ).benchmark
    settings.check()
    return settings
