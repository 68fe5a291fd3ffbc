"""Files of the owner and of the operator."""

import zlib
from contextlib import suppress

from crypto.codec import encode
from federation.base import catalogue_file
from federation.protocol.bundle import SKETCH_BYTES, Catalogue, CatalogueEntry
from fuzz.targets.inputs import REPOSITORY, as_file, folder
from fuzz.targets.target import require, target
from simulation.cloud import scenario
from tenant_client.doctor.diagnosis import filter_rules, lessons
from tenant_client.doctor.run.hook import progress
from tenant_client.rounds import policy


@target(
    "catalogue",
    "any file is entries or CatalogueError",
    lambda: [encode(Catalogue((CatalogueEntry("resnet", bytes(SKETCH_BYTES)),))), encode(Catalogue(()))],
)
def check_catalogue(data: bytes) -> None:
    """As a provider publishes it."""
    with suppress(catalogue_file.CatalogueError):
        require(
            "entries",
            holds=all(len(one.sketch) == SKETCH_BYTES for one in catalogue_file.read_catalogue(as_file(data, "c"))),
        )


@target(
    "policy",
    "any file is a Policy or PolicyError",
    lambda: [b'epsilon_per_window = 1.0\ndelta = 1e-8\nowners_minimum = 5\ndimensions = ["band", "reason"]\n'],
)
def check_policy(data: bytes) -> None:
    """No limit is lifted by a NaN."""
    with suppress(policy.PolicyError):
        read = policy.load_policy(as_file(data, "policy.toml"))
        require("a limit", holds=0 <= read.epsilon_per_window < float("inf") and read.owners_minimum >= 0)


@target(
    "scenario",
    "any file is a Scenario or ScenarioError",
    lambda: (path.read_bytes() for path in sorted((REPOSITORY / "simulation" / "cloud" / "scenarios").glob("*.toml"))),
)
def check_scenario(data: bytes) -> None:
    """Read by path."""
    with suppress(scenario.ScenarioError):
        require("a scenario", holds=scenario.load(as_file(data, "own.toml")).weeks >= 1)


@target(
    "lessons",
    "any file is Lessons or LessonsError",
    lambda: [b'{"version": 1, "lessons": {"lost its lease after <*> s": "nvlink_error"}}'],
)
def check_lessons(data: bytes) -> None:
    """What is read can be asked and saved."""
    with suppress(lessons.LessonsError):
        read = lessons.load_lessons(as_file(data, "lessons.json"))
        read.reason_of("worker 3 lost its lease after 20 s")
        lessons.save_lessons(read, folder() / "saved.json")
        require("the same lessons", holds=lessons.load_lessons(folder() / "saved.json") == read)


@target(
    "rules",
    "any file is Rules or RulesError",
    lambda: [b'[[rule]]\nworkload = "w"\nline = "step <*>"\nseen = ["a attempt 1"]\nlearnt = 2026-11-22\n'],
)
def check_rules(data: bytes) -> None:
    """What is read can be asked, and appended to another file."""
    with suppress(filter_rules.RulesError):
        read = filter_rules.load_rules(as_file(data, "rules.toml"))
        read.fitting(["step <*>"])
        saved = folder() / "saved.toml"
        saved.unlink(missing_ok=True)
        filter_rules.append_rules(saved, read.rules)
        kept = filter_rules.load_rules(saved).rules
        require("the same rules", holds=[rule.line for rule in kept] == [rule.line for rule in read.rules])


@target(
    "progress",
    "any bytes are a Progress or None",
    lambda: [progress.encode(progress.Progress(3, 4711, 120, 1.7e9, "train", 2.25, 0))],
)
def check_progress(data: bytes) -> None:
    """With the checksum that came, and with the right one."""
    body = data[: progress.SIZE - 4]
    for record in (data, body + zlib.crc32(body).to_bytes(4, "little")):
        read = progress.decode(record)
        require("a progress", holds=read is None or (read.rank >= 0 and read.phase in progress.PHASES))
