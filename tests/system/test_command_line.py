"""Every verb of every program, called as nobody should: it ends with a message and a documented exit code.

What a verb needs besides is found in `GIVEN`, by the name of the parameter; a new verb is tried without a word here.
"""

import ctypes
import inspect
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import Result
from typer.main import get_command
from typer.testing import CliRunner

import provider_server.program.cli
import simulation.cli
import tenant_client.program.cli
import trustee.cli
from federation.base import logs
from federation.base.console import verbs_of
from federation.protocol.versions import PROTOCOL
from provider_server.rounds.home import SAMPLE

PROGRAMS = {
    "pharoah-tenant": tenant_client.program.cli.app,
    "pharoah-trustee": trustee.cli.app,
    "pharoah-provider": provider_server.program.cli.app,
    "pharoah-sim": simulation.cli.app,
}
LEASE = "0a" * 16
TEXT = {"lease": LEASE, "reason": "network_error", "line": "all went dark", "node": "n1", "tenants": "0b" * 32}
TEXT |= {"named": "a=b", "threshold": "2", "address": "localhost:7100", "listen": "nowhere"}
TEXT |= {"start_rank": "3", "end_rank": "12"}
TEXT |= {"target": str(2**31 - 1)}  # no process has this number: `attach` would wait for its end
QUICK = {"pharoah-tenant confirm test": ["--seconds", "0.1"]}
MOST_S = 30


@dataclass(frozen=True)
class Called:
    """A verb by its words, the command behind it, and its program."""

    words: tuple[str, ...]
    command: click.Command

    def __str__(self) -> str:
        return " ".join(self.words)

    def invoke(self, *more: object) -> Result:
        """Calls the verb in this process."""
        return CliRunner().invoke(PROGRAMS[self.words[0]], [*self.words[1:], *map(str, more)])

    def needed(self, file: Path) -> list[str]:
        """What the verb cannot do without, a file where it wants one."""
        words = list(QUICK.get(str(self), ()))
        for one in self.command.params:
            if one.required and one.name != "home":
                value = TEXT.get(one.name or "") or str(file)
                words += [one.opts[0], value] if isinstance(one, click.Option) else [value]
        return words


def verbs() -> Iterator[Called]:
    """All of them."""
    for program, app in PROGRAMS.items():
        yield from _below((program,), get_command(app))


def _below(words: tuple[str, ...], command: click.Command) -> Iterator[Called]:
    if isinstance(command, click.Group):
        for name, verb in verbs_of(command).items():
            yield from () if name == "bench" else _below((*words, name), verb)  # `study` under its old name
    else:
        yield Called(words, command)


