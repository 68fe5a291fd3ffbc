"""Nodes that a job had better leave out: which are named and why, what the list tells of outcomes, what it fails on."""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crypto.ids import LeaseId, SignatureBytes, Token
from federation.base.clock import SECONDS_PER_HOUR, now_hour
from federation.base.pinned_directory import pin
from federation.protocol.bundle import Bundle, MismatchEntry, PairJudgement
from federation.protocol.service_messages import Action, Hint, HintState, Suspicion
from tenant_client.doctor.advice.exclude import Excluded, at_most
from tenant_client.doctor.advice.hints import STANDS_H, HintLog
from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
from tenant_client.doctor.records.bundle_log import BundleLog
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal, Unit
from tenant_client.doctor.run.run_directory import node_list
from tenant_client.program.cli import app
from tests.support.factories import keys, labels, lease_id
from tests.support.schemas import held

WORKLOAD = labels(0, 0)
CONTEXTS = [labels(0, context) for context in range(4)]
BAD, DOUBTED, SCRIPTS, GOOD = (
    {**WORKLOAD, **{name: one[name] for name in ("context", "context_level")}} for one in CONTEXTS
)
JUDGEMENTS = (
    (BAD, PairJudgement.WORSE, 0.99),
    (DOUBTED, PairJudgement.SUSPECTED, 0.6),
    (SCRIPTS, PairJudgement.CONFOUNDED, 0.9),
    (GOOD, PairJudgement.NOT_WORSE, 0.01),
)
LEASES = [lease_id(0, number) for number in range(6)]


def entry(of: dict[str, str], judgement: PairJudgement, probability: float) -> MismatchEntry:
    workload, context = (Token.fromhex(of[name]) for name in ("subarchetype", "context"))
    return MismatchEntry(workload, context, probability, 8.0, 4.0, 16.0, 9.0, judgement, ())


def ran(home: Path, lease: LeaseId, start_h: float, of: dict[str, str], nodes: str) -> None:
    """Journals a lease of the job `train` that ran on these nodes."""
    with closing(open_database(home / "tenant.db")) as connection:
        Journal(connection).add([Unit(str(lease), start_h, of)], [])
        Journal(connection).place(str(lease), nodes)
        Attempts(connection).name(str(lease), "train")


def failed(home: Path, lease: LeaseId, reason: str, host: str = "", age_h: float = 1.0) -> None:
    ended_s = (now_hour() - age_h) * SECONDS_PER_HOUR
    with closing(open_database(home / "tenant.db")) as connection:
        attempts = Attempts(connection)
        number = attempts.begin(str(lease), ended_s - 60)
        attempts.end(str(lease), number, AttemptState.FAILED, ended_s)
        attempts.explain(str(lease), number, AttemptCause(reason, host=host))
        attempts.count(str(lease), number)


