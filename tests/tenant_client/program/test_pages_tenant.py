"""The tenant's page: it shows what is so, to its owner's browser alone, and every byte that left."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from typer.testing import CliRunner

from crypto.ids import LeaseId
from federation.base.key_files import HomeError
from federation.base.sqlite import StorageFailed
from federation.protocol.check import Checker
from federation.protocol.service_messages import Action, CheckVerdict, Hint, HintState, Suspicion
from tenant_client.doctor.advice.hints import STANDS_H, HintLog
from tenant_client.doctor.advice.own_history import own_history
from tenant_client.doctor.diagnosis.sureness import Basis, Sureness
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.doctor.records.journal import Failure, Journal, Unit
from tenant_client.doctor.records.starts import Started, Starts
from tenant_client.program.cli import app
from tenant_client.program.pages.app import ROWS_AT_ONCE
from tenant_client.program.pages.key import Key
from tenant_client.program.pages.names import SHORT, workload_names
from tenant_client.program.pages.outbox import WORD_BYTES, WORDS_AT_ONCE, Message, message, words
from tenant_client.program.pages.serving import NotOnThisMachine, PageNotServed, listening
from tenant_client.program.pages.views import House, house, opened, pairs
from tenant_client.rounds.disclosure import owner_view
from tests.support import browsers
from tests.support.changing import replace
from tests.support.factories import NO_SIGNATURE
from tests.support.pages import WEEKS, Shown, built
from tests.support.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.xdist_group("pages")

ROOT = Path(__file__).resolve().parents[3]
NOW_H = 700.0
HINT = Hint(
    number=1,
    at_h=NOW_H - 1,
    lease=LeaseId(bytes(16)),
    state=HintState.RAISED,
    suspicion=Suspicion.MEMORY,
    ratio=4.0,
    ratio_low=2.0,
    ratio_high=8.0,
    probability=0.3,
    within_hours=24.0,
    action=Action.CONFIRM,
    times=1,
)


UNITS = (("a", "1" * 32), ("b", "2" * 32), ("c", "3" * 32))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return built(tmp_path_factory.getbasetemp() / "pages")


NCCL_LOG = """
gpu-a:31:40 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE ; OOB eth0:10.0.0.1<0>
gpu-a:31:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC
gpu-a:31:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/1
gpu-a:31:77 [0] NCCL INFO comm 0x1 rank 0 nranks 3 cudaDev 0 busId 1a000 - Init COMPLETE
gpu-a:32:77 [1] NCCL INFO comm 0x1 rank 1 nranks 3 cudaDev 1 busId 1b000 - Init COMPLETE
gpu-b:33:77 [0] NCCL INFO comm 0x1 rank 2 nranks 3 cudaDev 0 busId 1a000 - Init COMPLETE
"""


@pytest.fixture(scope="module")
def home(shown: Shown, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with a hint in it."""
    copy = shutil.copytree(shown.tenant, tmp_path_factory.mktemp("tenant") / "home")
    with closing(open_database(copy / "tenant.db")) as connection:
        HintLog(connection).take(HINT, 0.0, NO_SIGNATURE)
    run = copy / "runs" / "lease-9-1"
    run.mkdir(parents=True)
    (run / "output.log").write_text(NCCL_LOG)
    return copy


@pytest.fixture(scope="module")
def seen(home: Path) -> House:
    return house(home, NOW_H)


@pytest.fixture(scope="module")
def sent(home: Path) -> Message:
    with closing(opened(home)) as tenant:
        newest = str(tenant.plans()[-1].round_id)
    found = message(home, newest)
    assert found is not None
    return found


# ---- what it shows ---------------------------------------------------------------------------------------------------