VERBS = list(verbs())
# The job of `run` replaces this process: its own tests start it as one.
AT_HOME = [verb for verb in VERBS if any(one.name == "home" for one in verb.command.params) and verb.words[-1] != "run"]
UNTIL_TOLD = {  # serve whatever is there: an empty journal too, and a node without a report passes
    "pharoah-tenant page",
    "pharoah-provider nodes service",
}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A verb changes neither the handlers of this process nor its folder, and ends in time."""

    def late(*_: object) -> None:
        pytest.fail("the verb goes on and on")  # no verb catches this one, as it may an OSError

    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PHAROAH_")]:
        monkeypatch.delenv(name)
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP)}
    signal.signal(signal.SIGALRM, late)
    signal.alarm(MOST_S)
    level = logging.getLogger().level
    yield
    signal.alarm(0)
    logging.getLogger().setLevel(level)
    for kind, handler in before.items():
        signal.signal(kind, handler)


def ended_well(result: Result) -> None:
    """No exception went through; who is refused is told why."""
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (0, 1, 2, 3)
    assert "Traceback" not in result.output
    assert result.exit_code == 0 or result.output.strip()


# ---- homes that are none ---------------------------------------------------------------------------------------------


def missing(root: Path, _: Called) -> Path:
    return root / "missing"


def empty(root: Path, _: Called) -> Path:
    (root / "empty").mkdir()
    return root / "empty"


def of_another(root: Path, verb: Called) -> Path:
    home = root / "other"
    home.mkdir()
    if verb.words[0] == "pharoah-provider":
        (home / "tenant.db").touch()
    else:
        (home / "provider.toml").write_text(SAMPLE.read_text())
    return home


def a_file(root: Path, _: Called) -> Path:
    (root / "file").write_text("no home\n")
    return root / "file"


def half(root: Path, verb: Called) -> Path:
    """A home whose files are all there and full of something else."""
    home = root / "half"
    home.mkdir()
    for name in ("signing.key", "mask.key", "mask.claim", "node.key", "context.key", "sealing.key", "share.key"):
        (home / name).write_bytes(b"no key")
    for name in ("tenant.db", "trustee.db", "provider.db", "tls.pem", "tls.key", "provider.pem", "committee"):
        (home / name).write_bytes(b"no database either, and no certificate")
    for name in ("tenant.toml", "trustee.toml", "provider.toml", "policy.toml", "rules.toml"):
        (home / name).write_bytes(b"\xff\xfe[")
    for name in ("lessons.json", "trustee.card"):
        (home / name).write_bytes(b"\xff\xfe[")
    return home


@pytest.mark.parametrize("home", [missing, empty, of_another, a_file, half], ids=lambda make: make.__name__)
@pytest.mark.parametrize("verb", AT_HOME, ids=str)
def test_no_home_makes_a_traceback(verb: Called, home: Callable[[Path, Called], Path], tmp_path: Path) -> None:
    given = tmp_path / "given.txt"
    given.write_text("loss 1.0\n")
    place = home(tmp_path, verb)
    if str(verb) in UNTIL_TOLD and home in (missing, empty, half):
        pytest.skip("it would serve until it is told to stop")
    result = verb.invoke(*verb.needed(given), "--home", place)
    ended_well(result)
    if home in (of_another, a_file):
        assert result.exit_code in (2, 3)
        assert place.name in result.stderr
        assert {entry.name for entry in tmp_path.iterdir()} <= {"given.txt", place.name}


CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
_CAPABILITIES_V3 = 0x20080522


@contextmanager
def as_others() -> Iterator[None]:
    """Without root's right to read what is closed."""
    libc = ctypes.CDLL(None, use_errno=True)
    head, before = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(head, before):
        pytest.skip("capabilities cannot be read here")
    less = (ctypes.c_uint32 * 6)(*before)
    less[0] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    assert libc.capset(head, less) == 0
    try:
        yield
    finally:
        assert libc.capset(head, before) == 0


@pytest.mark.parametrize("verb", AT_HOME, ids=str)
def test_a_closed_folder_makes_no_traceback(verb: Called, tmp_path: Path) -> None:
    given, home = tmp_path / "given.txt", tmp_path / "closed"
    given.write_text("loss 1.0\n")
    home.mkdir(mode=0)
    verb.invoke("--help")  # everything that it imports is there
    with as_others():
        result = verb.invoke(*verb.needed(given), "--home", home)
    ended_well(result)
    assert result.exit_code in (2, 3)
    assert "permission denied: closed" in result.stderr


FEDERATED = {f"pharoah-tenant {verb}" for verb in ("watch", "serve", "check fit")}
OF_DATA = {"privacy budget": 0, "privacy preview": 0, "privacy sent": 3}


@pytest.mark.parametrize("verb", [verb for verb in AT_HOME if str(verb) in FEDERATED], ids=str)
def test_a_home_outside_a_federation_is_told_how_to_join(verb: Called, tmp_path: Path) -> None:
    lease = [LEASE] if verb.words[-1] == "fit" else []  # or it asks for one first
    result = verb.invoke(*verb.needed(tmp_path), *lease, "--home", tmp_path / "none")
    assert "this home has not joined a federation" in result.stderr
    assert "`pharoah-tenant join`; run, jobs, show and diagnose work without" in result.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("verb", OF_DATA)