def hinted(home: Path, lease: LeaseId, number: int, state: HintState = HintState.RAISED, age_h: float = 1.0) -> None:
    said = (Suspicion.MEMORY, 8.0, 4.0, 16.0, 0.1, 24.0, Action.MOVE, 1)
    with closing(open_database(home / "tenant.db")) as connection:
        hint = Hint(number, now_hour() - age_h, lease, state, *said)
        HintLog(connection).take(hint, 0.0, SignatureBytes(bytes(64)))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose job `train` ran in four contexts, of which the bundle calls one worse and suspects another."""
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        pin(connection, [keys().founding])
        found = tuple(entry(*judged) for judged in JUDGEMENTS)
        BundleLog(connection).keep(0, keys().provider.sign(Bundle(0, 0, 0, (), found, (), None)))
    for number, (of, nodes) in enumerate([(GOOD, "g[1-2]"), (DOUBTED, "d1"), (BAD, "b[1-2]"), (SCRIPTS, "s1")]):
        ran(tmp_path, LEASES[number], 1.0 + number, of, nodes)
    return tmp_path


def excluded(home: Path, *words: str) -> tuple[str, str]:
    """What the verb prints on stdout and on stderr; it always ends with 0."""
    done = CliRunner().invoke(app, ["check", "exclude", "--home", str(home), "--job", "train", *words])
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_contexts_that_the_bundle_calls_worse_or_suspects_are_left_out(home: Path) -> None:
    said, why = excluded(home)
    assert said == "b1,b2,d1\n"  # the surest first; neither those that fit nor those where scripts fail
    assert why.splitlines()[0].startswith("pharoah-tenant: leaves out b1,b2: mismatch: fails 8.0 times as often")
    assert why.splitlines()[1].startswith("pharoah-tenant: leaves out d1: warning: fails")
    view = held("pharoah-tenant check exclude", excluded(home, "--json")[0])
    assert (view["like"], [one["node"] for one in view["nodes"]]) == (str(LEASES[3]), ["b1", "b2", "d1"])


def test_a_node_has_the_context_of_the_newest_lease_on_it(home: Path) -> None:
    ran(home, LEASES[4], 9.0, GOOD, "b1")
    ran(home, LEASES[5], 10.0, BAD, "g2")
    assert excluded(home)[0] == "g2,b2,d1\n"
    ran(home, lease_id(1, 0), 11.0, {}, "g[1-2]")  # it has no tokens yet
    assert excluded(home)[0] == "g2,b2,d1\n"


def test_nodes_of_a_lease_with_an_open_hint_are_left_out_small_leases_first(home: Path) -> None:
    ran(home, LEASES[4], 9.0, GOOD, "h1")
    hinted(home, LEASES[0], 1)
    hinted(home, LEASES[4], 2)
    said, why = excluded(home)
    assert said == "b1,b2,d1,h1,g1,g2\n"
    assert "leaves out h1: hint 2: its worst node has 8 times the usual hazard" in why
    hinted(home, LEASES[4], 3, HintState.CLEARED)
    assert excluded(home)[0] == "b1,b2,d1,g1,g2\n"


def test_an_old_hint_counts_no_more(home: Path) -> None:
    hinted(home, LEASES[0], 1, age_h=STANDS_H + 1)
    assert excluded(home)[0] == "b1,b2,d1\n"


def outcomes(home: Path) -> None:
    """A failure that a cause places, one that its lease places, and three that no node is to blame for."""
    failed(home, LEASES[0], "nvlink_error", "g2.cluster.example")
    failed(home, LEASES[4], "nvlink_error")
    failed(home, LEASES[5], "nvlink_error")
    failed(home, LEASES[5], "key_error", "x1")
    failed(home, LEASES[5], "nvlink_error", "x2", age_h=STANDS_H + 1)


def test_the_default_list_is_alike_under_two_histories(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(home, LEASES[4], 8.0, GOOD, "h1")
    ran(home, LEASES[5], 9.0, GOOD, "x[1-4]")
    before = excluded(home), excluded(home, "--json"), excluded(home, "--most", "2")
    outcomes(home)
    assert (excluded(home), excluded(home, "--json"), excluded(home, "--most", "2")) == before
    monkeypatch.setenv("PHAROAH_DECISIONS_OWN_HISTORY", "true")  # what the default does not tell
    said, why = excluded(home)
    assert sorted(said.strip().split(",")[:2]) == ["g2", "h1"]
    assert said.endswith(",b1,b2,d1\n")
    assert "an own job failed there: nvlink_error" in why


def test_one_switch_turns_it_off(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAROAH_GATE", "off")
    assert excluded(home) == ("", "")


@pytest.mark.parametrize("broken", ["no journal", "damaged database", "another job", "no workload", "unknown lease"])
def test_whatever_is_missing_it_names_no_nodes_and_says_so(
    home: Path, capfd: pytest.CaptureFixture[str], broken: str
) -> None:
    if broken == "no journal":
        (home / "tenant.db").unlink()
    if broken == "damaged database":
        (home / "tenant.db").write_bytes(b"SQLite format 3\0" + bytes(4096))
    words = {"another job": ["--job", "another"], "no workload": ["--job", ""], "unknown lease": ["--like", "none"]}
    assert excluded(home, *words.get(broken, []))[0] == ""
    assert "pharoah-tenant: warning: no nodes are left out: " in capfd.readouterr().err
    assert (home / "tenant.db").exists() == (broken != "no journal")


def test_without_a_bundle_only_hints_count(home: Path) -> None:
    with closing(open_database(home / "tenant.db")) as connection:
        connection.execute("DELETE FROM bundles")
    assert excluded(home) == ("", "")
    hinted(home, LEASES[1], 1)
    assert excluded(home)[0] == "d1\n"


def test_a_name_that_a_shell_would_read_is_left_out(home: Path) -> None:
    ran(home, LEASES[4], 9.0, BAD, "$(id),a*,--help,ok-1,b c,é")
    assert excluded(home)[0] == "b1,b2,ok-1,d1\n"


def test_each_node_stands_once_and_with_its_first_reason() -> None:
    found: Iterable[Excluded] = (Excluded(node, why) for node, why in (("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")))
    assert at_most(found, 2) == [Excluded("a", "1"), Excluded("b", "2")]


def test_the_nodes_are_those_of_the_component_of_a_heterogeneous_job() -> None:
    env = {"SLURM_JOB_ID": "81", "SLURM_JOB_NODELIST": "n[1-3]"}
    assert node_list(env) == "n[1-3]"
    groups = {"SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-3]", "SLURM_JOB_NODELIST_HET_GROUP_1": "n4"}
    assert node_list({**env, **groups, "SLURM_HET_SIZE": "2", "SLURMD_NODENAME": "n4"}) == "n4"
    assert node_list({}) == ""
    pod = {"POD_UID": "u", "NODE_NAME": "gpu-07"}
    assert node_list(pod) == "gpu-07"
    assert node_list(pod | {"JOB_UID": "j", "JOB_COMPLETION_INDEX": "0"}) == ""  # it knows its own node alone
