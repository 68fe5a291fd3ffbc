"""A tenant's home: private files, named complaints, and no secret in anything that is shown."""

import errno
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from crypto.codec import decode
from crypto.errors import DecodeError
from crypto.masking import MaskKey
from crypto.possession import MaskKeyClaim
from crypto.signing import SigningKey, tenant_id
from federation.base.key_files import HomeError, replace_secret, write_secret
from federation.base.pinned_directory import NotEnrolled
from federation.protocol.directory import Fork, Member, next_entry
from federation.protocol.noise import SystemSampler
from provider_server.rounds.planning import PlanSettings
from simulation.run.federation import TRUSTEES, found
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import UnknownUnit
from tenant_client.rounds.home import create, member, open_tenant, pin
from tenant_client.rounds.policy import Policy, PolicyError
from tenant_client.rounds.tenant import Tenant
from tests.support.factories import SETTINGS, InsecureSilence, a_failure, a_plan, a_unit, keys, signed

HINT = "pass the right --home, or restore the file from a backup"


def opened(home: Path) -> Tenant:
    return open_tenant(home, (), os.urandom, SystemSampler())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "homes" / "tenant"
    create(path, os.urandom, 0.0)
    pin(path, [keys().founding])
    return path


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


# ---- files ---------------------------------------------------------------------------------------------------------


def test_secrets_are_for_their_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create(tmp_path / "tenant", os.urandom, 400_000.75)
        pin(tmp_path / "tenant", [keys().founding])
        with closing(opened(tmp_path / "tenant")) as tenant:
            unit = a_unit(1)
            tenant.journal.add([unit], [a_failure(unit)])
            names = {path.name: mode(path) for path in (tmp_path / "tenant").iterdir()}
    finally:
        os.umask(before)
    assert mode(tmp_path / "tenant") == "0o700"
    assert set(names) >= {"signing.key", "mask.key", "mask.claim", "tenant.db", "tenant.db-wal"}
    assert set(names.values()) == {"0o600"}


def test_keys_are_never_overwritten(home: Path) -> None:
    before = (home / "signing.key").read_bytes()
    with pytest.raises(FileExistsError):
        create(home, os.urandom, 0.0)
    with pytest.raises(FileExistsError):
        write_secret(home / "mask.key", bytes(32))
    assert (home / "signing.key").read_bytes() == before


def test_what_may_be_renewed_is_replaced_whole_or_not_at_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_secret(home / "node.key", b"first")
    replace_secret(home / "node.key", b"second")
    assert ((home / "node.key").read_bytes(), mode(home / "node.key")) == (b"second", "0o600")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("federation.base.key_files.os.fsync", full)
    before = sorted(path.name for path in home.iterdir())
    with pytest.raises(OSError, match="no space"):
        replace_secret(home / "node.key", b"third")
    assert (home / "node.key").read_bytes() == b"second"
    assert sorted(path.name for path in home.iterdir()) == before


def test_the_public_keys_are_those_of_the_files_and_of_the_tenant(tmp_path: Path) -> None:
    drawn = iter([bytes([1]) * 32, bytes([2]) * 32])
    enrolled = create(tmp_path, lambda size: next(drawn), 400_000.75)
    pin(tmp_path, [keys().founding])
    assert ((tmp_path / "signing.key").read_bytes(), (tmp_path / "mask.key").read_bytes()) == (b"\1" * 32, b"\2" * 32)
    with closing(opened(tmp_path)) as tenant:
        assert tenant.id == enrolled.tenant == tenant_id(enrolled.verify_key)


def test_what_a_home_asks_to_be_enrolled_with_is_the_same_whenever_it_is_asked(home: Path) -> None:
    """The hour is the one when the mask key was made: whoever comes back is refused with an older key."""
    enrolled = create(home.parent / "other", os.urandom, 400_000.75)
    enrolled.check()
    assert enrolled.made_hour == 400_000
    assert member(home.parent / "other") == enrolled
    assert member(home).made_hour == 0
    claim = decode(MaskKeyClaim, (home.parent / "other" / "mask.claim").read_bytes())
    assert claim == MaskKeyClaim(enrolled.verify_key, enrolled.mask_key, 400_000)


def test_a_home_without_its_claim_says_which_file_is_missing(home: Path) -> None:
    (home / "mask.claim").unlink()
    with pytest.raises(HomeError, match=r"mask\.claim"):
        member(home)
    (home / "mask.claim").write_bytes(b"garbage")
    with pytest.raises(DecodeError, match="MaskKeyClaim"):
        member(home)


def test_two_homes_have_different_keys(tmp_path: Path) -> None:
    one, other = (create(tmp_path / name, os.urandom, 0.0) for name in ("one", "other"))
    assert isinstance(one, Member)
    assert one.verify_key != other.verify_key
    assert one.mask_key != other.mask_key


@pytest.mark.parametrize("name", ["signing.key", "mask.key"])
def test_what_is_missing_is_named_and_how_to_name_a_home(home: Path, name: str) -> None:
    (home / name).unlink()
    with pytest.raises(HomeError) as error:
        opened(home)
    assert error.value.diagnostics() == f"no such file or directory: {home / name}\nhint: {HINT}"


