"""`status`, `jobs`, `patterns reasons` and `serve --check`: what is said of a home, by name, and by exit code."""

import os
import pty
import re
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import provider_server.program.cli
import simulation.cli
import tenant_client.program.cli
import trustee.cli
from crypto.errors import PlanRefused
from crypto.ids import LeaseId
from federation.base.clock import now_hour
from federation.base.pinned_directory import pin
from federation.protocol.causes import CAUSES
from federation.protocol.service_messages import Action, Hint, HintState, Suspicion
from provider_server.rounds.readiness import What
from tenant_client.doctor.advice.hints import HintLog
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.outbox import Outbox
from tenant_client.doctor.sources.reasons import REASONS
from tests.provider_server.program.test_provider_verbs import committee as committee, held as held, home as home
from tests.support import schemas
from tests.support.factories import NO_SIGNATURE, a_plan, keys
from tests.support.federations import WEEKS

CLI = {
    "tenant": tenant_client.program.cli.app,
    "trustee": trustee.cli.app,
    "provider": provider_server.program.cli.app,
    "sim": simulation.cli.app,
}


def call(program: str, *words: object) -> Result:
    return CliRunner().invoke(CLI[program], [str(word) for word in words])


def told(program: str, *words: object) -> tuple[int, Any]:
    """The exit code and the view, which has the documented form."""
    result = call(program, *words, "--json")
    return result.exit_code, schemas.held(schemas.form_of(f"pharoah-{program}", words), result.stdout)


def attempt(home: Path, lease: str, job: str, state: AttemptState, at_s: float = 1e6) -> None:
    """An attempt that has ended, unless it runs."""
    home.mkdir(exist_ok=True)
    with closing(open_database(home / "tenant.db")) as connection:
        attempts = Attempts(connection)
        number = attempts.begin(lease, at_s)
        attempts.name(lease, job)
        if state is not AttemptState.RUNNING:
            attempts.end(lease, number, state, at_s + 1)
        if state is AttemptState.FAILED:
            attempts.explain(lease, number, AttemptCause("ecc_error"))


# ---- a tenant --------------------------------------------------------------------------------------------------------


def test_status_of_nothing_is_nothing_yet_and_makes_nothing(tmp_path: Path) -> None:
    code, view = told("tenant", "status", "--home", tmp_path / "none")
    assert (code, view["exists"], view["federation"], view["last_round"]) == (3, False, None, None)
    assert not (tmp_path / "none").exists()


def test_status_names_what_runs_and_what_failed(tmp_path: Path) -> None:
    attempt(tmp_path, "aa11", "python pretrain.py", AttemptState.RUNNING)
    assert "aa11 (python pretrain.py)" in call("tenant", "status", "--home", tmp_path).stdout
    assert told("tenant", "status", "--home", tmp_path)[0] == 0
    attempt(tmp_path, "aa22", "python finetune.py", AttemptState.FAILED, 2e6)
    code, view = told("tenant", "status", "--home", tmp_path)
    assert (code, [row["lease"] for row in view["running"]]) == (1, ["aa11"])
    assert (view["last_attempt"]["job"], view["last_attempt"]["reason"]) == ("python finetune.py", "ecc_error")


def test_a_hint_that_stands_waits_for_the_owner(tmp_path: Path) -> None:
    attempt(tmp_path, "aa11", "python pretrain.py", AttemptState.RUNNING)
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        HintLog(connection).take(hint_now(), 0.0, NO_SIGNATURE)
    code, view = told("tenant", "status", "--home", tmp_path)
    assert (code, view["hints_standing"]) == (1, 1)
    assert "watch" in view["due"]


def test_status_of_a_tenant_says_the_last_round_and_what_is_left(held: Path) -> None:
    code, view = told("tenant", "status", "--home", held.parent / "tenants/000")
    last = view["last_round"]
    assert (code, view["federation"]["members"], last["start_hour"], last["end_hour"]) == (0, 4, *WEEKS[1])
    assert last["epsilon_left"] == pytest.approx(view["epsilon_limit"] - last["epsilon_spent"], abs=1e-9)
    assert last["epsilon_spent"] > 0.9


