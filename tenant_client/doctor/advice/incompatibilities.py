"""What is known to fail with a job's software: a shipped, cited table, read with no federation.

    what is known of a job ──▶ fits(entry, job) ─▶ applies | may apply | no
    lines of a failed job's logs ─▶ in_logs(…) ──▶ the entries whose line stands there, then those that fit otherwise

- The table is `known_incompatibilities.toml`, beside this file; every entry names its source and quotes it.
- An entry fits only if each of its components is known and has a version in its range. In a log, its line stands for
  what is not known, never for versions that are out of range.
- It *applies* if nothing else is asked for, or if its line stands there and its versions are known. Else it *may
  apply*, and says when.

Not promised: completeness, and that a version which fits is the cause. Sources say what failed for their authors.

    >>> from tenant_client.doctor.sources.software import of_versions
    >>> [known.id for known in against(Job(of_versions([("nccl", "2.17.1")]))) if known.fit is Fit.APPLIES]
    ['nccl-missing-fin']
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from federation.protocol.toml_tables import LazyTable, loads, rows, shipped
from tenant_client.doctor.sources.scanning import Line
from tenant_client.doctor.sources.software import COMPONENTS, Software, of_versions, version_of
from tenant_client.doctor.workload.descriptor import Descriptor

_FILE = "known_incompatibilities.toml"
_MOST_QUOTED = 200


class Effect(StrEnum):
    """What a user meets."""

    HANG = "hang"
    CRASH = "crash"
    WRONG_RESULTS = "wrong_results"
    INIT_FAILURE = "init_failure"
    IMPORT_ERROR = "import_error"
    OUT_OF_MEMORY = "out_of_memory"
    CHECKPOINT = "checkpoint"
    SLOW = "slow"


# Reasons of a diagnosis that an effect explains. What only slows a job down explains no failure.
_EXPLAINS: Mapping[Effect, frozenset[str]] = {
    Effect.HANG: frozenset({"nccl_timeout_error", "collective_timeout", "cancelled_stalled"}),
    Effect.CRASH: frozenset({"segmentation_fault", "cuda_error", "illegal_memory_access", "nccl_remote_error"}),
    Effect.WRONG_RESULTS: frozenset({"nan_loss"}),
    Effect.INIT_FAILURE: frozenset({"rendezvous_timeout", "cuda_error", "nccl_remote_error", "driver_mismatch"}),
    Effect.IMPORT_ERROR: frozenset({"import_error"}),
    Effect.OUT_OF_MEMORY: frozenset({"gpu_out_of_memory", "out_of_memory_error"}),
    Effect.CHECKPOINT: frozenset({"model_loading_error", "checkpoint_write"}),
    Effect.SLOW: frozenset(),
}


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table; the file's head says what each column means."""

    id: str
    versions: dict[str, str]
    effect: Effect
    symptom: str
    do: str
    source: str
    quote: str
    when: str = ""
    words: tuple[str, ...] = ()
    pattern: str = ""
    example: str = ""
    log_only: bool = False
    fixed_in: str = ""
    gpus: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for objection, holds in _OBJECTIONS:
            if holds(self):
                raise ValueError(objection)

    def says(self, text: str) -> bool:
        """Whether this line is the one that a log has."""
        return any(word in text for word in self.words) and re.search(self.pattern, text) is not None


def _has_wrong_range(entry: Entry) -> bool:
    try:
        return not all(len(SpecifierSet(text)) for text in entry.versions.values())
    except InvalidSpecifier:
        return True


def _has_wrong_example(entry: Entry) -> bool:
    try:
        return not entry.says(entry.example)
    except re.error:
        return True