def test_without_a_federation_nothing_leaves_and_people_are_told_so(verb: str, tmp_path: Path) -> None:
    home = ["--home", str(tmp_path / "none")]
    told = CliRunner().invoke(PROGRAMS["pharoah-tenant"], [*verb.split(), *home])
    assert told.stdout == "nothing leaves this machine: this home has not joined a federation\n"
    assert told.exit_code == OF_DATA[verb]
    rows = CliRunner().invoke(PROGRAMS["pharoah-tenant"], [*verb.split(), *home, "--json"])
    assert (rows.exit_code, rows.stdout) == (2, "")


# ---- words that are none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_an_option_that_is_none_is_named(verb: Called, tmp_path: Path) -> None:
    result = verb.invoke("--no-such-option")
    ended_well(result)
    assert result.exit_code in (2, 3)
    assert "--no-such-option" in result.stderr


ACT = ("run", "sweep", "federation", "bad-link", "diagnosis")  # they do what they do before they write anything
GARBAGE = ["", "-", "\udcff", "nowhere/at/all", "x" * 5000]


NAMES_A_FILE = ("plan", "out", "inventory", "benchmarks", "criteria", "lease", "database")


def taken(verb: Called, word: str) -> list[str]:
    """The word for each argument, and for each option that the verb needs or that names something."""
    words: list[str] = []
    for one in verb.command.params:
        if one.name in ("home", "help", "host") or (isinstance(one, click.Option) and one.is_flag):
            continue
        if not isinstance(one, click.Option):
            words += [word]
        elif one.required or one.name in NAMES_A_FILE:
            words += [one.opts[0], word]
    return words


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(at, marks=[] if word in ("", "\udcff") else [pytest.mark.nightly])
        for at, word in enumerate(GARBAGE)
    ],
)
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.words[-1] not in ACT and taken(verb, "")], ids=str)
def test_garbage_arguments_make_no_traceback(verb: Called, garbage: int, tmp_path: Path) -> None:
    words = taken(verb, GARBAGE[garbage])
    if any(one.name == "home" for one in verb.command.params):
        words += ["--home", str(tmp_path / "home")]
    ended_well(verb.invoke(*words))


# ---- what people try first -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_version_and_completion_are_where_people_look(program: str) -> None:
    app = PROGRAMS[program]
    shown = CliRunner().invoke(app, ["-h"])
    assert shown.exit_code == 0
    assert "--install-completion" in shown.stdout
    version = CliRunner().invoke(app, ["--version"])
    assert (version.exit_code, version.stdout) == (0, f"pharoah {metadata.version('pharoah')} (protocol {PROTOCOL})\n")


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_each_verb_has_its_help_and_each_argument_some_words(verb: Called) -> None:
    assert verb.invoke("-h").exit_code == 0
    shown = [one for one in verb.command.params if not getattr(one, "hidden", False)]
    assert [one.name for one in shown if not getattr(one, "help", None)] == []


def test_an_option_that_most_verbs_take_may_stand_before_the_verb(tmp_path: Path) -> None:
    home = str(tmp_path)
    tenant = PROGRAMS["pharoah-tenant"]
    before = CliRunner().invoke(tenant, ["--home", home, "--json", "status"])
    after = CliRunner().invoke(tenant, ["status", "--home", home, "--json"])
    assert (before.exit_code, before.stdout) == (after.exit_code, after.stdout)
    assert json.loads(before.stdout)["home"] == home
    wrong = CliRunner().invoke(tenant, ["--json", "page"])
    assert wrong.exit_code == 2
    assert "No such option '--json'" in wrong.stderr
    nowhere = CliRunner().invoke(PROGRAMS["pharoah-provider"], ["--home", str(tmp_path / "elsewhere"), "status"])
    assert "elsewhere" in nowhere.stderr


def test_the_options_can_be_counted() -> None:
    shown = [one for verb in VERBS if not verb.command.hidden for one in verb.command.params]
    own = [one for one in shown if isinstance(one, click.Option) and not getattr(one, "hidden", False)]
    assert len(own) <= 400


OLD = [(program, *pair) for program, app in PROGRAMS.items() for pair in get_command(app).renamed.items()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("program", "old", "new"), OLD)
def test_an_old_spelling_is_the_verb_of_its_new_one_and_is_told_to_no_program(program: str, old: str, new: str) -> None:
    shown, expected = (CliRunner().invoke(PROGRAMS[program], [*words.split(), "-h"]) for words in (old, new))
    assert (shown.exit_code, shown.stderr, shown.stdout) == (0, "", expected.stdout)
    assert f"│ {old} " not in CliRunner().invoke(PROGRAMS[program], ["-h"]).stdout


