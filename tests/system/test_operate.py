"""docs/operate.md says what is so: every setting, metric, log event and error has its line, and no others have one."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import msgspec

from pharoah_benchmarks.runner.settings import BenchmarkSettings
from pharoah_kubernetes.settings import KubernetesSettings
from provider_server.program.metrics import Metrics
from provider_server.program.outputs.node_metrics import NodeMetrics, PlanMetrics
from provider_server.rounds.settings import ProviderSettings
from tenant_client.doctor.settings import TenantSettings
from tenant_client.rounds.policy import Policy
from trustee.settings import TrusteeSettings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/operate.md").read_text(encoding="utf-8")
PACKAGES = ("crypto", "federation", "plugins", "provider_server", "tenant_client", "trustee")

FILES = [
    ("provider.toml", ProviderSettings),
    ("provider.toml", KubernetesSettings),
    ("provider.toml", BenchmarkSettings),
    ("tenant.toml", TenantSettings),
    ("trustee.toml", TrusteeSettings),
]


def section(heading: str) -> str:
    return re.split(rf"^#+ {heading}$", TEXT, flags=re.MULTILINE)[1].split("\n#")[0]


def rows(heading: str) -> list[list[str]]:
    table = re.findall(r"^\| (.*) \|$", section(heading), re.MULTILINE)
    return [[cell.strip() for cell in row.split(" |")] for row in table if not row.startswith("--")][1:]


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def sources() -> Iterator[str]:
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            yield file.read_text(encoding="utf-8")


def error_classes() -> set[str]:
    """PharoahError and whatever is derived from it, by name."""
    bases = dict(pair for text in sources() for pair in re.findall(r"^class (\w+)\((\w+)[,)]", text, re.MULTILINE))
    found = {"PharoahError"}
    while more := {name for name, base in bases.items() if base in found} - found:
        found |= more
    return found


def test_every_setting_is_there_with_its_default() -> None:
    documented = [
        (*spans(file), *spans(key), spans(default)[0] if spans(default) else "")
        for file, key, default, _ in rows("Keys")
    ]
    expected = [
        (file, f"{part}.{key}", str(list(value) if isinstance(value, tuple) else value))
        for file, kind in FILES
        for part, keys in msgspec.to_builtins(kind()).items()
        for key, value in keys.items()
    ]
    limits = [
        ("policy.toml", key, str(list(value) if isinstance(value, tuple) else value) if value is not None else "")
        for key, value in msgspec.to_builtins(Policy(), builtin_types=()).items()
    ]
    assert documented == expected + limits


def test_every_metric_is_there() -> None:
    registry = Metrics().registry
    NodeMetrics(registry)
    PlanMetrics(Path(), registry)
    registered = {family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()}
    # Of those that are collected only where there is something to tell.
    registered |= {name for text in sources() for name in re.findall(r'MetricFamily\(\s*"(\w+)"', text)}
    assert {spans(name)[0] for name, *_ in rows("Metrics")} == registered


def test_every_event_is_there() -> None:
    logged = {event for text in sources() for event in re.findall(r'"event": "([^"]+)"', text)}
    assert {event for _, name, *_ in rows("Logs") for event in spans(name)} == logged
    assert len(logged) >= 8


def test_every_error_has_its_line() -> None:
    documented = [name for names, *_ in rows("Every error") for name in spans(names)]
    assert len(documented) == len(set(documented))
    assert set(documented) == error_classes()
    assert {"Equivocation", "TrusteeFault", "BadLeases"} <= error_classes()


def test_every_key_of_a_lease_is_there() -> None:
    text = (ROOT / "provider_server/program/verbs/leases.py").read_text(encoding="utf-8")
    line = text.split("class Line(")[1].split("def ")[0]
    assert [key for names, _ in rows("Leases") for key in spans(names)] == re.findall(r"^        (\w+): ", line, re.M)


def test_defaults_of_the_types_are_typed() -> None:
    for _, kind in FILES:
        for name in kind.__struct_fields__:
            assert issubclass(get_type_hints(kind)[name], msgspec.Struct)
