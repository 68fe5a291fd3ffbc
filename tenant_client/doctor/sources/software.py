"""Which software a job ran on, as logs and reports say: versions by component, and the models of GPUs.

- Read are banners in logs (`NCCL version …`), lists of packages (`pip freeze`, `pip list`, `conda list`), and reports
  (`python -m torch.utils.collect_env`, `ds_report`, `nvidia-smi`). The table of components is `components.toml`.
- A component may have several versions: two ranks may differ, or two packages bring it.
- PyTorch's local version says what it was built for: 2.4.0+cu121 is also CUDA 12.1.

Not promised: that a version in a log was loaded. A list of packages says what is installed.

    >>> found = software_of(["torch==2.4.0+cu121", "NCCL version 2.21.5+cuda12.4"])
    >>> [(name, *versions) for name, versions in sorted(found.versions.items())]
    [('cuda', '12.1'), ('nccl', '2.21.5'), ('torch', '2.4.0+cu121')]
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache

import msgspec
from packaging.version import InvalidVersion, Version

from federation.base.foreign import number
from federation.protocol.toml_tables import BadTable, LazyTable, convert, loads, shipped

_PACKAGE = re.compile(
    r"^(?:\[(?:pip3?|conda)\] +)?([A-Za-z][\w.-]*)(?:==| +)v?(\d[\w.+!-]*)(?: +\S+){0,2}\s*$", re.ASCII
)
_BUILT_FOR = re.compile(r"\+(?P<kind>cu|rocm)(?P<digits>[\d.]+)")
_GPU = re.compile(r"\b(?:NVIDIA|Tesla) ((?:GeForce |RTX |Quadro |Tesla )*[A-Z]{0,3}\d{1,4}\w*(?:[ -][A-Z0-9]+\b){0,3})")
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


class Banner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line that says a version: `word` gates it, the only group of `regex` is the version."""

    word: str
    regex: str
    example: str

    def __post_init__(self) -> None:
        found = re.search(self.regex, self.example)
        if found is None or len(found.groups()) != 1 or self.word not in self.example:
            raise ValueError(f"the line for {self.word!r} does not match its own example")


class Component(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One component: the names of its packages, and the lines that say its version."""

    packages: tuple[str, ...]
    lines: tuple[Banner, ...] = ()


COMPONENTS: Mapping[str, Component] = LazyTable(
    lambda: parse(shipped("tenant_client.doctor.sources", "components.toml"))
)


def parse(text: str) -> Mapping[str, Component]:
    """Read the table; BadTable for unknown keys, wrong examples, and a package of two components."""
    table = convert(loads(text, "components.toml"), dict[str, Component], "components.toml")
    packages = [package for component in table.values() for package in component.packages]
    if twice := {package for package in packages if packages.count(package) > 1}:
        raise BadTable(f"components.toml: {min(twice)} is a package of two components")
    return table


@dataclass(frozen=True)
class Software:
    """Versions by component, each at least one, and models of GPUs as the driver names them."""

    versions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    gpus: frozenset[str] = frozenset()

    def __or__(self, other: "Software") -> "Software":
        names = self.versions.keys() | other.versions.keys()
        nothing: frozenset[str] = frozenset()
        merged = {name: self.versions.get(name, nothing) | other.versions.get(name, nothing) for name in names}
        return Software(merged, self.gpus | other.gpus)


def words() -> tuple[str, ...]:
    """What a line must hold to name a version or a GPU: banners, and packages as pip and conda list them."""
    banners = (banner.word for component in COMPONENTS.values() for banner in component.lines)
    names = {name for package in _packages() for name in (package, package.replace("-", "_"))}
    return (*banners, "NVIDIA ", "Tesla ", *(f"{name}{ending}" for name in sorted(names) for ending in ("==", "  ")))


def software_of(lines: Iterable[str]) -> Software:
    """What these lines say."""
    said: defaultdict[str, set[str]] = defaultdict(set)
    gpus: set[str] = set()
    for line in lines:
        for component, version in _said(line):
            said[component].add(version)
        gpus |= {found[1].strip() for found in _GPU.finditer(line)}
    return Software({name: frozenset(versions) for name, versions in said.items()}, frozenset(gpus))


def of_versions(pairs: Iterable[tuple[str, str]]) -> Software:
    """Versions by names of components or of packages; names that are neither are left out."""
    said: defaultdict[str, set[str]] = defaultdict(set)
    for name, text in pairs:
        for component, version in _named(name, text):
            said[component].add(version)
    return Software({name: frozenset(versions) for name, versions in said.items()})


def component_of(name: str) -> str | None:
    """The component of this name or package name, None if there is none."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    return name if name in COMPONENTS else _packages().get(name)


@lru_cache(4096)
def version_of(text: str) -> Version | None:
    """A version, or its leading numbers where it is none by PEP 440 (5.15.0-91-generic); None without numbers."""
    try:
        return Version(text)
    except InvalidVersion:
        release = _RELEASE.match(text)
        return Version(release[0]) if release else None


def _said(line: str) -> Iterator[tuple[str, str]]:
    if package := _PACKAGE.match(line):
        yield from _named(package[1], package[2])
    for component, word, pattern in _banners():
        found = pattern.search(line) if word in line else None
        if found:
            yield from _named(component, found[1])


def _named(name: str, text: str) -> Iterator[tuple[str, str]]:
    component = component_of(name)
    text = _cudnn(text) if component == "cudnn" else text
    if component is None or version_of(text) is None:
        return
    yield component, text
    built_for = _BUILT_FOR.search(text) if component == "torch" else None
    if built_for and built_for["kind"] == "cu" and len(built_for["digits"]) >= 3:
        yield "cuda", f"{built_for['digits'][:-1]}.{built_for['digits'][-1]}"
    elif built_for and built_for["kind"] == "rocm":
        yield "hip", built_for["digits"].strip(".")


def _cudnn(text: str) -> str:
    """PyTorch says 8902 for 8.9.2, and 90100 for 9.1.0."""
    told = number(text)
    if told is None or len(text) < 4:
        return text
    thousand = 10_000 if told >= 90_000 else 1_000
    return f"{told // thousand}.{told % thousand // 100}.{told % 100}"


@cache
def _packages() -> Mapping[str, str]:
    return {package: name for name, component in COMPONENTS.items() for package in component.packages}


@cache
def _banners() -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    banners = ((name, banner) for name, component in COMPONENTS.items() for banner in component.lines)
    return tuple((name, banner.word, re.compile(banner.regex, re.ASCII)) for name, banner in banners)