_OBJECTIONS: tuple[tuple[str, Callable[[Entry], bool]], ...] = (
    ("no versions are given", lambda entry: not entry.versions),
    ("a component is not in components.toml", lambda entry: not entry.versions.keys() <= COMPONENTS.keys()),
    ("a range of versions is not one of PEP 440", _has_wrong_range),
    (
        "words, pattern and example come together",
        lambda entry: len({bool(entry.words), bool(entry.pattern), bool(entry.example)}) > 1,
    ),
    ("the pattern does not match its own example", lambda entry: bool(entry.pattern) and _has_wrong_example(entry)),
    ("log_only needs a pattern", lambda entry: entry.log_only and not entry.pattern),
    ("a source is an https address", lambda entry: not entry.source.startswith("https://")),
    ("a source is quoted, shortly", lambda entry: not 0 < len(entry.quote) <= _MOST_QUOTED),
    ("symptom and advice are not said", lambda entry: not (entry.symptom and entry.do)),
)

TABLE: Mapping[str, Entry] = LazyTable(lambda: parse(shipped("tenant_client.doctor.advice", _FILE)))


def parse(text: str) -> Mapping[str, Entry]:
    """Read a table; BadTable names the entry and what is wrong with it."""
    return {entry.id: entry for entry in rows(loads(text, _FILE), Entry, _FILE, "id")}


def explains(effect: Effect, reason: str) -> bool:
    """Whether an effect may be what a diagnosis calls so."""
    return reason in _EXPLAINS[effect]


class Fit(StrEnum):
    """How an entry fits what is known of a job."""

    APPLIES = "applies"
    MAY_APPLY = "may_apply"


@dataclass(frozen=True)
class Job:
    """What is known of a job; what is empty is unknown. `precision` and `collectives` are those of its description."""

    software: Software = field(default_factory=Software)
    precision: str = ""
    collectives: frozenset[str] = frozenset()


def job_of(software: Software, descriptor: Descriptor | None) -> Job:
    """What is known by a description of the workload, and by `software` besides."""
    if descriptor is None:
        return Job(software)
    kinds = frozenset(kind for kind, _, _ in descriptor.collectives)
    return Job(of_versions((*descriptor.versions, *descriptor.software)) | software, descriptor.precision, kinds)


@dataclass(frozen=True)
class Known:
    """An entry that fits a job, for a person or a program.

    `found` are the versions in question, `line` the line of the log that says so, or empty; `where` its file and line.
    """

    id: str
    fit: Fit
    effect: Effect
    found: tuple[str, ...]
    symptom: str
    when: str
    do: str
    fixed_in: str
    source: str
    line: str = ""
    where: str = ""

    @property
    def label(self) -> str:
        """What goes before the words."""
        return "known of" if self.fit is Fit.APPLIES else "may apply:"

    @property
    def words(self) -> str:
        """One line for a person."""
        versions = ", ".join(self.found) or self.id
        when = f", if {self.when}" if self.fit is Fit.MAY_APPLY and self.when else ""
        fixed = f" (fixed in {self.fixed_in})" if self.fixed_in else ""
        return f"{versions}: {self.symptom}{when}; {self.do}{fixed}; {self.source}"


def fits(entry: Entry, job: Job, *, seen: bool = False) -> Fit | None:
    """How an entry fits a job, None if it does not; `seen` says that its line stands in the log."""
    in_range = [_in_range(entry.versions[name], job.software.versions.get(name)) for name in entry.versions]
    if False in in_range:
        return None
    if seen:
        return Fit.APPLIES if entry.log_only or None not in in_range else Fit.MAY_APPLY
    if None in in_range or entry.log_only:
        return None
    asked = (
        _any_of(entry.precision, {job.precision} - {""}),
        _any_of(entry.collectives, job.collectives),
        _any_of(entry.gpus, {name for name in entry.gpus if _is_there(name, job.software.gpus)}, job.software.gpus),
    )
    if False in asked:
        return None
    return Fit.MAY_APPLY if None in asked or entry.when else Fit.APPLIES


def against(job: Job) -> tuple[Known, ...]:
    """What is known against a job before it starts: what applies, then what may, narrow ranges before wide ones."""
    found = [(entry, fits(entry, job)) for entry in TABLE.values()]
    known = [_known(entry, fit, job) for entry, fit in found if fit is not None]
    return tuple(sorted(known, key=lambda one: (one.fit is Fit.MAY_APPLY, not _is_narrow(TABLE[one.id]))))


