"""What is said after a failure: three lines, the same beside the job, in the journal and on the page."""

import html
import re
import shlex
from contextlib import closing
from functools import partial
from pathlib import Path

import httpx
import pytest

from tenant_client.doctor.advice.after_failure import after_failure
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.run.hook.sampler import WILL_PROFILE
from tenant_client.program.cli import app
from tenant_client.program.pages.serving import listening
from tests.jobs.wrapped import LEASE, run
from tests.support import calling
from tests.support.waiting import PATIENCE_S

FAILED, STOPPED, SUCCEEDED = AttemptState.FAILED, AttemptState.STOPPED, AttemptState.SUCCEEDED
JOB = ["sh", "-c", "echo 'step 1'; echo \"KeyError: 'lr'\" >&2; exit 1"]
SLOW = {"kind": "slow_function", "ranks": [1], "text": "rank 1 needs 77% of a step in backward", "since_s": 2.0}


call = partial(calling.call, app)


def page(home: Path, path: str) -> str:
    with listening(home, "127.0.0.1", 0) as address:
        base, _, token = address.partition("/?token=")
        with httpx.Client(base_url=base, trust_env=False, timeout=PATIENCE_S) as client:
            client.get("/", params={"token": token})
            return html.unescape(client.get(path).text)


def journalled(home: Path, state: AttemptState, cause: AttemptCause, *findings: dict[str, object]) -> None:
    with closing(open_database(home / "tenant.db")) as connection:
        attempts = Attempts(connection)
        number = attempts.begin(LEASE, 1.0)
        attempts.name(LEASE, "python train.py")
        attempts.end(LEASE, number, state, 3.0, exit_code=int(state is FAILED), findings=findings)
        attempts.explain(LEASE, number, cause)


def test_run_journal_and_page_say_the_same_three_lines_and_the_last_one_works(tmp_path: Path) -> None:
    home = tmp_path / "home"
    stderr = run(home, JOB).stderr.splitlines()
    at = next(number for number, line in enumerate(stderr) if "attempt 1 of" in line)
    cause, do, following = (line.removeprefix("pharoah-tenant: ") for line in (*stderr[at : at + 2], stderr[-1]))
    cause = cause.removeprefix(f"attempt 1 of {LEASE} failed: ")
    assert re.fullmatch(r"key_error: stderr\.log, line 1: KeyError: 'lr'", cause)
    assert (do.startswith("do: Check the missing key"), following) == (True, f"next: pharoah-tenant show {LEASE}")
    behind = "key_error: KeyError: 'lr' — stderr.log, line 1"  # a page may cut a cause at its end
    for told, first in (
        (call("show", "--only", "journal", "--home", home).stdout, cause),
        (page(home, "/attempts"), behind),
        (page(home, "/"), behind),
    ):
        places = [told.index(line) for line in (first, do, following)]
        assert places == sorted(places)
    command = shlex.split(following.removeprefix("next: pharoah-tenant "))
    explained = call(*command, "--home", home)
    assert (explained.exit_code, cause in explained.stdout) == (0, True)
    assert str(home) not in "".join((cause, explained.stdout.splitlines()[0]))


def test_the_advice_is_that_of_the_evidence_before_that_of_the_reason(tmp_path: Path) -> None:
    own = AttemptCause("connection_error", 1, sentence="connection_error: rank 1: refused", advice="Start your server.")
    journalled(tmp_path, FAILED, own)
    for told in (call("show", "--only", "journal", "--home", tmp_path).stdout, page(tmp_path, "/attempts")):
        assert "do: Start your server." in told
    assert after_failure("a", FAILED, AttemptCause("connection_error"))[1] != "do: Start your server."


def test_of_a_success_no_failure_is_told_but_its_findings_are(tmp_path: Path) -> None:
    journalled(tmp_path, SUCCEEDED, AttemptCause("key_error", sentence="key_error: what it was"), SLOW)
    for told in (
        call("show", "--only", "journal", "--home", tmp_path).stdout,
        page(tmp_path, "/attempts"),
        page(tmp_path, "/"),
    ):
        assert "key_error" not in told
        assert "probably" not in told
        assert "explain" not in told
    assert "slow_function: rank 1" in call("show", "--only", "journal", "--home", tmp_path).stdout
    assert "slow_function: rank 1" in page(tmp_path, "/attempts")


def test_what_somebody_ended_has_its_cause_and_advice_only_where_there_is_something_to_do(tmp_path: Path) -> None:
    assert after_failure("a", STOPPED, AttemptCause("cancelled", sentence="cancelled: SIGINT")) == (
        "cancelled: SIGINT",
    )
    assert len(after_failure("a", STOPPED, AttemptCause("time_limit", sentence="time_limit: SIGTERM"))) == 3
    assert after_failure("a", AttemptState.RUNNING, AttemptCause()) == ()
    assert after_failure("a", AttemptState.INTERRUPTED, AttemptCause(sentence="unseen")) == ("unseen",)
    stderr = run(tmp_path / "home", ["timeout", "1", "sleep", "60"]).stderr
    assert f"attempt 1 of {LEASE} stopped: time_limit: " in stderr
    assert "do: Ask for more time" in stderr


def test_of_an_unknown_cause_the_unusual_lines_are_the_thing_to_read(tmp_path: Path) -> None:
    _, do, following = after_failure("a b", FAILED, AttemptCause(sentence="cause unknown: no known error pattern"))
    assert do == "do: Read the unusual lines that `pharoah-tenant diagnose 'a b'` shows."
    assert following == "next: pharoah-tenant show 'a b'"
    run(tmp_path, ["sh", "-c", "echo 'fabricd: lease 12 of plane b was revoked, aborting'; exit 3"])
    read = call("diagnose", LEASE, "--home", tmp_path)
    assert (read.exit_code, "plane b was revoked" in read.stdout) == (3, True)


def test_without_a_federation_nothing_is_told_to_be_reported(tmp_path: Path) -> None:
    journalled(tmp_path, FAILED, AttemptCause("key_error", sentence="key_error: x"))
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        Attempts(connection).count(LEASE, 1)
    for told in (
        call("show", "--only", "journal", "--home", tmp_path).stdout,
        page(tmp_path, "/attempts"),
        page(tmp_path, "/"),
    ):
        assert not re.search(r"report|round|noisy", told)


@pytest.mark.parametrize("verb", ["diagnose", "describe"])
def test_a_name_that_is_neither_a_file_nor_a_lease_is_said_so(tmp_path: Path, verb: str) -> None:
    journalled(tmp_path, FAILED, AttemptCause())
    done = call(verb, "nothing", "--home", tmp_path)
    assert (done.exit_code, "nothing: No such file or directory" in done.stderr) == (2, True)
    assert "byte" not in done.stderr


def test_when_the_workload_will_be_described_is_said_once_and_that_it_was_not_at_the_end(tmp_path: Path) -> None:
    note = f"{WILL_PROFILE} 402 s after the first step (host busy: load 5.8 per core)"
    script = f"echo '{note}' > $PHAROAH_RUN_DIR/sampling-0; sleep 3; exit 1"
    stderr = run(tmp_path / "home", ["sh", "-c", script], ["--poll-s", "0.1"]).stderr
    assert stderr.count(f"workload not described yet: {note}") == 1
    late = "the job ended before its profile, due 402 s after the first step (host busy: load 5.8 per core)"
    assert f"workload not described: {late}" in stderr
    assert f"workload not described: {late}" in call("show", "--only", "journal", "--home", tmp_path / "home").stdout