def test_leases_are_checked_as_the_verb_checks_them(home: Path, seen: House) -> None:
    """The verb, too, joins the tenant's own history."""
    with closing(opened(home)) as tenant, closing(open_database(home / "tenant.db")) as connection:
        bundle = tenant.bundle()
        assert bundle is not None
        checker = Checker(own_history(connection, bundle, NOW_H).bundle)
        units = {unit.unit: checker.check(unit.labels) for unit in tenant.journal.units()}
    assert seen.bundle == bundle.number == WEEKS
    assert len(seen.leases) == len(units) > ROWS_AT_ONCE
    for lease in seen.leases:
        made = units[lease.lease]
        assert (lease.verdict, lease.reason) == (made.verdict.name.lower(), made.reason)
        assert (lease.low is None) == (made.evidence is None)
    counted = {verdict.name.lower(): 0 for verdict in CheckVerdict}
    for made in units.values():
        counted[made.verdict.name.lower()] += 1
    assert dict(seen.verdicts) == counted
    assert counted["mismatch"] > 0
    assert [lease.verdict for lease in seen.leases][: counted["mismatch"]] == ["mismatch"] * counted["mismatch"]


def test_leases_of_one_workload_on_one_context_are_one_row(seen: House) -> None:
    rows = pairs(seen.leases)
    assert sum(row.leases for row in rows) == len(seen.leases) > 2 * len(rows)
    assert len({(row.workload, row.context) for row in rows}) == len(rows)
    assert rows[0].newest.verdict == "mismatch"
    counts = [row.leases for row in pairs(seen.leases, order="jobs")]
    assert counts == sorted(counts, reverse=True)
    worse = pairs(seen.leases, "mismatch")
    assert sum(row.leases for row in worse) == dict(seen.verdicts)["mismatch"] < len(seen.leases)


def test_attempts_failures_and_budget_are_those_of_the_owner(home: Path, seen: House) -> None:
    with closing(opened(home)) as tenant:
        assert seen.budget == owner_view.budget(tenant)
        assert seen.sent == owner_view.sent(tenant)
    (attempt,) = seen.attempts
    assert attempt.cause.reason == "nvlink_error"
    assert seen.budget is not None
    assert len(seen.budget.lines) == WEEKS + 1
    assert sum(count for _, count in seen.failures) == 0  # all were counted by a round


def test_the_next_round_counts_what_no_round_has_counted(home: Path, tmp_path: Path, seen: House) -> None:
    copy = shutil.copytree(home, tmp_path / "home")
    with closing(opened(copy)) as tenant:
        counted = tenant.ledger.windows()[-1][1]
        before, after = Failure(seen.leases[0].lease, counted - 1.0, 1.0, "xid_79"), counted + 1.0
        tenant.journal.add([], [before, replace(before, at_h=after)])
    assert house(copy, NOW_H).failures == (("xid_79", 1),)


def test_jobs_and_workloads_have_names_and_the_owners_come_first(home: Path, tmp_path: Path, seen: House) -> None:
    copy, lease = shutil.copytree(home, tmp_path / "home"), seen.leases[0].lease
    with closing(open_database(copy / "tenant.db")) as connection:
        (labels,) = (unit.labels for unit in Journal(connection).units() if unit.unit == lease)
        token = labels["subarchetype"]
        Attempts(connection).name(lease, "torchrun --nproc-per-node=8 /srv/train.py --lr 1")
        Starts(connection).keep(
            lease, 1, Started(command=("torchrun", "--nproc-per-node=8", "/srv/train.py", "--lr", "1"))
        )
    named = house(copy, NOW_H)
    assert named.jobs[lease] == "train.py"
    of_token = {one.workload for one in named.leases if one.lease in _leases_of(copy, token)}
    assert of_token == {"train.py"}
    assert token[:SHORT] not in {one.workload for one in named.leases}
    for key in ("train.py", token[:8]):
        (copy / "tenant.toml").write_text(f'[names]\nworkloads = {{ "{key}" = "Llama 7B" }}\n')
        assert {one.workload for one in house(copy, NOW_H).leases if one.lease in _leases_of(copy, token)} == {
            "Llama 7B"
        }