@pytest.mark.parametrize("program", ["pharoah-tenant", "pharoah-trustee"])
def test_the_verbs_of_a_program_fit_on_a_screen(program: str) -> None:
    shown = CliRunner().invoke(PROGRAMS[program], ["-h"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert len(shown.stdout.splitlines()) <= 40
    first = CliRunner().invoke(PROGRAMS[program], [])
    assert (first.exit_code, len(first.stdout.splitlines())) == (0, 4)
    assert first.stdout.startswith("start here\n")


def test_a_mistyped_verb_is_guessed_once() -> None:
    told = CliRunner().invoke(PROGRAMS["pharoah-tenant"], ["shwo"])
    assert (told.exit_code, told.stderr.count("Did you mean"), told.stderr.count("show")) == (2, 1, 1)


def test_standard_input_is_a_file_once() -> None:
    told = CliRunner().invoke(
        PROGRAMS["pharoah-tenant"], ["diagnose", "-", "--json"], input="RuntimeError: CUDA error: illegal access\n"
    )
    assert (told.exit_code, json.loads(told.stdout)["reason"]) == (0, "cuda_error")
    twice = CliRunner().invoke(PROGRAMS["pharoah-tenant"], ["diagnose", "-", "-"], input="one\n")
    assert twice.exit_code == 2
    assert "can be read only once" in twice.stderr


RUN = next(verb for verb in VERBS if str(verb) == "pharoah-tenant run")
JOB = ["--", "python", "train.py", "--", "--poll-s"]


def parsed(words: list[str], **environ: str) -> tuple[dict[str, object], str]:
    """The options of a job that runs, and what was said."""
    with CliRunner().isolation(env=environ) as (_, stderr, _):
        params = RUN.command.make_context("run", [*words, *JOB]).params
        return params, stderr.getvalue().decode()


def ignored(warning: str) -> str:
    """What a warning says was left out; it ends with that."""
    said, _, rest = warning.rpartition("; ignored ")
    assert said.startswith("pharoah-tenant: warning: ")
    assert rest.endswith(", the job runs")
    return rest.removesuffix(", the job runs")


def test_a_mistyped_option_of_run_is_left_out_alone(tmp_path: Path) -> None:
    words = ["--hang-facter", "3", "--lease", "mine", "--poll-s", "often", "--home", str(tmp_path), "--quiet"]
    params, said = parsed(words)
    assert (params["lease"], params["home"], params["quiet"], params["poll_s"]) == ("mine", tmp_path, True, 1.0)
    assert params["command"] == tuple(JOB[1:])
    assert list(map(ignored, said.splitlines())) == ["--hang-facter 3", "--poll-s often"]


def test_a_wrong_variable_of_run_is_left_out_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ = {"PHAROAH_POLL_S": "often", "PHAROAH_GRACE_S": "7", "PHAROAH_HOME": str(tmp_path / "file")}
    params, said = parsed(["--lease", "mine"], **environ)
    assert (params["lease"], params["poll_s"], params["grace_s"], params["command"]) == (
        "mine",
        1.0,
        7.0,
        tuple(JOB[1:]),
    )
    assert sorted(map(ignored, said.splitlines())) == ["PHAROAH_HOME", "PHAROAH_POLL_S"]


def test_without_a_mark_before_the_job_a_wrong_option_of_run_ends_it() -> None:
    assert RUN.invoke("--quite", "python", "train.py").exit_code == 2


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_the_help_of_a_program_shows_the_docstrings_of_its_verbs(verb: Called) -> None:
    below = get_command(PROGRAMS[verb.words[0]])
    for word in verb.words[1:]:
        assert isinstance(below, click.Group)
        below = verbs_of(below)[word]
    text = below.help  # of a verb that is not loaded yet, its text is found in the source
    assert below.callback is not None
    assert text == inspect.getdoc(inspect.unwrap(below.callback))