def test_a_home_that_is_none_is_not_made_into_one(tmp_path: Path) -> None:
    with pytest.raises(NotEnrolled):
        opened(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["signing.key", "mask.key"])
@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_is_named_and_not_shown(home: Path, name: str, size: int) -> None:
    (home / name).write_bytes(b"K" * size)
    with pytest.raises(HomeError, match=f"{size} bytes, a key has 32") as error:
        opened(home)
    assert name in error.value.what
    assert "KK" not in error.value.diagnostics()


def test_a_home_without_a_pinned_directory_says_how_to_get_one(tmp_path: Path) -> None:
    create(tmp_path, os.urandom, 0.0)
    with pytest.raises(NotEnrolled) as error:
        opened(tmp_path)
    assert error.value.diagnostics().startswith(
        "this home has not joined a federation\nhint: join with `pharoah-tenant join`"
    )
    with pytest.raises(NotEnrolled, match="there is no directory to pin"):
        pin(tmp_path, [])
    pin(tmp_path, [keys().founding])
    with closing(opened(tmp_path)) as tenant:
        assert tenant.chain.directory == keys().directory


def test_what_is_no_directory_is_not_pinned(tmp_path: Path) -> None:
    create(tmp_path, os.urandom, 0.0)
    for garbage in (b"", b"garbage", keys().founding[:-1], signed(a_plan())):
        with pytest.raises(DecodeError):
            pin(tmp_path, [garbage])
    joining = Member.of(SigningKey(bytes(32)), MaskKey(bytes(32)), 0)
    later = keys().provider.sign(next_entry(keys().directory, joined=[joining]))
    with pytest.raises(Fork, match="does not start with its first entry"):
        pin(tmp_path, [later])
    with pytest.raises(NotEnrolled):
        opened(tmp_path)
    assert pin(tmp_path, [keys().founding, later]).directory.members[-1] == joining
    assert pin(tmp_path, []).directory.members[-1] == joining


def test_a_damaged_directory_does_not_open(home: Path) -> None:
    with closing(open_database(home / "tenant.db")) as connection:
        connection.execute("UPDATE directory SET entry = ?", (keys().founding[:-1],))
    with pytest.raises(DecodeError, match="Signed"):
        opened(home)


# ---- policy --------------------------------------------------------------------------------------------------------


def test_without_a_policy_file_the_defaults_apply(home: Path) -> None:
    with closing(opened(home)) as tenant:
        assert tenant.policy == Policy()


def test_the_policy_file_is_the_tenants_policy(home: Path) -> None:
    (home / "policy.toml").write_text("owners_minimum = 9\n")
    with closing(opened(home)) as tenant:
        assert tenant.policy == Policy(owners_minimum=9)
    (home / "policy.toml").write_text("owners_minimun = 9\n")
    with pytest.raises(PolicyError, match="unknown key 'owners_minimun'"):
        opened(home)


# ---- secrets -------------------------------------------------------------------------------------------------------


def test_no_secret_shows_in_anything_that_a_tenant_prints(home: Path) -> None:
    secrets = [(home / name).read_bytes() for name in ("signing.key", "mask.key")]
    with closing(opened(home)) as tenant:
        unit = a_unit(1)
        tenant.journal.add([unit], [a_failure(unit)])
        shown = [repr(part) for part in (tenant, *vars(tenant).values())]
        with pytest.raises(UnknownUnit) as error:
            tenant.journal.labels("nobody")
        shown.append(error.value.diagnostics())
    for secret in secrets:
        assert not any(secret.hex() in text or str(secret) in text for text in shown)


def test_a_closed_tenant_answers_nothing(home: Path) -> None:
    tenant = opened(home)
    tenant.close()
    tenant.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        tenant.contribute(signed(a_plan()))


# ---- a whole federation --------------------------------------------------------------------------------------------


def test_a_federation_is_founded_with_homes_that_know_one_another(tmp_path: Path) -> None:
    policy = {"owners_minimum": 3, "cohort_minimum": 3, "dimensions": ("workload", "context")}
    federation = found(tmp_path, 3, PlanSettings(**SETTINGS), policy, InsecureSilence())
    try:
        directory = federation.provider.directory
        assert [member.tenant for member in directory.members] == [tenant.id for tenant in federation.tenants]
        assert [trustee.index for trustee in federation.trustees] == list(range(1, TRUSTEES + 1))
        for number, tenant in enumerate(federation.tenants):
            assert tenant.policy == Policy(owners_minimum=3, cohort_minimum=3, dimensions=("workload", "context"))
            with closing(opened(tmp_path / "tenants" / f"{number:03d}")) as again:
                assert again.id == tenant.id
                assert again.chain.entries == federation.provider.members.chain.entries
        assert all(trustee.chain.directory.head == directory.head for trustee in federation.trustees)
        with pytest.raises(FileExistsError):
            found(tmp_path, 3, PlanSettings(**SETTINGS), policy)
    finally:
        federation.close()