@pytest.mark.parametrize("verb", ["show --only journal", "privacy budget", "privacy preview", "privacy sent"])
def test_what_owners_see_as_json_has_the_form_of_the_reference(held: Path, verb: str) -> None:
    code, view = told("tenant", *verb.split(), "--home", held.parent / "tenants/000")
    assert code == 0
    assert any(view.values())


def hint_now() -> Hint:
    return Hint(
        number=1,
        at_h=now_hour(),
        lease=LeaseId(bytes(16)),
        state=HintState.RAISED,
        suspicion=Suspicion.UNCLEAR,
        ratio=3.0,
        ratio_low=2.0,
        ratio_high=4.0,
        probability=0.5,
        within_hours=24.0,
        action=Action.CHECKPOINT,
        times=1,
    )


def test_leases_are_found_by_their_first_letters(tmp_path: Path) -> None:
    attempt(tmp_path, "aa11", "train", AttemptState.SUCCEEDED)
    attempt(tmp_path, "aa22", "eval", AttemptState.SUCCEEDED, 2e6)
    code, view = told("tenant", "jobs", "--home", tmp_path)
    assert (code, [(row["lease"], row["job"]) for row in view["leases"]]) == (0, [("aa11", "train"), ("aa22", "eval")])
    assert told("tenant", "jobs", "aa2", "--home", tmp_path)[1]["leases"] == view["leases"][1:]
    ambiguous = call("tenant", "show", "--only", "changes", "aa", "--home", tmp_path)
    assert ambiguous.exit_code == 2
    assert "aa11, aa22" in ambiguous.stderr
    for word in ("--latest", "aa2"):
        assert "aa22 was not described" in call("tenant", "show", "--only", "changes", word, "--home", tmp_path).stderr
    assert call("tenant", "jobs", "b", "--home", tmp_path).exit_code == 3


def test_hints_and_tests_of_a_lease_take_its_first_letters_too(tmp_path: Path) -> None:
    attempt(tmp_path, "aa11", "train", AttemptState.SUCCEEDED)
    attempt(tmp_path, "aa22", "eval", AttemptState.SUCCEEDED, 2e6)
    for verb, wrong in ((["watch", "--once"], 2), (["confirm", "test"], 3)):
        ambiguous = call("tenant", *verb, "--lease", "aa", "--home", tmp_path)
        assert (ambiguous.exit_code, "aa11, aa22" in ambiguous.stderr) == (3, True)
        both = call("tenant", *verb, "--lease", "aa11", "--latest", "--home", tmp_path)
        assert (both.exit_code, "--lease" in both.stderr) == (wrong, True)
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        log = HintLog(connection)
        log.take(hint_now(), 0.0, NO_SIGNATURE)
        assert [log.find(beginning) for beginning in ("aa2", "00", "")] == ["aa22", "00" * 16, "aa22"]
    assert "aa22" in call("tenant", "confirm", "test", "--latest", "--home", tmp_path).stderr


def test_a_lease_is_named_or_the_latest_but_not_both(tmp_path: Path) -> None:
    for words, code in (([], 3), (["aa11", "--latest"], 2)):  # without either it is the latest, of which there is none
        assert call("tenant", "show", "--only", "changes", *words, "--home", tmp_path).exit_code == code
        assert call("tenant", "check", *words, "--home", tmp_path).exit_code == 3


