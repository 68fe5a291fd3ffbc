"""Settings: a key is known or refused by name, a value fits or is refused; the sample files say what the types say."""

import tomllib
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from packaging.version import Version

from federation.base.settings import BadSettings, Renamed, load
from federation.base.settings_schema import write_schema
from federation.protocol.plan import Mechanism
from provider_server.rounds.settings import ProviderSettings
from tenant_client.doctor.settings import TenantSettings
from trustee.settings import TrusteeSettings

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = {
    ProviderSettings: ROOT / "provider_server/rounds/provider.toml",
    TenantSettings: ROOT / "tenant_client/doctor/tenant.toml",
    TrusteeSettings: ROOT / "trustee/trustee.toml",
}
KINDS = list(SAMPLES)
SECRET = "hunter2-correct-horse"


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_the_sample_holds_every_key_with_its_default(kind: type[msgspec.Struct]) -> None:
    assert tomllib.loads(SAMPLES[kind].read_text()) == msgspec.json.decode(msgspec.json.encode(kind()))
    assert load(kind, SAMPLES[kind], {}) == kind()


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_schema_is_replaced_and_where_none_can_be_written_nothing_stops(
    kind: type[msgspec.Struct], tmp_path: Path
) -> None:
    file = tmp_path / f"{SAMPLES[kind].stem}.schema.json"
    file.write_text("{}")
    write_schema(tmp_path, kind, SAMPLES[kind], ["ours"])
    told = msgspec.json.decode(file.read_bytes())["properties"]
    assert told.keys() == {*kind.__struct_fields__, "ours"}
    assert SAMPLES[kind].read_text().startswith(f"#:schema ./{file.name}\n")
    write_schema(tmp_path / "nowhere", kind, SAMPLES[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_not_there_counts_as_empty(kind: type[msgspec.Struct], tmp_path: Path) -> None:
    assert load(kind, tmp_path / "none.toml", {}) == kind()


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_can_come_from_the_environment(kind: type[msgspec.Struct], tmp_path: Path) -> None:
    table = msgspec.json.decode(msgspec.json.encode(kind()))
    values = {(section, key): value for section, keys in table.items() for key, value in keys.items()}
    environ = {f"PHAROAH_{section}_{key}".upper(): _written(value) for (section, key), value in values.items()}
    assert load(kind, tmp_path / "none.toml", environ | {"PHAROAH_HOME": "elsewhere", "PATH": "x"}) == kind()


def _written(value: object) -> str:
    """As in the file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("text", "named"), [("[rounds]\nevry = 1\n", "evry"), ("[roundz]\nevery = 1\n", "roundz")])
def test_an_unknown_key_is_refused_with_the_known_ones(text: str, named: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    with pytest.raises(BadSettings, match=named) as caught:
        load(ProviderSettings, file, {})
    assert str(file) in caught.value.what
    assert "[rounds] every, settle_hours" in caught.value.hint


@pytest.mark.parametrize("name", ["PHAROAH_ROUNDS_EVRY", "PHAROAH_LISTEN_", "PHAROAH_PLAN_HORIZON"])
def test_an_unknown_variable_is_refused_with_the_known_ones(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=f"unknown variable {name}") as caught:
        load(ProviderSettings, tmp_path / "none.toml", {name: "1"})
    section = name.split("_")[1]
    assert f"PHAROAH_{section}_" in caught.value.hint


@pytest.mark.parametrize("kind", KINDS)
def test_the_variables_that_name_homes_are_no_settings(kind: type[msgspec.Struct], tmp_path: Path) -> None:
    homes = {"PHAROAH_HOME": "a", "PHAROAH_PROVIDER_HOME": "b", "PHAROAH_TRUSTEE_HOME": "c"}
    assert load(kind, tmp_path / "none.toml", homes) == kind()


@pytest.mark.parametrize(
    ("kind", "section", "key", "value"),
    [
        (ProviderSettings, "listen", "tenants_port", "65536"),
        (ProviderSettings, "listen", "tenants_port", '"8443"'),
        (ProviderSettings, "listen", "host", "1"),
        (ProviderSettings, "rounds", "every", '"day"'),
        (ProviderSettings, "rounds", "settle_hours", "-1"),
        (ProviderSettings, "rounds", "retry_s", "0.0"),
        (ProviderSettings, "plan", "epsilon", "0.0"),
        (ProviderSettings, "plan", "delta", "1.0"),
        (ProviderSettings, "plan", "mechanism", '"gauss"'),
        (ProviderSettings, "plan", "owners_minimum", "0"),
        (ProviderSettings, "plan", "weeks_per_epoch", "1000"),
        (ProviderSettings, "plan", "noise_shares", "11"),
        (ProviderSettings, "plan", "honest_minimum", "-1"),
        (ProviderSettings, "plan", "honest_minimum", "1"),
        (ProviderSettings, "plan", "honest_minimum", "4"),
        (ProviderSettings, "live", "poll_s", "-1.0"),
        (ProviderSettings, "live", "within_hours", "0.0"),
        (ProviderSettings, "live", "within_hours", "169.0"),
        (TenantSettings, "node", "heartbeat_s", "9.0"),
        (TenantSettings, "node", "tick_s", "-1.0"),
        (TrusteeSettings, "trustee", "cohort_minimum", "1"),
        (TrusteeSettings, "trustee", "evaluations_per_epoch", "true"),
    ],
)
def test_a_wrong_value_is_refused(kind: type[Any], section: str, key: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=section):
        load(kind, written(tmp_path, f"[{section}]\n{key} = {value}\n"), {})
    with pytest.raises(BadSettings, match="environment"):
        load(kind, tmp_path / "none.toml", {f"PHAROAH_{section}_{key}".upper(): value})


@pytest.mark.parametrize("known", [0, 5, 10, 400])
def test_noise_may_count_on_as_many_as_its_shares_or_more(known: int, tmp_path: Path) -> None:
    read = load(ProviderSettings, written(tmp_path, f"[plan]\nhonest_minimum = {known}\n"), {})
    assert read.plan.settings.honest_minimum == known


@pytest.mark.parametrize("windows", ["[13, 26, 39]", "[52, 26]", "[]", "[13, 53]", "[26, 26, 52]", "[0, 52]"])
def test_windows_that_do_not_divide_the_epoch_are_refused(windows: str, tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="windows"):
        load(ProviderSettings, written(tmp_path, f"[plan]\nwindows = {windows}\n"), {})


def test_windows_are_those_of_a_year_or_of_the_epoch_that_is_set(tmp_path: Path) -> None:
    assert load(ProviderSettings, tmp_path / "none.toml", {}).plan.settings.windows == (13, 26, 39, 52)
    short = written(tmp_path, "[plan]\nweeks_per_epoch = 6\nwindows = [2, 6]\n")
    assert load(ProviderSettings, short, {}).plan.settings.edges(1) == (6 * 168, 8 * 168, 12 * 168)


def test_laplace_noise_needs_no_delta_and_gaussian_noise_does(tmp_path: Path) -> None:
    pure = "[plan]\ndelta = 0.0\n"
    read = load(ProviderSettings, written(tmp_path, pure), {}).plan.settings
    assert (read.mechanism, read.delta) == (Mechanism.DISCRETE_LAPLACE, 0.0)
    with pytest.raises(BadSettings, match="needs a delta above 0"):
        load(ProviderSettings, written(tmp_path, pure + 'mechanism = "discrete_gaussian"\n'), {})


def test_the_environment_overrides_the_file_key_by_key(tmp_path: Path) -> None:
    file = written(tmp_path, '[rounds]\nevery = "manual"\nsettle_hours = 3\n')
    environ = {"PHAROAH_ROUNDS_EVERY": "window", "PHAROAH_LISTEN_HOST": "::1", "PHAROAH_ROUNDS_RETRY_S": "2.5"}
    read = load(ProviderSettings, file, environ)
    assert (read.rounds.every, read.rounds.settle_hours, read.rounds.retry_s) == ("window", 3, 2.5)
    assert read.listen.host == "::1"
    quoted = load(ProviderSettings, file, {"PHAROAH_ROUNDS_EVERY": '"window"'})
    assert quoted.rounds.every == "window"


@pytest.mark.parametrize("data", [b"[rounds", b"\xff\xfe", b"a = " + b"[" * 2000])
def test_what_is_no_toml_is_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(data)
    with pytest.raises(BadSettings, match="settings"):
        load(ProviderSettings, file, {})


@pytest.mark.parametrize("name", ["PHAROAH_ROUNDS_PASSWORD", "PHAROAH_ROUNDS_RETRY_S", "PHAROAH_PLAN_MECHANISM"])
def test_no_error_shows_a_value(name: str, tmp_path: Path) -> None:
    """Somebody may put a secret into the wrong variable."""
    with pytest.raises(BadSettings) as caught:
        load(ProviderSettings, tmp_path / "none.toml", {name: SECRET, "PHAROAH_DATABASE": SECRET})
    assert SECRET not in caught.value.diagnostics()


def test_a_value_in_the_file_is_not_shown_either(tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as caught:
        load(ProviderSettings, written(tmp_path, f'[rounds]\nretry_s = "{SECRET}"\n'), {})
    assert SECRET not in caught.value.diagnostics()


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    RENAMED: ClassVar[Renamed] = {"wait": ("wait_s", "0.3.0")}
    wait_s: float = 1.0


class Sections(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    renaming: Section = Section()


def test_the_old_name_of_a_key_is_read_with_a_warning_that_is_given_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "[renaming]\nwait = 2.0\n")
    assert [load(Sections, file, {}).renaming.wait_s for _ in range(2)] == [2.0, 2.0]
    renamed = "renaming: 'wait' is called 'wait_s' now; from version 0.3.0 on the old name is refused"
    assert capsys.readouterr().err == f"pharoah: warning: {file}: {renamed}\n"
    assert load(Sections, file, {"PHAROAH_RENAMING_WAIT": "3"}).renaming.wait_s == 3.0
    assert capsys.readouterr().err == f"pharoah: warning: the environment: {renamed}\n"
    assert load(Sections, file, {"PHAROAH_RENAMING_WAIT_S": "4"}).renaming.wait_s == 4.0
    with pytest.raises(BadSettings, match="'wait' and 'wait_s', which are one key"):
        load(Sections, written(tmp_path, "[renaming]\nwait = 2.0\nwait_s = 2.0\n"), {})


@pytest.mark.parametrize("kind", [*KINDS, Sections])
def test_an_old_name_is_one_of_a_key_and_is_not_read_for_ever(kind: type[msgspec.Struct]) -> None:
    version = Version(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    for section in msgspec.structs.fields(kind):
        for old, (new, gone) in getattr(section.type, "RENAMED", {}).items():
            assert {old, new} & {*section.type.__struct_fields__} == {new}, f"[{section.name}] {old} is no old name"
            assert version < Version(gone), f"[{section.name}] {old} was to go with {gone}"
