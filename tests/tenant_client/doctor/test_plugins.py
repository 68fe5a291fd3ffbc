"""Seams: a distribution of somebody else adds a log format and a watcher, once it is enabled, and harms nothing."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from federation.base.plugin_verbs import GROUP as VERBS
from federation.base.plugins import Plugin, PluginFailed
from tenant_client.doctor.records.attempts import Attempt
from tenant_client.doctor.run.hook.progress import Progress
from tenant_client.doctor.run.plugins import SOURCES, WATCHERS, PluginWatcher
from tenant_client.doctor.run.watchdog import Kind, WatchFinding
from tests.jobs.wrapped import PROGRAM, ROOT, attempts, environment, run

NAME = "acme-pharoah"
LOG = "ACME-TRAINER 2\n17:03 tray 7: flow 0\n17:03 COOLANT LOST on tray 7\n"
POINTS = """
[pharoah.sources]
acme trainer log = acme_pharoah

[pharoah.watchers]
coolant = acme_pharoah:Coolant
"""
CUES = r"""
[[cue]]
reason = "device_lost"
role = "root"
level = "device"
literals = ["COOLANT"]
regex = 'COOLANT (?:LOST|LOW) on tray \d+'
example = "17:03 COOLANT LOST on tray 7"
advice = "Ask the facility for the pump of this tray."
"""
MODULE = '''
"""What Acme's trainer logs, and the flow of its coolant. It raises where ACME_RAISES says."""
import os, sys
from importlib import resources
from federation.base.reading import lines
from tenant_client.doctor.run.watchdog import Kind, WatchFinding
from tenant_client.doctor.sources.cues import own_cues
from tenant_client.doctor.sources.evidence import Evidence

if "ACME_MARK" in os.environ:
    open(os.environ["ACME_MARK"], "w").close()
CUES = own_cues(resources.files(__name__).joinpath("cues.toml").read_text(), "acme")

def stumble(where):
    if os.environ.get("ACME_RAISES") == where:
        sys.exit("no pump") if where == "read" else {}["pump"]

def looks_like(head):
    stumble("looks_like")
    return head.text.startswith("ACME-TRAINER") or os.environ.get("ACME_RAISES") == "read"

def read(file, limits):
    for number, line in lines(file, limits):
        text = line.decode("utf-8", "replace")
        for cue in (cue for cue in CUES if cue.matches(text)):
            yield Evidence(cue.reason, cue.role, "acme", file.file, number, text, advice=cue.advice)
        stumble("read")