def _leases_of(home: Path, token: str) -> set[str]:
    with closing(open_database(home / "tenant.db")) as connection:
        return {unit.unit for unit in Journal(connection).units() if unit.labels.get("subarchetype") == token}


def test_two_workloads_of_one_script_are_told_apart() -> None:
    units = [Unit(name, float(n), {"subarchetype": token}) for n, (name, token) in enumerate(UNITS)]
    names = workload_names(units, {"a": "train.py", "b": "train.py", "c": "eval.py"}, {})
    assert names == {"1" * 32: "train.py 111111", "2" * 32: "train.py 222222", "3" * 32: "eval.py"}


def test_a_hint_stands_until_it_is_cleared_or_old(home: Path, tmp_path: Path, seen: House) -> None:
    (hint,) = seen.hints
    assert hint.stands
    assert "confirm" in hint.action
    assert not house(home, NOW_H + STANDS_H).hints[0].stands
    copy = shutil.copytree(home, tmp_path / "home")
    with closing(open_database(copy / "tenant.db")) as connection:
        HintLog(connection).take(replace(HINT, number=2, at_h=NOW_H, state=HintState.CLEARED), 0.0, NO_SIGNATURE)
    (cleared,) = house(copy, NOW_H).hints
    assert not cleared.stands


def test_a_home_without_federation_shows_its_journal(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match="the journal is empty"):
        house(tmp_path, NOW_H)
    open_database(tmp_path / "tenant.db").close()
    bare = house(tmp_path, NOW_H)
    assert bare.away
    assert (bare.bundle, bare.budget, bare.sent, bare.leases) == (None, None, None, ())


@pytest.mark.nightly
def test_long_tables_go_on_and_show_every_row_once(home: Path, seen: House) -> None:
    assert seen.sent is not None
    wanted = {"/": [one.lease for one in seen.leases], "/sent": [one.lease for one in seen.sent.registrations]}
    with visitor(home) as (client, token):
        client.get("/", params={"token": token})
        for path, leases in wanted.items():
            found: list[str] = []
            for first in range(0, len(leases), ROWS_AT_ONCE):
                text = client.get(path, params={"first": first}).text
                found += re.findall(r'<span class="code(?: quiet)?">([0-9a-f]{12})</span>(?:</a>)?</th>', text)
                assert (f"?first={first + ROWS_AT_ONCE}" in text) == (first + ROWS_AT_ONCE < len(leases))
            assert [one for one in found if one != "0" * 12] == [lease[:12] for lease in leases]


def test_the_parts_of_a_message_are_all_of_it(sent: Message) -> None:
    assert bytes.fromhex("".join(row.hex for row in sent.parts)) == sent.data
    assert hashlib.sha256(sent.data).hexdigest() == sent.sha256
    for one, other in pairwise(sent.parts):
        assert one.part.offset + one.part.length == other.part.offset