def test_the_journal_printed_is_no_error(tmp_path: Path) -> None:
    attempt(tmp_path, "aa11", "train", AttemptState.FAILED)
    shown = call("tenant", "show", "--only", "journal", "--home", tmp_path)
    assert shown.exit_code == 0
    assert "aa11 (train)" in shown.stdout
    assert shown.stdout.endswith("1 lease\n")  # nothing is reported without a federation


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_errors_are_coloured_on_a_terminal_alone_and_foreign_text_never(
    tmp_path: Path, more: dict[str, str], *, coloured: bool
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm"} | more
    command = [sys.executable, "-m", "tenant_client", "journal", "--home", str(tmp_path / "\x1b[31mred")]
    ours, its = pty.openpty()
    with subprocess.Popen(command, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        shown = b""
        with suppress(OSError):  # EIO: the other end is closed
            while block := os.read(ours, 1 << 16):
                shown += block
    os.close(ours)
    assert process.returncode == 3
    escapes = [b"\x1b[1;31m", b"\x1b[0m"] if coloured else []
    assert re.findall(rb"\x1b\[[0-9;]*m", shown) == escapes
    assert rb"\x1b[31mred" in shown
    piped = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert piped.stderr.startswith(b"pharoah-tenant: error: the journal is empty")
    assert b"\x1b" not in piped.stdout + piped.stderr


def test_reasons_are_the_taxonomy() -> None:
    _, view = told("tenant", "patterns", "reasons")
    assert [row["slug"] for row in view["reasons"]] == list(REASONS)
    acme = view["reasons"][: len(CAUSES)]
    assert all(row["counted"] and row["title"] and row["domain"] and row["parent"] == row["slug"] for row in acme)
    finer = view["reasons"][len(CAUSES) :]
    assert all(row["parent"] in CAUSES or (row["parent"] == "" and not row["counted"]) for row in finer)
    shown = call("tenant", "patterns", "reasons").stdout
    assert all(slug in shown and cause.advice in shown for slug, cause in CAUSES.items())
    assert len({row["advice"] for row in acme}) == len(CAUSES)


# ---- a trustee -------------------------------------------------------------------------------------------------------


def test_a_trustee_is_told_what_comes_next(committee: Path, tmp_path: Path) -> None:
    code, view = told("trustee", "status", "--home", tmp_path / "none")
    assert (code, view["exists"], view["seat"], view["due"]) == (3, False, None, view["due"])
    assert "init" in view["due"]
    assert not (tmp_path / "none").exists()
    call("trustee", "init", "--home", tmp_path / "new", "--address", "localhost:7100")
    code, view = told("trustee", "status", "--home", tmp_path / "new")
    assert (code, view["address"], view["seat"], view["attention"]) == (0, "localhost:7100", None, [])
    assert "deal" in view["due"]
    code, view = told("trustee", "status", "--home", committee.parent)
    assert (code, view["seat"]["trustees"], view["seat"]["threshold"], view["federation"]) == (0, 3, 2, None)
    assert "join" in view["due"]
    assert not (committee.parent / "trustee.db").exists()


# ---- a provider ------------------------------------------------------------------------------------------------------


def test_status_of_a_new_provider_says_who_is_missing(home: Path) -> None:
    code, view = told("provider", "status", "--home", home)
    assert (code, view["tenants"], view["trustees"], view["serving"], view["last_round"]) == (1, 0, 3, False, None)
    assert "no tenant is enrolled" in view["attention"][0]
    assert "no tenant is enrolled" in call("provider", "status", "--home", home).stdout


def test_status_of_a_provider_says_the_last_round(held: Path) -> None:
    code, view = told("provider", "status", "--home", held)
    assert (view["tenants"], view["rounds"], view["releases"]) == (4, 2, 2)
    last = view["last_round"]
    assert (last["start_hour"], last["end_hour"], last["state"], last["contributions"]) == (*WEEKS[1], "released", 4)
    assert view["due_window"] == [336, 504]
    assert code == 1
    assert any("is due: run `pharoah-provider serve`" in line for line in view["attention"])
    assert view["lacking"] == []


def test_with_the_defaults_four_tenants_are_told_that_no_round_can_succeed(
    held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHAROAH_PLAN_COHORT_MINIMUM", "10")
    monkeypatch.setenv("PHAROAH_PLAN_OWNERS_MINIMUM", "5")
    code, view = told("provider", "status", "--home", held)
    lacks = {one["what"]: (one["have"], one["need"]) for one in view["lacking"]}
    assert (code, view["pilot"], lacks[What.COHORT], lacks[What.OWNERS]) == (1, False, (4, 10), (4, 5))
    assert set(view["lacking"][0]) >= {"what", "have", "need", "who", "do"}
    said = call("provider", "status", "--home", held).stdout
    assert "lacking     tenants enrolled for cohort_minimum: 4 of 10: enrol 6 more, or run a pilot" in said
    check = told("provider", "serve", "--check", "--home", held)[1]["checks"]
    (asked,) = (one for one in check if one["name"] == "next_round")
    assert [one["what"] for one in asked["lacking"]][:2] == [What.COHORT, What.OWNERS]
    assert asked["fine"]
    monkeypatch.setenv("PHAROAH_PLAN_COHORT_MINIMUM", "3")
    monkeypatch.setenv("PHAROAH_PLAN_OWNERS_MINIMUM", "3")
    assert "pilot" in call("provider", "status", "--home", held).stdout


def test_a_trustee_that_does_not_answer_is_shown_down(committee: Path, tmp_path: Path) -> None:
    home = tmp_path / "provider"
    call("provider", "init", "--home", home, "--committee", committee, "--pilot")
    _, view = told("provider", "status", "--home", home)
    assert [one["up"] for one in view["trustee_states"]] == [False] * 3
    address = view["trustee_states"][0]["address"]
    assert f"{address} does not answer" in call("provider", "status", "--home", home).stdout
    assert view["pilot"]


def test_status_of_a_tenant_says_that_the_last_plan_was_refused_and_what_to_do(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        refusal = PlanRefused("plan 1 refused: row a has 3 owners, the policy wants 5", hint="ask for another")
        Outbox(connection).refuse(a_plan(), refusal)
        (tmp_path / "signing.key").touch()
        pin(connection, [keys().founding])
    code, view = told("tenant", "status", "--home", tmp_path)
    assert (code, view["refused_plan"]["why"], view["due"]) == (1, refusal.what, refusal.hint)
    said = call("tenant", "status", "--home", tmp_path).stdout
    assert "last plan   refused (1970-01-01 to 1970-01-08): plan 1 refused: row a has 3 owners" in said
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        Outbox(connection).keep(a_plan().round_id, b"", b"")  # an answered plan is the newest
    assert told("tenant", "status", "--home", tmp_path)[1]["refused_plan"] is None


def test_a_provider_that_can_start_is_told_so_and_one_that_cannot_why(home: Path) -> None:
    settings = home / "provider.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = "[listen]\ntenants_port = 0\nonline_port = 0\nmetrics_port = {}\n"
        settings.write_text(free.format(0))
        assert told("provider", "serve", "--check", "--home", home)[0] == 0
        settings.write_text(free.format(taken.getsockname()[1]))
        code, view = told("provider", "serve", "--check", "--home", home)
    assert (code, [one["name"] for one in view["checks"] if not one["fine"]]) == (2, ["metrics_port"])
    settings.write_text("[listen]\nport = 1\n")
    (home / "context.key").chmod(0o644)
    (home / "tls.key").write_text("none")
    code, view = told("provider", "serve", "--check", "--home", home)
    wrong = [one["name"] for one in view["checks"] if not one["fine"]]
    assert (code, wrong) == (2, ["settings", "keys", "certificate"])
    assert not (home / "control.sock").exists()


def test_an_output_folder_says_what_it_holds(tmp_path: Path) -> None:
    assert told("sim", "status", tmp_path)[0] == 3
    (tmp_path / "homes/provider").mkdir(parents=True)
    assert told("sim", "status", tmp_path)[0] == 1
    (tmp_path / "outcome.json").write_text('{"scenario": "quickstart", "seed": 7}')
    code, view = told("sim", "status", tmp_path)
    assert (code, view["scenario"], view["seed"], view["homes"]) == (
        0,
        "quickstart",
        7,
        [str(tmp_path / "homes/provider")],
    )
