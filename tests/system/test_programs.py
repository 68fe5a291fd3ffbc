"""Real programs: a provider, three trustees and four tenants as processes, of which each is killed, cut off or missing.

One federation holds a week after the other; each test takes the next week and leaves everything running. Where network
namespaces can be made, tenant-1 lives in one of its own, behind a link that can be cut.
"""

import json
import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.fleet.release import Release
from provider_server.program.operations.admin import HeldRound
from provider_server.rounds.store.store import Store
from simulation.run import processes
from simulation.run.processes import (
    WEEKS,
    Places,
    ProgramFailed,
    founded,
    happen,
    last_week,
    program,
    provider,
    round_of,
    run,
    wait_until_ready,
)
from tests import needs
from tests.support import schemas
from tests.support.intruder import NOBODY, Request, can_be_others, doors, say
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.xdist_group("programs"), pytest.mark.nightly]

# Of this process alone: another run of the tests on this machine has a namespace, a link and a network of its own.
NAMESPACE, LINK = f"pharoah-{os.getpid()}", f"ph{os.getpid()}"
OUTSIDE, INSIDE = (f"10.231.{os.getpid() // 64 % 256}.{os.getpid() % 64 * 4 + host}" for host in (1, 2))
EVERYBODY = 4


@dataclass
class Running:
    """The programs of one federation, which may be killed and started again."""

    places: Places
    stack: ExitStack
    programs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    weeks: Iterator[int] = field(default_factory=lambda: count(last_week() // HOURS_PER_WEEK + 1 - WEEKS))

    def start(self, *names: str) -> None:
        """Starts programs and waits until they do their work."""
        for name in names:
            self.programs[name] = self.stack.enter_context(program(self.places, name))
        for name in names:
            wait_until_ready(self.places, name, self.programs[name])

    def kill(self, name: str) -> None:
        """Kills a program with SIGKILL."""
        self.programs[name].send_signal(signal.SIGKILL)
        self.programs[name].wait()

    def next_week(self) -> int:
        """Something happens in the next week; where it begins."""
        start_hour = next(self.weeks) * HOURS_PER_WEEK
        happen(self.places, start_hour)
        return start_hour

    def hold(self, start_hour: int) -> HeldRound:
        """Holds a round over a week and returns what came of it."""
        return round_of(self.places, start_hour)

    def release(self, start_hour: int) -> Release | None:
        """The release of a week, if there is one."""
        with closing(Store(self.places.provider / "provider.db", create=False)) as store:
            releases = store.releases()
        made = [one for one in releases if one.plan.start_hour == start_hour]
        assert len(made) <= 1
        return made[0] if made else None

    def charges(self, tenant: int, start_hour: int) -> int:
        """How often a tenant's ledger charges a week, but for what was given back."""
        with closing(sqlite3.connect(self.places.tenant(tenant) / "tenant.db")) as connection:
            query = (
                "SELECT count(*) FROM charges WHERE start_h <= ? AND end_h > ?"
                " AND round_id NOT IN (SELECT round_id FROM given_back)"
            )
            return int(connection.execute(query, (start_hour, start_hour)).fetchone()[0])


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with ExitStack() as stack:
        host, wrapped = stack.enter_context(namespace())
        places = Places(tmp_path_factory.mktemp("federation"), EVERYBODY, 3, host, wrapped)
        stack.enter_context(founded(places))
        running = Running(places, stack)
        running.start(*(f"trustee-{n}" for n in (1, 2, 3)), "provider", *(f"tenant-{n}" for n in range(1, 5)))
        yield running


@contextmanager
def namespace() -> Iterator[tuple[str, dict[str, list[str]]]]:
    """The address to listen at, and how to start tenant-1 so that it is a host of its own; else the loopback."""
    steps = [
        ("netns", "add", NAMESPACE),
        ("link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", NAMESPACE),
        ("addr", "add", f"{OUTSIDE}/30", "dev", LINK),
        ("link", "set", LINK, "up"),
        ("-n", NAMESPACE, "addr", "add", f"{INSIDE}/30", "dev", "eth0"),
        ("-n", NAMESPACE, "link", "set", "eth0", "up"),
    ]
    may = os.geteuid() == 0 and needs.find("ip") is not None
    try:
        if may and all(ip(*step) for step in steps):
            yield OUTSIDE, {"tenant-1": ["ip", "netns", "exec", NAMESPACE]}
        else:
            yield "127.0.0.1", {}
    finally:
        if may:
            ip("link", "del", LINK)
            ip("netns", "del", NAMESPACE)


def ip(*arguments: str) -> bool:
    """Whether a command of iproute2 succeeded."""
    return subprocess.run(["/usr/bin/env", "ip", *arguments], capture_output=True, check=False).returncode == 0


@contextmanager
def while_it_runs(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Runs `work` in a thread; what it returned or raised is in the list when the context has ended."""
    came_of_it: list[Any] = []

    def run() -> None:
        try:
            came_of_it.append(work())
        except ProgramFailed as error:
            came_of_it.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield came_of_it
    finally:
        thread.join(processes.VERB_S + PATIENCE_S)
        assert not thread.is_alive()


def said(running: Running, name: str, text: str) -> bool:
    """Whether a text stands in a program's log."""
    return text in (running.places.root / f"{name}.log").read_text(errors="replace")


def test_a_week_is_held_once_and_everybody_counts(federation: Running) -> None:
    start_hour = federation.next_week()
    told = federation.hold(start_hour)
    schemas.held("pharoah-provider rounds hold", json.dumps([told]))
    assert (told["contributors"], told["suspects"]) == (EVERYBODY, 0)
    assert 0 <= told["position"] < told["windows"]
    assert [federation.charges(tenant, start_hour) for tenant in range(1, 5)] == [1] * 4
    made = federation.release(start_hour)
    assert made is not None
    assert str(made.plan.round_id) == told["round_id"]
    *_, shown = json.loads(provider(federation.places, "rounds releases", "--json"))
    assert shown["round_id"] == told["round_id"]
    assert shown["epsilon"] == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(ProgramFailed, match="WeekHeld"):
        federation.hold(start_hour)


def test_a_lease_becomes_a_claim_that_holds_by_the_providers_keys(federation: Running, tmp_path: Path) -> None:
    """Granted by the real provider, anchored by real trustees, verified by the file that is published."""
    places, home = federation.places, str(federation.places.tenant(1))
    claim, keys = tmp_path / "claim.json", tmp_path / "keys.json"
    lease = json.loads(run("tenant_client", "jobs", "--home", home, "--json"))["leases"][0]["lease"]
    told = json.loads(run("tenant_client", "evidence", lease, "--home", home, "--out", str(claim), "--json"))
    assert schemas.held("pharoah-tenant privacy evidence", json.dumps(told))["refused"] == ""
    schemas.held("pharoah-provider trustees keys", provider(places, "trustees keys", "--out", str(keys), "--json"))
    said = run("pharoah_claims.verify_claim", str(claim), str(keys)).splitlines()
    assert said[0] == "verified"
    assert any("the provider granted the lease" in line for line in said)
    assert said[1].endswith(f"lease {lease}")


def test_a_tenant_that_is_killed_before_it_answers_comes_back_and_counts(federation: Running) -> None:
    start_hour = federation.next_week()
    log = federation.places.root / "tenant-2.log"
    before = log.read_text().count('"verb": "registrations"')
    with while_it_runs(lambda: federation.hold(start_hour)) as came_of_it:
        until(lambda: log.read_text().count('"verb": "registrations"') > before, "tenant-2 has registered")
        federation.kill("tenant-2")
        federation.start("tenant-2")
    (told,) = came_of_it
    assert told["contributors"] in (3, EVERYBODY)  # Flower may have taken the killed node for gone
    assert federation.charges(2, start_hour) == (1 if told["contributors"] == EVERYBODY else 0)
    assert [federation.charges(tenant, start_hour) for tenant in (1, 3, 4)] == [1] * 3


def test_a_trustee_that_is_killed_delays_the_round_and_loses_nothing(federation: Running) -> None:
    start_hour = federation.next_week()
    federation.kill("trustee-3")
    with while_it_runs(lambda: federation.hold(start_hour)) as came_of_it:
        pass
    assert "Unreachable" in str(came_of_it[0])
    assert federation.release(start_hour) is None
    federation.start("trustee-3")
    made = until(lambda: federation.release(start_hour), "the round went on by itself")
    assert made.contributors >= 3
    assert [federation.charges(tenant, start_hour) for tenant in (1, 3, 4)] == [1] * 3


def test_a_provider_that_is_killed_goes_on_with_the_same_round(federation: Running) -> None:
    start_hour = federation.next_week()
    log = federation.places.root / "tenant-1.log"
    before = log.read_text().count('"verb": "contribution"')
    with while_it_runs(lambda: federation.hold(start_hour)) as came_of_it:
        until(lambda: log.read_text().count('"verb": "contribution"') > before, "tenant-1 has contributed")
        federation.kill("provider")
    assert isinstance(came_of_it[0], ProgramFailed) or federation.release(start_hour)
    federation.start("provider")
    made = until(lambda: federation.release(start_hour), "the round went on by itself")
    assert made.contributors >= 3
    assert [federation.charges(tenant, start_hour) for tenant in (1, 3, 4)] == [1] * 3


def test_a_tenant_that_is_cut_off_is_left_out_and_carried_over(federation: Running) -> None:
    if not federation.places.wrapped:
        needs.program("ip")
        pytest.skip("network namespaces cannot be made here: that needs root and a kernel that has them")
    first = federation.next_week()
    federation.kill("tenant-1")  # cut off from the start; its node is still registered
    assert ip("link", "set", LINK, "down")
    federation.programs["tenant-1"] = federation.stack.enter_context(program(federation.places, "tenant-1"))
    alone = federation.hold(first)
    assert alone["contributors"] == 3
    assert federation.charges(1, first) == 0
    assert ip("link", "set", LINK, "up")
    wait_until_ready(federation.places, "tenant-1", federation.programs["tenant-1"])
    second = federation.next_week()
    told = federation.hold(second)
    assert told["contributors"] == EVERYBODY
    assert told["position"] > alone["position"]
    assert federation.charges(1, first) == federation.charges(1, second) == 1


@pytest.mark.skipif(not can_be_others(), reason="only root can act as another account")
def test_another_account_of_the_providers_machine_reads_metrics_and_changes_nothing(federation: Running) -> None:
    at = doors(federation.programs["provider"].pid)
    changing = ["/v1/control/list-nodes", "/v1/control/start-run", "/pharoah/round", "/pharoah/give-up"]
    asked: list[Request] = [("POST", path, b"") for path in changing]
    answers = say(at, [*asked, ("GET", "/pharoah/metrics", b"")], NOBODY, "localhost", "rebound.example")
    assert {(answer.path, answer.host) for answer in answers if answer.was_obeyed} == {
        ("/pharoah/metrics", "localhost")
    }
    assert len(at) == 4  # tenants, online, metrics, and the operator's socket


def test_the_programs_tell_no_secret_and_end_when_told(federation: Running) -> None:
    secrets = [
        path.read_bytes()
        for path in Path(federation.places.root).rglob("*.key")
        if path.suffix == ".key" and path.stat().st_size == 32
    ]
    assert len(secrets) >= 4 * 2 + 3 * 3 + 2
    logs = b"".join(path.read_bytes() for path in federation.places.root.glob("*.log"))
    assert logs
    for secret in secrets:
        assert secret not in logs
        assert secret.hex().encode() not in logs
    for name, process in federation.programs.items():
        process.terminate()
        assert process.wait(PATIENCE_S) in (0, -signal.SIGTERM), name
    federation.start(*federation.programs)