def test_every_word_of_counts_is_shown_once_with_its_own_cell(sent: Message) -> None:
    cells = 0
    for number, row in enumerate(sent.parts):
        found = [
            word
            for first in range(0, row.part.length // WORD_BYTES + 1, WORDS_AT_ONCE)
            for word in words(sent, number, first)
        ]
        if not row.part.field.startswith("cells of "):
            assert found == []
            continue
        assert "".join(word.hex for word in found) == row.hex
        assert len({word.cell for word in found}) == len(found) == row.part.length // WORD_BYTES
        assert all(sent.data[word.offset : word.offset + WORD_BYTES].hex() == word.hex for word in found)
        cells += len(found)
    assert cells == sent.plan.cells
    pairs = next(n for n, row in enumerate(sent.parts) if row.part.field == "cells of pairs")
    levels = {dimension.name: dimension.levels for dimension in sent.plan.dimensions}
    second = f"workload {levels['workload'][0][:12]}, context {levels['context'][1][:12]}"
    assert words(sent, pairs, 1)[0].cell == second
    assert words(sent, pairs, 10**6) == ()


def test_a_round_that_was_not_answered_has_no_message(home: Path) -> None:
    assert message(home, "00" * 16) is None


# ---- who may see it --------------------------------------------------------------------------------------------------


@contextmanager
def visitor(home: Path) -> Iterator[tuple[httpx.Client, str]]:
    with listening(home, "127.0.0.1", 0) as address:
        base, _, token = address.partition("/?token=")
        with httpx.Client(base_url=base, trust_env=False, timeout=PATIENCE_S) as client:
            yield client, token


def test_the_printed_address_opens_once_for_one_browser(home: Path) -> None:
    with visitor(home) as (client, token):
        assert client.get("/").status_code == 403
        assert client.get("/", params={"token": "0" * 64}).status_code == 403
        client.cookies.set("pharoah-tenant", token)
        assert client.get("/").status_code == 403  # the address's secret is not the browser's
        client.cookies.clear()
        opened_once = client.get("/", params={"token": token})
        assert (opened_once.status_code, opened_once.headers["location"]) == (303, "/")
        cookie = opened_once.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert token not in cookie
        assert client.get("/").status_code == 200
        again = client.get("/", params={"token": token})  # a browser that is let in stays so
        assert (again.status_code, again.headers["location"]) == (303, "/")
        assert "set-cookie" not in again.headers
        with httpx.Client(base_url=client.base_url, trust_env=False, timeout=PATIENCE_S) as other:
            assert other.get("/", params={"token": token}).status_code == 403
            assert other.get("/sent").status_code == 403
            other.cookies.set("pharoah-tenant", "0" * 64)
            assert other.get("/", params={"token": token}).status_code == 403


def test_before_the_exchange_no_secret_fits() -> None:
    key = Key("address", "browser")
    assert not key.fits("browser")
    assert key.exchange("browser") is None
    assert key.exchange("address") == "browser"
    assert key.exchange("address") is None
    assert key.fits("browser")
    assert not key.fits("address")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", ""])
def test_a_foreign_name_for_this_machine_is_not_served(home: Path, host: str) -> None:
    with visitor(home) as (client, token):
        assert client.get("/", params={"token": token}, headers={"host": host}).status_code == 421
        assert client.get("/", params={"token": token}, headers={"host": "localhost"}).status_code == 303


def test_the_page_takes_nothing_and_carries_its_rules(home: Path) -> None:
    with visitor(home) as (client, token):
        client.get("/", params={"token": token})
        for method in ("POST", "PUT", "DELETE"):
            assert client.request(method, "/").status_code == 405
        answer = client.get("/")
        assert answer.headers["content-security-policy"].startswith("default-src 'none';")
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "<script" not in answer.text


@pytest.mark.nightly
@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "::", ""])  # noqa: S104
def test_other_machines_are_refused(home: Path, host: str) -> None:
    with pytest.raises(NotOnThisMachine), listening(home, host, 0):
        pass
    result = CliRunner().invoke(app, ["page", "--home", str(home), "--host", host])
    assert result.exit_code == 2
    assert "127.0.0.1" in result.stderr


def test_a_taken_port_is_said(home: Path) -> None:
    with listening(home, "127.0.0.1", 0) as address:
        port = int(re.findall(r":(\d+)/", address)[0])
        with pytest.raises(PageNotServed, match=str(port)), listening(home, "127.0.0.1", port):
            pass


