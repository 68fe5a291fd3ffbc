"""The verbs of `pharoah-provider` that need no running server: what they make, print and refuse."""

import json
import re
import shutil
import sqlite3
import stat
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import provider_server.program.cli
import tenant_client.program.cli
import trustee.cli
from crypto.ids import LeaseId
from federation.base.plugin_verbs import DISTRIBUTIONS
from federation.base.settings import load
from federation.protocol.invitation import accept
from provider_server.program.cli import RENAMED
from provider_server.rounds.settings import ProviderSettings
from tests.support import schemas
from tests.support.federations import Grounds

CLI = {"provider": provider_server.program.cli.app, "tenant": tenant_client.program.cli.app, "trustee": trustee.cli.app}
LINE = {"lease": "0a" * 16, "nodes": 2, "start_h": 1.0, "end_h": 30.0, "context": "rack 1", "level": 1}


def call(program: str, *words: object) -> Result:
    result = CliRunner().invoke(CLI[program], [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(program: str, *words: object, form: str = "") -> Any:
    result = call(program, *words, "--json")
    assert result.exit_code == 0, result.stderr
    form = f"pharoah-{program} {form}" if form else schemas.form_of(f"pharoah-{program}", words)
    return schemas.held(form, result.stdout)


@pytest.fixture(scope="module")
def committee(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three trustees made."""
    root = tmp_path_factory.mktemp("trustees")
    homes = [root / str(number) for number in range(3)]
    for home in homes:
        told("trustee", "init", "--home", home, "--address", "localhost:7100")
    cards, dealings = [home / "trustee.card" for home in homes], [root / f"{home.name}.dealing" for home in homes]
    for home, dealing in zip(homes, dealings, strict=True):
        told("trustee", "ceremony", "deal", *cards, "--home", home, "--threshold", 2, "--out", dealing)
    for home in homes:
        told("trustee", "ceremony", "combine", *cards, *dealings, "--home", home)
    return homes[0] / "committee"


@pytest.fixture
def home(committee: Path, tmp_path: Path) -> Path:
    made = tmp_path / "provider"
    assert told("provider", "init", "--home", made, "--committee", committee)[0]["trustees"] == 3
    return made


@pytest.fixture
def card(tmp_path: Path) -> Path:
    told("tenant", "join", "--home", tmp_path / "tenant", "--card", tmp_path / "tenant.card")
    return tmp_path / "tenant.card"


def enrolled(home: Path, card: Path) -> dict[str, Any]:
    row: dict[str, Any] = told(
        "provider", "tenants", "enrol", "--home", home, "--out", home.parent / "invitation", card
    )[0]
    return row


def lines(home: Path, *changes: dict[str, object], tenant: str) -> Path:
    file = home.parent / "leases.jsonl"
    file.write_text("".join(json.dumps({**LINE, "tenant": tenant, **change}) + "\n" for change in changes))
    return file


def leases(home: Path) -> int:
    with closing(sqlite3.connect(home / "provider.db")) as database:
        (count,) = database.execute("SELECT count(*) FROM leases").fetchone()
    return int(count)


# ---- init and enrol --------------------------------------------------------------------------------------------------


def test_init_makes_a_home_that_only_its_owner_reads(home: Path) -> None:
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    for name in ("signing.key", "context.key", "tls.key", "provider.db"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600, name
    assert load(ProviderSettings, home / "provider.toml", {}) == ProviderSettings()


def test_init_overwrites_nothing(home: Path, committee: Path) -> None:
    before = {file.name: file.read_bytes() for file in home.iterdir()}
    again = call("provider", "init", "--home", home, "--committee", committee)
    assert again.exit_code == 2
    assert "exists already; nothing was changed" in again.stderr
    assert {file.name: file.read_bytes() for file in home.iterdir()} == before


def test_init_takes_no_database_of_another_federation(home: Path, committee: Path, tmp_path: Path) -> None:
    database = f"sqlite:///{home / 'provider.db'}"
    other = call("provider", "init", "--home", tmp_path / "b", "--committee", committee, "--database", database)
    assert other.exit_code == 2
    assert "already contains the directory of a federation" in other.stderr


def test_init_refuses_what_is_no_committee(card: Path, tmp_path: Path) -> None:
    refused = call("provider", "init", "--home", tmp_path / "b", "--committee", card)
    assert refused.exit_code == 2
    assert "hint:" in refused.stderr
    assert not (tmp_path / "b").exists()


def test_a_tenant_can_have_its_card_again(home: Path, card: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.card"
    refused = call("tenant", "join", "--home", tmp_path / "tenant", "--card", tmp_path / "nowhere" / "card")
    assert refused.exit_code == 2
    assert "hint: pass another file with --card" in refused.stderr
    told("tenant", "join", "--home", tmp_path / "tenant", "--card", again)
    assert again.read_bytes() == card.read_bytes()
    (tmp_path / "tenant" / "node.key").write_bytes(b"no key")
    refused = call("tenant", "join", "--home", tmp_path / "tenant", "--card", again)
    assert refused.exit_code == 2
    assert "not a private key in PEM form" in refused.stderr


def test_enrolling_twice_is_harmless(home: Path, card: Path) -> None:
    first, again = enrolled(home, card), enrolled(home, card)
    assert (first["new"], again["new"]) == (True, False)
    assert first["head"] == again["head"]
    _, chain = accept((home.parent / "invitation").read_bytes())
    assert [str(member.tenant) for member in chain.directory.members] == [first["tenant"]]


def test_tenant_and_trustee_pin_one_head_and_the_tenant_is_revoked(
    home: Path, card: Path, committee: Path, tmp_path: Path
) -> None:
    tenant, invitation = enrolled(home, card)["tenant"], home.parent / "invitation"
    joined = told("tenant", "join", invitation, "--home", tmp_path / "tenant", form="join INVITATION")
    shutil.copytree(committee.parent, tmp_path / "trustee")
    homes = {home: ["provider"], tmp_path / "tenant": ["tenant", "policy"], tmp_path / "trustee": ["trustee"]}
    for settings in (place / f"{name}.toml" for place, names in homes.items() for name in names):
        first = settings.read_text(encoding="utf-8").splitlines()[0].removeprefix("#:schema ")
        schema = json.loads((settings.parent / first).read_text(encoding="utf-8"))
        assert set(tomllib.loads(settings.read_text(encoding="utf-8"))) <= set(schema["properties"])
    pinned = told("trustee", "join", invitation, "--home", tmp_path / "trustee")
    assert (joined["head"], joined["members"]) == (pinned["fingerprint"], pinned["members"])
    assert told("provider", "tenants", "revoke", tenant, "--home", home) == [{"tenant": tenant}]


def test_an_invitation_can_be_written_without_a_new_tenant(home: Path, card: Path) -> None:
    head = enrolled(home, card)["head"]
    assert told("provider", "tenants", "enrol", "--home", home, "--out", home.parent / "another") == []
    assert str(accept((home.parent / "another").read_bytes())[1].directory.head) == head


def test_a_tenant_leaves_by_its_id_and_only_once(home: Path, card: Path) -> None:
    tenant, out = enrolled(home, card)["tenant"], home.parent / "without"
    assert told("provider", "tenants", "enrol", "--home", home, "--out", out, "--remove", tenant) == []
    assert accept(out.read_bytes())[1].directory.members == ()
    for stranger in (tenant, "00", "tenant"):
        refused = call(
            "provider", "tenants", "enrol", "--home", home, "--out", home.parent / "no", "--remove", stranger
        )
        assert refused.exit_code == 2
        assert "error:" in refused.stderr
    assert not (home.parent / "no").exists()


def test_tenants_have_names_which_are_taken_in_place_of_ids(home: Path, card: Path, tmp_path: Path) -> None:
    told("tenant", "join", "--home", tmp_path / "b", "--card", tmp_path / "b.card")
    out, other = tmp_path / "invitation", tmp_path / "b.card"
    both = told(
        "provider", "tenants", "enrol", "--home", home, "--out", out, card, other, "--name", "acme", "--name", "b"
    )
    assert [row["name"] for row in both] == ["acme", "b"]
    taken = call("provider", "tenants", "enrol", "--home", home, "--out", out, card, "--name", "b")
    assert (taken.exit_code, "is called 'b' already" in taken.stderr) == (2, True)
    assert call("provider", "tenants", "enrol", "--home", home, "--out", out, card, other, "--name", "b").exit_code == 2
    assert told("provider", "tenants", "revoke", "acme", "--home", home) == [{"tenant": both[0]["tenant"]}]
    assert told("provider", "tenants", "revoke", both[1]["tenant"][:6], "--home", home) == [
        {"tenant": both[1]["tenant"]}
    ]
    nobody = call("provider", "tenants", "revoke", "", "--home", home)
    assert (nobody.exit_code, "0 tenants found for '', not one" in nobody.stderr) == (2, True)
    left = call("provider", "tenants", "enrol", "--home", home, "--out", out, "--remove", "acme")
    assert f"acme ({both[0]['tenant']}) has left" in left.stderr
    assert "the next round lacks tenants enrolled for cohort_minimum: 1 of 10" in left.stderr
    rows = told("provider", "tenants", "list", "--home", home)
    assert [(row["name"], row["left"]) for row in rows] == [("b", False), ("acme", True)]


def test_a_pilot_begins_and_ends_by_one_command(home: Path) -> None:
    begun = told("provider", "rounds", "pilot", "--home", home)[0]
    assert begun == {"pilot": True, "owners_minimum": 3, "cohort_minimum": 3}
    said = call("provider", "rounds", "pilot", "--home", home).stderr
    assert "by default 5 and 10" in said
    assert "a job pays epsilon in each week" in said
    ended = told("provider", "rounds", "pilot", "--end", "--home", home)[0]
    assert ended == {"pilot": False, "owners_minimum": 5, "cohort_minimum": 10}
    assert load(ProviderSettings, home / "provider.toml", {}) == ProviderSettings()


def test_a_bad_card_enrols_nobody(home: Path, card: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.card"
    whole = card.read_bytes()
    bad.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused = call("provider", "tenants", "enrol", "--home", home, "--out", tmp_path / "invitation", card, bad)
    assert refused.exit_code == 2
    assert not (tmp_path / "invitation").exists()
    assert enrolled(home, card)["new"]


def test_an_invitation_that_cannot_be_written_says_so(home: Path, card: Path, tmp_path: Path) -> None:
    refused = call("provider", "tenants", "enrol", "--home", home, "--out", tmp_path / "no" / "such", card)
    assert (refused.exit_code, "run `tenants enrol` again" in refused.stderr) == (2, True)
    assert not enrolled(home, card)["new"]


# ---- what is missing or changed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"), [("[plan]\nweeks_per_epoch = 4\n", "weeks_per_epoch"), ("[plan]\nepsilom = 1\n", "epsilom")]
)
def test_settings_that_cannot_be_are_named(text: str, named: str, home: Path, card: Path) -> None:
    (home / "provider.toml").write_text(text)
    for words in (["serve"], ["tenants", "enrol", "--out", home.parent / "i", card]):
        refused = call("provider", *words, "--home", home)
        assert (refused.exit_code, named in refused.stderr, "hint:" in refused.stderr) == (2, True, True)


def test_a_lost_key_is_named(home: Path) -> None:
    (home / "signing.key").unlink()
    refused = call("provider", "serve", "--home", home)
    assert refused.exit_code == 2
    assert "signing.key" in refused.stderr


def test_an_empty_store_is_no_federation(home: Path, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'empty.db'}"
    with closing(sqlite3.connect(home / "provider.db")) as full, closing(sqlite3.connect(tmp_path / "empty.db")) as one:
        full.backup(one)
        one.execute("DROP TRIGGER IF EXISTS directory_stays")
        for (name,) in one.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            one.execute(f"DROP TRIGGER {name}")
        one.execute("DELETE FROM directory")
        one.commit()
    refused = call("provider", "serve", "--home", home, "--database", database)
    assert (refused.exit_code, "pharoah-provider init" in refused.stderr) == (2, True)


def test_log_lines_have_two_forms(home: Path) -> None:
    refused = call("provider", "serve", "--home", home, "--log-format", "xml")
    assert (refused.exit_code, "json" in refused.stderr) == (2, True)


# ---- lease -----------------------------------------------------------------------------------------------------------


def test_leases_are_recorded(home: Path, card: Path) -> None:
    file = lines(home, {}, {"lease": "0b" * 16, "start_h": 2, "end_h": 3}, tenant=enrolled(home, card)["tenant"])
    assert told("provider", "leases", "record", file, "--home", home)[0]["leases"] == 2
    assert leases(home) == 2


@pytest.mark.parametrize(
    "bad",
    [
        {"lease": "0a"},
        {"lease": "xx" * 16},
        {"lease": LINE["lease"]},
        {"tenant": "00" * 32},
        {"nodes": 0},
        {"nodes": 1.5},
        {"start_h": -1.0},
        {"end_h": 1.0},
        {"end_h": None},
        {"level": -1},
        {"rack": "unknown"},
        {"context": 3},
        {"context": ""},
        {"node_names": ["n1"]},
        {"nodes": 0, "context": "", "node_names": ["n1"]},
    ],
)
def test_a_bad_line_is_named_and_nothing_is_recorded(bad: dict[str, object], home: Path, card: Path) -> None:
    changes: list[dict[str, object]] = [{}, {"lease": "0b" * 16, **bad}, {"lease": "0c" * 16}]
    refused = call(
        "provider", "leases", "record", lines(home, *changes, tenant=enrolled(home, card)["tenant"]), "--home", home
    )
    assert refused.exit_code == 2
    assert "leases.jsonl, line 2:" in refused.stderr
    assert "nothing was recorded" in refused.stderr
    assert leases(home) == 0


def test_a_lease_is_recorded_once(home: Path, card: Path) -> None:
    tenant = enrolled(home, card)["tenant"]
    told("provider", "leases", "record", lines(home, {}, tenant=tenant), "--home", home)
    refused = call("provider", "leases", "record", lines(home, {"lease": "0b" * 16}, {}, tenant=tenant), "--home", home)
    assert (refused.exit_code, "a lease is recorded already" in refused.stderr) == (2, True)
    assert leases(home) == 1
    assert str(LeaseId(bytes.fromhex(str(LINE["lease"])))) not in refused.stdout


# ---- round, release, ledger ------------------------------------------------------------------------------------------


def test_a_round_needs_a_running_server(home: Path) -> None:
    for words in (["rounds", "hold"], ["rounds", "hold", "--give-up"]):
        refused = call("provider", *words, "--home", home)
        assert refused.exit_code == 2
        assert "is `pharoah-provider serve` running" in refused.stderr


def test_half_a_window_is_refused(home: Path) -> None:
    assert call("provider", "rounds", "hold", "--home", home, "--start", "168").exit_code == 2


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a provider that held two weeks."""
    root = tmp_path_factory.mktemp("held")
    Grounds.of_failures(root, 4, released=2)
    return root / "provider"


def test_releases_are_listed_and_one_shows_its_cells(held: Path) -> None:
    listed = told("provider", "rounds", "releases", "--home", held)
    assert [(row["start_hour"], row["contributors"]) for row in listed] == [(0, 4), (168, 4)]
    one = listed[0]["round_id"][:8].upper()
    cells = told("provider", "rounds", "releases", one, "--home", held, form="rounds releases ROUND_ID")
    assert len(cells) == sum(table["cells"] for table in listed[0]["tables"].values())
    assert sum(cell["exposure_node_hours"] for cell in cells) > 0
    assert {"marginal", "cell", "failures", "noise_sd", "exposure_node_hours"} == set(cells[0])
    assert "node-hours" in call("provider", "rounds", "releases", listed[0]["round_id"], "--home", held).stdout


@pytest.mark.parametrize("name", ["zz", "no-such"])
def test_a_round_that_was_not_released_is_not_there(name: str, held: Path) -> None:
    missing = call("provider", "rounds", "releases", name, "--home", held)
    assert (missing.exit_code, missing.stdout) == (3, "")


def test_the_ledger_says_what_a_unit_in_each_window_pays(held: Path) -> None:
    rows = told("provider", "rounds", "ledger", "--home", held)
    assert [(row["start_hour"], row["end_hour"]) for row in rows] == [(0, 168), (168, 336)]
    assert all(0.99 < row["epsilon"] <= 1.0 for row in rows)


def test_a_ledger_without_rounds_is_empty(home: Path) -> None:
    assert told("provider", "rounds", "ledger", "--home", home) == []


# ---- spellings -------------------------------------------------------------------------------------------------------

# Every verb of the top level before there were groups: each has an option that only it had, or had with few others.
BEFORE = {
    "enrol": "--remove",
    "revoke": "[TENANTS]",
    "reseat": "--committee",
    "online": "--listen",
    "keys": "--out",
    "lease": "FILE",
    "lease-events": "FILE",
    "slurm": "--since-h",
    "lease-key": "--out",
    "contexts": "--feature",
    "hazard": "--events",
    "recipe": "--budget",
    "repaired": "NODE",
    "own-failures": "--events",
    "snapshot": "--out",
    "changes": "--where",
    "watch-nodes": "--log-format",
    "node-check": "--level",
    "node-service": "--socket",
    "placement": "--slurm",
    "nodes placement": "--slurm",
    "probes": "--tested",
    "path": "--fabric",
    "spares": "--repair-hours",
    "round": "--give-up",
    "release": "[ROUND_ID]",
    "ledger": "--database",
    "learn": "--benchmarks",
    "explain": "--lease",
    "publish": "--accept",
    "votes": "--most",
    "slow": "--database",
    "expectations": "--aim",
    "catalogue": "FILE",
    "findings": "--bundle",
    "init": "--committee",
    "serve": "--every",
    "status": "--database",
    "page": "--port",
    "renew-certificate": "--days",
}


@pytest.mark.parametrize("old", BEFORE)
def test_every_spelling_of_before_still_has_its_options(old: str) -> None:
    words = old.split() if old != "findings" else [old, "--bundle", "1"]
    shown = call("provider", *words, "--help")
    assert shown.exit_code == 0
    assert BEFORE[old].strip("[]").casefold() in shown.stdout.casefold()


def test_the_list_of_before_is_whole() -> None:
    assert len(BEFORE) == 40
    assert RENAMED.keys() <= BEFORE.keys()


PLUG_INS = {verb.partition(".")[2] for verb in DISTRIBUTIONS if verb.startswith("pharoah-provider.")}


def test_the_help_of_the_program_fits_a_screen() -> None:
    shown = call("provider", "--help").stdout.splitlines()
    assert len(shown) <= 40
    assert max(map(len, shown)) <= 80
    visible = {line.split()[1] for line in shown if re.match(r"│ [a-z]", line)}
    assert len(visible - PLUG_INS) <= 12
    assert RENAMED.keys().isdisjoint(visible)


def test_without_a_verb_the_program_says_how_to_start() -> None:
    start = call("provider")
    assert (start.exit_code, len(start.stdout.splitlines())) == (0, 4)
    for line in start.stdout.splitlines():
        verb = [word for word in line.split("  ")[0].split()[1:3] if word.isalpha()]
        assert call("provider", *verb, "--help").exit_code == 0


@pytest.mark.parametrize("words", [["findings", "lsit"], ["tenants", "enroll"]])
def test_a_mistyped_verb_of_a_group_that_lists_is_guessed(words: list[str]) -> None:
    wrong = call("provider", *words)
    assert wrong.exit_code == 2
    assert "Did you mean" in wrong.stderr


@pytest.mark.parametrize("more", [["--online-only"], ["--listen", "localhost:1"]])
def test_where_to_listen_is_for_the_online_service_alone(more: list[str], home: Path) -> None:
    refused = call("provider", "serve", "--home", home, *more)
    assert refused.exit_code == 2
    assert "both --online-only and --listen" in refused.stderr


def test_tenants_are_listed_with_their_accounts(home: Path, card: Path) -> None:
    assert told("provider", "tenants", "list", "--home", home) == []
    tenant = enrolled(home, card)["tenant"]
    settings = home / "provider.toml"
    settings.write_text(
        settings.read_text().replace("slurm_accounts = {}", f'slurm_accounts = {{ "Lab-A" = "{tenant}" }}')
    )
    assert told("provider", "tenants", "list", "--home", home) == [
        {"tenant": tenant, "name": "tenant", "accounts": ["lab-a"], "left": False}
    ]
    assert call("provider", "tenants", "--home", home).stdout == f"tenant         {tenant}  lab-a\n"
