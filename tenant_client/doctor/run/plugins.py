"""Watchers and log formats of plug-ins, for those that the owner has enabled: docs/architecture.md, "Plug-ins".

    tenant.toml, [plugins] enable ─┬─ pharoah.watchers ─▶ PluginWatcher, beside ours in `observe`
                                   └─ pharoah.sources ──▶ rows before ours in `sources.formats`

A plug-in that raises is named once and left out; all else runs on. A watcher's code runs in the observer and a format's
where logs are read: neither is ever in a process of the job.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from crypto.errors import PharoahError
from federation.base.plugins import Plugin, PluginFailed, calling, plugins
from federation.base.reading import CappedReader, ReadLimits, SourceError
from federation.base.settings import BadSettings, load
from tenant_client.doctor.diagnosis.diagnose import Gathered, gather
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.watchdog import WatchFinding
from tenant_client.doctor.run.watcher import Watcher
from tenant_client.doctor.settings import TenantSettings
from tenant_client.doctor.sources.evidence import Evidence
from tenant_client.doctor.sources.formats import FORMATS, Format, Head
from tenant_client.doctor.sources.reasons import REASONS, UNKNOWN

WATCHERS, SOURCES = "pharoah.watchers", "pharoah.sources"
_VARIABLE = "PHAROAH_PLUGINS_ENABLE"
_MOST_FINDINGS, _MOST_LETTERS, _MOST_EVIDENCE = 100, 400, 4096
Failed = Callable[[PharoahError], None]


def offered(group: str, home: Path, failed: Failed) -> Iterator[Plugin]:
    """What the distributions offer that the home's settings name; `failed` hears why there is less."""
    file = home / "tenant.toml"
    try:
        if file.exists() or _VARIABLE in os.environ:
            yield from plugins(group, load(TenantSettings, file, os.environ).plugins.enable, failed)
    except BadSettings as fault:
        failed(fault)
    except OSError as error:
        failed(BadSettings(f"{file}: {error.strerror}"))


def watchers(home: Path, run_dir: Path, failed: Failed) -> list["PluginWatcher"]:
    """Those that are enabled, each for one attempt."""
    return [PluginWatcher(one, run_dir, failed) for one in offered(WATCHERS, home, failed)]


def gather_with_plugins(home: Path, paths: Sequence[Path], failed: Failed) -> Gathered:
    """What the files hold, the enabled formats tried first. If one of these raises, all is read again without it."""
    rows = {one.where: _format(one) for one in offered(SOURCES, home, failed)}
    while True:
        try:
            return gather(paths, formats=(*rows.values(), *FORMATS))
        except PluginFailed as fault:
            failed(fault)
            del rows[fault.plugin]


# ---- watchers --------------------------------------------------------------------------------------------------------


class PluginWatcher(Watcher):
    """A watcher that tells at each look what holds: said once, and cleared when it is told no more."""

    failure = "cannot ask a plug-in"

    def __init__(self, plugin: Plugin, run_dir: Path, failed: Failed) -> None:
        self.findings: list[WatchFinding] = []
        self._plugin, self._run_dir, self._failed = plugin, run_dir, failed
        self._watcher: Any = None
        self._is_left_out = False

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Sequence[WatchFinding]:
        """Asks it once, unless it has raised before; the new findings."""
        if self._is_left_out:
            return ()
        holding: dict[object, WatchFinding] = {}
        try:
            with calling(self._plugin.where):
                holding = {_key(one): one for one in map(_finding, self._ask(now_s, tuple(ranks)))}
        except PluginFailed as fault:
            self._is_left_out = True
            self._failed(fault)
        known = {_key(one) for one in self.findings if one.cleared_at_s is None}
        self.findings = [
            one if one.cleared_at_s is not None or _key(one) in holding else replace(one, cleared_at_s=now_s)
            for one in self.findings
        ]
        room = max(0, _MOST_FINDINGS - len(self.findings))
        new = [one for key, one in holding.items() if key not in known][:room]
        self.findings += new
        return new

    def _ask(self, now_s: float, ranks: tuple[Progress, ...]) -> Iterable[WatchFinding]:
        if self._watcher is None:
            self._watcher = self._plugin.loaded(self._run_dir)
        found: Iterable[WatchFinding] = self._watcher.look(now_s, ranks)
        return found


def _key(finding: WatchFinding) -> object:
    return finding.kind, finding.ranks


def _finding(told: WatchFinding) -> WatchFinding:
    """The same, with every field of its type."""
    finding = msgspec.convert(msgspec.to_builtins(told, builtin_types=(bytes,)), WatchFinding)
    return replace(finding, text=finding.text[:_MOST_LETTERS], cleared_at_s=None)


# ---- formats ---------------------------------------------------------------------------------------------------------


def _format(plugin: Plugin) -> Format:
    def looks_like(head: Head) -> bool:
        with calling(plugin.where):
            return bool(plugin.loaded.looks_like(head))

    def read(reader: CappedReader, limits: ReadLimits) -> list[Evidence]:
        with calling(plugin.where, passes=(SourceError,)):
            found = islice(plugin.loaded.read(reader, limits), _MOST_EVIDENCE)
            return [_evidence(one, plugin.where) for one in found]

    return Format(plugin.name, looks_like, read)


def _evidence(told: Evidence, source: str) -> Evidence:
    """The same, with every field of its type and a reason that is one; how sure it is, nobody has measured."""
    evidence = msgspec.convert(msgspec.to_builtins(told, builtin_types=(bytes,)), Evidence)
    if evidence.reason != UNKNOWN and evidence.reason not in REASONS:
        raise ValueError(f"{evidence.reason!r} is none of the reasons that `pharoah-tenant patterns reasons` lists")
    return replace(evidence, source=source, text=evidence.text[:_MOST_LETTERS])