def in_logs(job: Job, lines: Iterable[tuple[str, Line]], reason: str) -> tuple[Known, ...]:
    """What is known of a failed job whose logs, of (file, line), say this reason.

    First come entries whose line stands there. Of those with one line, those remain whose versions are all known;
    without one, that whose line says all (`log_only`); without it, all. Then come those whose versions fit and whose
    effect explains the reason.
    """
    lines = list(lines)
    named: dict[str, Known] = {}
    for name, entry in TABLE.items():
        place = next(((file, line) for file, line in lines if entry.says(line.text)), None)
        if place is not None and (fit := fits(entry, job, seen=True)) is not None:
            line, where = place[1].text.strip()[:_MOST_QUOTED], f"{place[0]}, line {place[1].number}"
            named[name] = _known(entry, fit, job, line, where)
    seen = [known for name, known in named.items() if _remains(name, named)]
    seen.sort(key=lambda known: (known.fit is Fit.MAY_APPLY, -len(known.found)))
    rest = (known for known in against(job) if known.id not in named and explains(known.effect, reason))
    return (*seen, *(known for known in rest if not TABLE[known.id].pattern))


def _remains(name: str, named: Mapping[str, Known]) -> bool:
    """Whether an entry is the most particular of those that have its line."""
    alike = [TABLE[other] for other in named if TABLE[other].pattern == TABLE[name].pattern]
    certain = [one for one in alike if named[one.id].fit is Fit.APPLIES and not one.log_only]
    return TABLE[name] in (certain or [one for one in alike if one.log_only] or alike)


@cache
def words() -> tuple[str, ...]:
    """What a line must hold to be one of an entry: a gate for whole logs."""
    return tuple({word: None for entry in TABLE.values() for word in entry.words})


def _known(entry: Entry, fit: Fit, job: Job, line: str = "", where: str = "") -> Known:
    found = (
        f"{component} {version}"
        for component, specifiers in entry.versions.items()
        for version in sorted(job.software.versions.get(component, ()))
        if _in_range(specifiers, frozenset({version}))
    )
    when = entry.when
    if line and fit is Fit.MAY_APPLY:
        unknown = (f"{name} {text}" for name, text in entry.versions.items() if name not in job.software.versions)
        when = f"it has {', '.join(unknown)}"
    elif not when and fit is Fit.MAY_APPLY:
        when = f"the job has {' or '.join((*entry.gpus, *entry.precision, *entry.collectives))}"
    return Known(
        entry.id,
        fit,
        entry.effect,
        tuple(found),
        entry.symptom,
        when,
        entry.do,
        entry.fixed_in,
        entry.source,
        line,
        where,
    )


def _in_range(specifiers: str, versions: Iterable[str] | None) -> bool | None:
    """Whether one of these versions is in the range; None if none is known. A nightly counts as what it precedes."""
    parsed = [version for version in map(version_of, versions or ()) if version is not None]
    if not parsed:
        return None
    bases = (version.base_version if version.is_prerelease else version for version in parsed)
    return any(_specifiers(specifiers).contains(version) for version in bases)


@cache
def _specifiers(text: str) -> SpecifierSet:
    return SpecifierSet(text)


def _is_narrow(entry: Entry) -> bool:
    """Whether it names one version, a range with two ends, or two components."""
    return len(entry.versions) > 1 or any("==" in text or {"<", ">"} <= set(text) for text in entry.versions.values())


def _any_of(wanted: Iterable[str], there: Iterable[str], known: Iterable[str] | None = None) -> bool | None:
    """Whether one that is wanted is there, None if what is there is not known; true if nothing is wanted."""
    wanted, there = set(wanted), set(there)
    if not wanted:
        return True
    return bool(wanted & there) if (there if known is None else set(known)) else None


def _is_there(gpu: str, models: Iterable[str]) -> bool:
    """Whether a model is this GPU: B200 is not GB200, and A10 is not A100."""
    return any(re.search(rf"(?<![A-Za-z0-9]){re.escape(gpu)}(?![A-Za-z0-9])", model) for model in models)
