"""A pilot begins and ends in provider.toml; a tenant lets it through only if its own policy says so."""

from pathlib import Path

import pytest

from crypto.errors import PlanRefused
from federation.base.settings import BadSettings, load
from federation.protocol.refusals import Refused
from provider_server.rounds import pilot
from provider_server.rounds.home import SAMPLE
from provider_server.rounds.settings import PlanTable, ProviderSettings
from tenant_client.rounds.home import write_policy
from tenant_client.rounds.policy import SAMPLE as POLICY, Policy, PolicyError, check_plan, load_policy, policy_of
from tests.support.factories import TENANTS, a_plan, keys


def settings(home: Path) -> PlanTable:
    return load(ProviderSettings, home / "provider.toml", {}).plan


@pytest.mark.parametrize(
    "text", [SAMPLE.read_text(), "", "[plan]\nowners_minimum=7 # ours\n[rounds]\nevery = 'manual'\n", "[rounds]\n"]
)
def test_a_pilot_changes_minimums_and_windows_alone_and_its_end_brings_the_defaults(text: str, tmp_path: Path) -> None:
    (tmp_path / "provider.toml").write_text(text)
    before = load(ProviderSettings, tmp_path / "provider.toml", {})
    pilot.begin(tmp_path, 52)
    plan = settings(tmp_path)
    assert (plan.owners_minimum, plan.cohort_minimum, plan.noise_shares, plan.is_pilot) == (3, 3, 1, True)
    assert plan.windows == tuple(range(1, 53))
    pilot.end(tmp_path, 52)
    assert settings(tmp_path) == PlanTable()
    after = load(ProviderSettings, tmp_path / "provider.toml", {})
    assert (after.rounds, after.listen) == (before.rounds, before.listen)
    for comment in ("# ours", "# contributions in each group"):
        assert (comment in text) == (comment in (tmp_path / "provider.toml").read_text())


def test_windows_of_an_epoch_of_another_length_stay(tmp_path: Path) -> None:
    (tmp_path / "provider.toml").write_text("[plan]\nweeks_per_epoch = 4\nwindows = [2, 4]\n")
    pilot.begin(tmp_path, 4)
    pilot.end(tmp_path, 4)
    assert settings(tmp_path).windows == (1, 2, 3, 4)
    assert not settings(tmp_path).is_pilot


def test_a_file_that_cannot_be_rewritten_stays(tmp_path: Path) -> None:
    text = "[plan]\nwindows = [26,\n52]\n"
    (tmp_path / "provider.toml").write_text(text)
    with pytest.raises(BadSettings):
        pilot.begin(tmp_path, 52)
    assert (tmp_path / "provider.toml").read_text() == text


def test_a_plan_of_a_pilot_passes_the_policy_of_a_pilot_and_no_other(tmp_path: Path) -> None:
    plan = a_plan(owners_minimum=3, cohort_minimum=3, noise_shares=1)
    write_policy(tmp_path, pilot=True)
    check_plan(plan, policy_of(tmp_path), keys().directory, float(plan.end_hour), TENANTS)
    told = []
    for key in ("owners_minimum", "cohort_minimum"):
        policy = type(Policy())(**{"owners_minimum": 3, "cohort_minimum": 3, key: getattr(Policy(), key)})
        with pytest.raises(PlanRefused) as refusal:
            check_plan(a_plan(owners_minimum=3, noise_shares=1), policy, keys().directory, 168.0, TENANTS)
        told.append(str(Refused.of(refusal.value)))
    assert told == ["PlanRefused owners_minimum 5", "PlanRefused cohort_minimum 10"]


def test_noise_of_a_pilot_is_complete_with_one_tenant_of_three() -> None:
    """Whatever two of three know and subtract, the third's own noise is what epsilon asks for."""
    plan = a_plan(owners_minimum=3, cohort_minimum=3, noise_shares=1)
    assert plan.shares.full == 1
    assert plan.noise_shares <= plan.cohort_minimum * (1 - Policy().colluding_share)


def test_join_writes_every_limit_with_its_default_and_lowers_none_behind_an_owners_back(tmp_path: Path) -> None:
    write_policy(tmp_path, pilot=False)
    assert policy_of(tmp_path) == Policy() == load_policy(POLICY)
    text = (tmp_path / "policy.toml").read_text()
    assert all(f"{name} = " in text for name in Policy.__struct_fields__)
    write_policy(tmp_path, pilot=True)  # as join wrote it: nobody's words are lost
    assert (policy_of(tmp_path).owners_minimum, policy_of(tmp_path).cohort_minimum) == (3, 3)
    own = "owners_minimum = 8\n"
    (tmp_path / "policy.toml").write_text(own)
    with pytest.raises(PolicyError, match="changed by hand") as refusal:
        write_policy(tmp_path, pilot=True)
    assert "owners_minimum = 3" in refusal.value.hint
    write_policy(tmp_path, pilot=False)
    assert (tmp_path / "policy.toml").read_text() == own