@pytest.mark.nightly
def test_what_cannot_be_shown_is_said(home: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(home, tmp_path / "home")
    with visitor(copy) as (client, token):
        client.get("/", params={"token": token})
        for path in ("/sent/00", "/sent/00/1", "/nothing"):
            assert client.get(path).status_code == 404
        (copy / "tenant.db").write_bytes(b"no database at all, but long enough to be looked at" * 100)
        for file in copy.glob("tenant.db-*"):
            file.unlink()
        answer = client.get("/")
        assert answer.status_code == 503
        assert StorageFailed.default_hint.split(",")[0] in answer.text


def test_the_message_can_be_taken_away_byte_for_byte(home: Path, sent: Message) -> None:
    with visitor(home) as (client, token):
        client.get("/", params={"token": token})
        answer = client.get(f"/sent/{sent.round_id}/bytes")
        assert answer.content == sent.data
        assert answer.headers["content-disposition"].startswith("attachment")
        assert client.get(f"/sent/{sent.round_id}/99").status_code == 404
        assert client.get(f"/sent/{sent.round_id}/1?first=-1").status_code == 422


def test_paths_are_those_of_the_newest_attempt_and_only_between_hosts(home: Path) -> None:
    with visitor(home) as (client, token):
        client.get("/", params={"token": token})
        assert client.get("/paths").text.count("/paths/lease-9") == 1
        text = client.get("/paths/lease-9").text
        assert client.get("/paths/lease").status_code == 404
    assert "rank 0 to rank 2" in text
    assert "mlx5_1:1" in text
    assert "rank 0 to rank 1<" not in text


def test_texts_of_logs_are_text_and_never_markup(home: Path) -> None:
    with visitor(home) as (client, token):
        client.get("/", params={"token": token})
        assert "lost its NVLink &lt;to GPU 5&gt;" in client.get("/attempts").text


def test_an_attempt_says_how_sure_its_diagnosis_is_and_what_it_is_like(home: Path, tmp_path: Path, seen: House) -> None:
    (attempt,) = seen.attempts
    copy = shutil.copytree(home, tmp_path / "home")
    with closing(open_database(copy / "tenant.db")) as connection:
        earlier = Attempts(connection).begin(attempt.unit, 1.0, number=7)
        Attempts(connection).explain(attempt.unit, earlier, attempt.cause)
        Attempts(connection).end(attempt.unit, earlier, AttemptState.SUCCEEDED, 2.0)  # so nothing is shown of it
        for sure in (Sureness(Basis.KERNEL_LOG, 0.25, 0.5, 9, 9), Sureness(Basis.KERNEL_LOG, 0.75, 0.9, 9, 9)):
            connection.execute("UPDATE incidents SET attempt = 7")
            Incidents(connection).keep(attempt.unit, attempt.attempt, ["NVRM: Xid (PCI:0000:07:00): 74"], sure)
    with visitor(copy) as (client, token):
        client.get("/", params={"token": token})
        text = client.get("/attempts").text
    assert "at least 75% sure, from the kernel log" in text
    assert f"like {attempt.unit} attempt 7: " in text
    assert "25%" not in text


def test_the_verb_prints_an_address_and_serves_until_it_is_told_to_end(home: Path) -> None:
    command = [sys.executable, "-m", "tenant_client", "page", "--home", str(home)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stderr is not None
        assert "valid once" in running.stderr.readline()
        address = running.stderr.readline().strip()
        with httpx.Client(trust_env=False, timeout=PATIENCE_S, follow_redirects=True) as client:
            assert "Last failures" in client.get(address).text
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as other:
            assert other.get(address).status_code == 403
        running.terminate()
        assert running.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("has_browser", [True, False])
def test_the_verb_opens_the_browser_where_there_is_one(home: Path, tmp_path: Path, *, has_browser: bool) -> None:
    told = tmp_path / "told"
    program = tmp_path / "browser"
    program.write_text(f"#!/bin/sh\nprintf %s \"$1\" > '{told}.part' && /bin/mv '{told}.part' '{told}'\n")
    program.chmod(0o700)
    none = {name: value for name, value in os.environ.items() if name not in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")}
    environment = {**none, "PATH": str(tmp_path)} | ({"BROWSER": str(program)} if has_browser else {})
    command = [sys.executable, "-m", "tenant_client", "page", "--open", "--home", str(home)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as running:
        assert running.stderr is not None
        running.stderr.readline()
        address = running.stderr.readline().strip()
        if has_browser:
            until(told.exists)
            assert told.read_text() == address
        with httpx.Client(trust_env=False, timeout=PATIENCE_S, follow_redirects=True) as client:
            assert "Last failures" in client.get(address).text
        running.terminate()
        assert running.wait(PATIENCE_S) == 0


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with browsers.chromium() as started:
        yield started


@contextmanager
def looked_at(
    browser: "Browser", home: Path, width: int = browsers.WIDE, scheme: browsers.Scheme = "light"
) -> Iterator[tuple[browsers.Watched, str]]:
    with listening(home, "127.0.0.1", 0) as address:
        base = address.partition("/?")[0]
        with browsers.watched(browser, base.removeprefix("http://"), width=width, scheme=scheme) as watched:
            watched.page.goto(address)
            yield watched, base


@pytest.mark.parametrize(("scheme", "width"), browsers.SCHEMES_AND_WIDTHS)
def test_every_page_is_whole_for_everybody(
    browser: "Browser", home: Path, sent: Message, scheme: browsers.Scheme, width: int
) -> None:
    with looked_at(browser, home, width, scheme) as (watched, base):
        page = watched.page
        assert page.url == f"{base}/"  # the token is gone from the address
        cells = next(n for n, row in enumerate(sent.parts) if row.part.field.startswith("cells of "))
        contribution = f"/sent/{sent.round_id}"
        paths = "/", "/attempts", "/expectations", "/paths", "/paths/lease-9", "/sent"
        for path in (*paths, contribution, f"{contribution}/{cells}"):
            page.goto(base + path)
            assert page.locator("h1").count() == 1
            assert browsers.overflow(page) <= 0, path
            assert browsers.barriers(page) == [], path
        assert (watched.errors, watched.elsewhere) == ([], [])


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_says_what_failed_why_and_what_to_do(
    browser: "Browser", home: Path, width: int, height: int
) -> None:
    with looked_at(browser, home, width) as (watched, base):
        page = watched.page
        page.set_viewport_size({"width": width, "height": height})
        failures = page.locator("table.ended").first
        assert "rank 3 lost its NVLink" in failures.inner_text()
        advice = failures.locator(".do").first
        assert "other nodes" in advice.inner_text()
        box = advice.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < height
        assert not advice.evaluate("element => element.scrollWidth > element.clientWidth")  # nothing of it is cut
        details = failures.locator("details").first
        assert not details.locator("ul").is_visible()
        details.locator("summary").click()
        assert "train.log:812" in details.locator("ul").inner_text()
        page.goto(base)
        order = page.locator("h1, h2").all_inner_texts()
        assert order[0] == "Last failures"
        assert next(n for n, text in enumerate(order) if "fit" in text) < order.index("Privacy budget")


SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x64 and 65x128)"
LONG_NAME = "pretrain-llama-7b-of-the-second-week-1"


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A home outside any federation: the newest job failed, and the one before, of a long name, succeeded."""
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts = Attempts(connection)
        for number, (job, state) in enumerate(
            ((LONG_NAME, AttemptState.SUCCEEDED), ("pyerr", AttemptState.SUCCEEDED), ("pyerr", AttemptState.FAILED))
        ):
            attempt = attempts.begin(job, 3600.0 * (NOW_H + number))
            attempts.name(job, "python err.py")
            Starts(connection).keep(job, attempt, Started(command=("python", "err.py")))
            attempts.end(job, attempt, state, 3600.0 * (NOW_H + number) + 60)
        sentence = f"runtime_error: rank 1: /runs/pyerr-2/output.log, line 23: {SHAPES}"
        attempts.explain("pyerr", 2, AttemptCause("runtime_error", 1, sentence=sentence))
    return tmp_path


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_cause_is_read_to_its_end_without_a_click_and_what_failed_comes_before_where(
    browser: "Browser", alone: Path, width: int, height: int
) -> None:
    with looked_at(browser, alone, width) as (watched, _):
        watched.page.set_viewport_size({"width": width, "height": height})
        cause = watched.page.locator("table.ended summary span").first
        assert cause.inner_text() == f"runtime_error: {SHAPES} — output.log, line 23, rank 1"
        assert not cause.evaluate("one => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight")


def test_on_a_phone_jobs_have_their_names_on_few_lines_and_their_states_in_the_window(
    browser: "Browser", alone: Path, home: Path
) -> None:
    for at in (alone, home):
        with looked_at(browser, at, 390) as (watched, _):
            jobs = watched.page.get_by_role("region", name="Jobs")
            for name in jobs.locator("tbody th").all()[:3]:
                assert (
                    name.evaluate(
                        "one => one.getClientRects()[0].height / parseFloat(getComputedStyle(one).lineHeight)"
                    )
                    < 4.5
                )
            state = jobs.locator("tbody td.state").first.bounding_box()
            assert state is not None
            assert state["x"] + state["width"] <= 390


def test_rows_have_the_names_that_verbs_take_and_those_of_jobs_lead_to_their_attempts(
    browser: "Browser", alone: Path
) -> None:
    with looked_at(browser, alone) as (watched, base):
        page = watched.page
        assert "err.py pyerr" in page.locator("table.ended tbody th").first.inner_text()
        jobs = page.get_by_role("region", name="Jobs")
        assert jobs.locator("thead th").all_inner_texts() == ["job", "state", "cause", "began"]  # no workload is known
        rows = [row.locator("th, td").all_inner_texts()[:3] for row in jobs.locator("tbody tr").all()]
        assert ["err.py pyerr", "failed", "runtime_error"] in rows
        assert [f"err.py {LONG_NAME}", "succeeded", "–"] in rows
        jobs.get_by_role("link", name="pyerr").click()
        assert page.url == f"{base}/attempts?job=pyerr"
        assert page.locator("h1").inner_text() == "2 attempts of pyerr"
        assert "pyerr, attempt 2: failed" in page.locator("table.ended ul").inner_text()  # without a click
        assert LONG_NAME not in page.locator("main").inner_text()
        assert browsers.barriers(page) == []
        page.goto(f"{base}/attempts")
        assert page.locator("h1").inner_text() == "3 attempts"


def test_what_runs_comes_before_checks_and_without_a_federation_no_round_is_named(
    browser: "Browser", tmp_path: Path
) -> None:
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts = Attempts(connection)
        attempts.begin("lease-1", 3600.0 * NOW_H)
        attempts.name("lease-1", "nightly-eval")
    with looked_at(browser, tmp_path) as (watched, _):
        text = watched.page.locator("main").inner_text()
    assert text.index("Running") < text.index("nightly-eval") < text.index("without a federation")
    assert "next round" not in text


@pytest.mark.nightly
def test_the_bytes_of_a_message_are_reached_by_keyboard_alone(browser: "Browser", home: Path, sent: Message) -> None:
    with looked_at(browser, home, 400) as (watched, base):
        page = watched.page
        at = ""
        for wanted in ("/sent", f"/sent/{sent.round_id}", rf"/sent/{sent.round_id}/\d+"):
            for _ in range(40):
                page.keyboard.press("Tab")
                at = page.evaluate("document.activeElement.getAttribute('href') || ''")
                if re.fullmatch(wanted, at):
                    break
            assert re.fullmatch(wanted, at)
            page.keyboard.press("Enter")
            page.wait_for_url(base + at)
        number = int(page.url.rpartition("/")[2])
        shown = page.locator("tbody td.code").all_inner_texts()
        assert shown == [word.hex for word in words(sent, number, 0)]