class Coolant:
    def __init__(self, run_dir):
        self.run_dir, self.since_s = run_dir, None

    def look(self, now_s, ranks):
        stumble("look")
        self.since_s = self.since_s or now_s
        yield WatchFinding(Kind.PLUG_IN, self.since_s, 0, (), f"flow is low for {now_s - self.since_s:.1f} s")
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package of somebody else is installed."""
    folder = tmp_path_factory.mktemp("site")
    package, info = folder / "acme_pharoah", folder / "acme_pharoah-1.dist-info"
    for path, text in {
        package / "__init__.py": MODULE,
        package / "cues.toml": CUES,
        info / "METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n",
        info / "entry_points.txt": POINTS,
    }.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


class Acme:
    """A home, a log of the foreign format and one of ours."""

    def __init__(self, place: Path, site: Path) -> None:
        self.home, self.mark = place / "home", place / "imported"
        self.log, self.other = place / "acme.log", place / "job.log"
        self.log.write_text(LOG)
        self.other.write_bytes((ROOT / "tests/logs/key_error_plain.log").read_bytes())
        self.env = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(site))), "ACME_MARK": str(self.mark)}

    def enable(self, *names: str) -> None:
        self.home.mkdir(exist_ok=True)
        (self.home / "tenant.toml").write_text(f"[plugins]\nenable = {json.dumps(names)}\n")

    def diagnose(self, *files: Path, raises: str = "") -> tuple[dict[str, Any], list[str]]:
        """What `diagnose` tells, and its lines on stderr."""
        words = [*PROGRAM, "diagnose", *files, "--home", self.home, "--json"]
        env = environment(self.env | {"ACME_RAISES": raises})
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, env=env, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout), done.stderr.splitlines()

    def run(self, raises: str = "") -> tuple[Attempt, list[str]]:
        """How a job was journalled that failed beside its foreign log, and the lines on stderr that name a plug-in."""
        script = "import sys, time; time.sleep(1); sys.exit(3)"
        options = ("--log", self.log, "--poll-s", "0.1")
        env = self.env | {"ACME_RAISES": raises}
        done = run(self.home, [sys.executable, "-c", script], options, env=env)
        assert done.code == 3
        (attempt,) = attempts(self.home)
        return attempt, [line for line in done.stderr.splitlines() if "plug" in line]


@pytest.fixture
def acme(tmp_path: Path, site: Path) -> Acme:
    return Acme(tmp_path, site)


def test_a_foreign_format_names_its_cause_and_a_foreign_watcher_is_asked(acme: Acme) -> None:
    acme.enable(NAME)
    told, said = acme.diagnose(acme.log)
    assert (told["reason"], told["place"], told["taken_for"]) == (
        "device_lost",
        f"{acme.log}, line 3",
        {str(acme.log): "acme trainer log"},
    )
    assert told["advice"] == "Ask the facility for the pump of this tray."
    assert said == []
    attempt, said = acme.run()
    assert attempt.cause.reason == "device_lost"
    assert [line.partition(" for ")[0] for line in said] == ["pharoah-tenant: plug_in: flow is low"]
    assert [(one["kind"], one["cleared_at_s"]) for one in attempt.findings] == [("plug_in", None)]


@pytest.mark.parametrize("where", ["looks_like", "read"])
def test_a_format_that_raises_is_named_once_and_all_else_is_read(acme: Acme, where: str) -> None:
    acme.enable(NAME)
    why = {"looks_like": "KeyError: 'pump'", "read": "SystemExit: no pump"}[where]
    told, said = acme.diagnose(acme.log, acme.other, raises=where)
    assert (told["reason"], told["taken_for"][str(acme.log)]) == ("key_error", "job log")
    named = [line for line in said if NAME in line]
    assert named == [f"pharoah-tenant: warning: left out plug-in acme trainer log of {NAME}: {why}"]
    attempt, warned = acme.run(raises=where)
    assert attempt.exit_code == 3
    assert [line for line in warned if "left out" in line] == [f"{named[0]} (the job continues)"]
    assert [one["kind"] for one in attempt.findings] == ["plug_in"]  # its watcher went on


def test_a_watcher_that_raises_is_named_once_and_the_job_runs_on(acme: Acme) -> None:
    acme.enable(NAME)
    attempt, said = acme.run(raises="look")
    why = f"left out plug-in coolant of {NAME}: KeyError: 'pump'"
    assert said == [f"pharoah-tenant: warning: {why} (the job continues)"]
    assert (attempt.cause.reason, list(attempt.findings)) == ("device_lost", [])


def test_what_is_not_enabled_is_not_even_imported(acme: Acme) -> None:
    acme.enable()
    told, said = acme.diagnose(acme.log, acme.other)
    assert (told["reason"], told["taken_for"][str(acme.log)], said) == ("key_error", "job log", [])
    attempt, said = acme.run()
    assert (attempt.cause.place, list(attempt.findings), said) == ("exit status", [], [])
    assert not acme.mark.exists()
    acme.enable("pharoah")  # is there, and offers nothing
    assert acme.diagnose(acme.other)[1] == []
    assert not acme.mark.exists()
    acme.enable(NAME)
    acme.diagnose(acme.other)
    assert acme.mark.exists()


def test_a_name_that_is_not_there_and_settings_that_cannot_be_read_stop_nothing(acme: Acme) -> None:
    acme.enable("acme-other", NAME)
    told, said = acme.diagnose(acme.log)
    assert told["reason"] == "device_lost"
    assert [line for line in said if "other" in line] == [
        "pharoah-tenant: warning: left out plug-in acme-other: it is not installed"
    ]
    (acme.home / "tenant.toml").write_text("[plugins]\nenabled = true\n")
    told, said = acme.diagnose(acme.other)
    assert told["reason"] == "key_error"
    assert "unknown key 'enabled'" in said[0]
    attempt, said = acme.run()
    assert attempt.exit_code == 3
    assert len(said) == 1
    assert "unknown key 'enabled'" in said[0]


# ---- what a watcher may tell -----------------------------------------------------------------------------------------


class Telling:
    """Tells what it is given, look by look."""

    def __init__(self, *told: Any) -> None:
        self._told = list(told)

    def look(self, now_s: float, ranks: Sequence[Progress]) -> Any:
        return self._told.pop(0)


def watcher(*told: Any) -> tuple[PluginWatcher, list[str]]:
    failed: list[str] = []
    plugin = Plugin("warm", "warm of acme", lambda run_dir: Telling(*told))
    return PluginWatcher(plugin, Path("run"), lambda fault: failed.append(fault.what)), failed


def finding(kind: Kind = Kind.PLUG_IN, ranks: tuple[int, ...] = (), text: str = "warm") -> WatchFinding:
    return WatchFinding(kind, 1.0, 5, ranks, text)


def test_what_holds_is_said_once_and_cleared_when_it_is_told_no_more() -> None:
    watched, failed = watcher([finding(), finding(ranks=(1,))], [finding(text="warmer")], [], [finding()])
    new = [watched.look(float(now_s), ()) for now_s in (1, 2, 3, 4)]
    assert [[one.ranks for one in found] for found in new] == [[(), (1,)], [], [], [()]]
    assert [one.cleared_at_s for one in watched.findings] == [3.0, 2.0, None]
    assert [one.text for one in watched.findings] == ["warm"] * 3
    assert failed == []


@pytest.mark.parametrize(
    "told",
    [None, ["warm"], [finding(text=b"warm")], [WatchFinding("warm", 1.0, 5, (), "warm")]],  # type: ignore[arg-type]
)
def test_what_is_no_finding_leaves_the_plug_in_out_and_clears_what_it_told(told: object) -> None:
    watched, failed = watcher([finding()], told)
    assert len(watched.look(1.0, ())) == 1
    for now_s in (2.0, 3.0):
        assert not watched.look(now_s, ())
    assert [one.cleared_at_s for one in watched.findings] == [2.0]
    (fault,) = failed
    assert fault.startswith("left out plug-in warm of acme: ")


def test_a_plug_in_that_finds_much_fills_no_journal() -> None:
    watched, _ = watcher(*([finding(ranks=(number,), text="w" * 1000)] for number in range(300)))
    for now_s in range(300):
        watched.look(float(now_s), ())
    assert len(watched.findings) == 100
    assert {len(one.text) for one in watched.findings} == {400}


def test_a_failure_is_one_line_whatever_it_says() -> None:
    assert len(PluginFailed("acme", "x" * 1000).what) < 300


def test_each_seam_has_its_paragraph() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^#### .*: `(pharoah\.\w+)`$", page, re.MULTILINE)) == {WATCHERS, SOURCES, VERBS}
