"""No epoch begins under mask keys of an earlier one, or under keys that are in nobody's custody.

Epochs have two weeks here. The parties are real and on disk; trustees have what was left with them in a list.
"""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from crypto.errors import NotInCustody, PlanRefused
from crypto.masking import MaskKey
from provider_server.rounds.planning import MaskKeysServed
from provider_server.store.round_store import RoundState
from simulation.run.federation import Federation
from tests.support.changing import replace
from tests.support.federations import WEEKS, Grounds, begin, hold, is_exact
from tests.support.seats import Custody, renew_mask_keys
from trustee.new_epochs import check_new_epoch
from trustee.trustee import TrusteeLimits

TENANTS = 3
LAST, NEXT = WEEKS[1], WEEKS[2]


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grounds, Path]:
    root = tmp_path_factory.mktemp("founded") / "home"
    grounds = Grounds.of_failures(root, TENANTS, 2, weeks_per_epoch=2, new_mask_keys=True)
    with grounds.opened(root) as federation:
        for number in range(TENANTS):
            begin(federation, number, NEXT)
        for window in WEEKS[:2]:
            hold(federation, window)
    return grounds, root


@pytest.fixture
def kept() -> dict[int, list[bytes]]:
    """What was left with each trustee."""
    return {index: [] for index in range(1, 6)}


@pytest.fixture
def federation(founded: tuple[Grounds, Path], tmp_path: Path, kept: dict[int, list[bytes]]) -> Iterator[Federation]:
    grounds, root = founded
    limits = {index: TrusteeLimits(deposits=partial(kept.__getitem__, index)) for index in kept}
    with grounds.opened(shutil.copytree(root, tmp_path / "home"), limits) as opened:
        yield opened


def charges(federation: Federation) -> list[int]:
    return [len(tenant.ledger.charges()) for tenant in federation.tenants]


def test_the_provider_asks_nobody_for_a_new_epoch_under_the_mask_keys_of_the_old(federation: Federation) -> None:
    with pytest.raises(MaskKeysServed, match=r"epoch 1 would begin under mask keys of an earlier one, of trustees \[3"):
        hold(federation, NEXT)
    assert charges(federation) == [2] * TENANTS
    assert federation.provider.unfinished() is None


def test_trustees_open_no_new_epoch_under_one_mask_key_of_the_old_whatever_the_provider_says(
    founded: tuple[Grounds, Path], federation: Federation, kept: dict[int, list[bytes]]
) -> None:
    federation.provider.settings = dataclasses.replace(federation.provider.settings, new_mask_keys=False)
    after = renew_mask_keys(Custody.founded(founded[0].federation), federation, (3, 4))
    leave(after, kept)
    with pytest.raises(PlanRefused, match=r"begins epoch 1 under mask keys of an earlier one, of trustees \[5\]"):
        hold(federation, NEXT)


def leave(custody: Custody, kept: dict[int, list[bytes]]) -> None:
    for deposits in kept.values():
        deposits += custody.deposits


def test_a_new_epoch_waits_until_its_mask_keys_are_in_custody_and_then_loses_nothing(
    founded: tuple[Grounds, Path], federation: Federation, kept: dict[int, list[bytes]]
) -> None:
    after = renew_mask_keys(Custody.founded(founded[0].federation), federation)
    with pytest.raises(NotInCustody, match=r"trustee 3 has no deposit of the mask keys of trustees \[4, 5\]") as told:
        hold(federation, NEXT)
    assert "`pharoah-trustee keep-deposit`" in told.value.hint
    waiting = federation.provider.unfinished()
    assert waiting is not None
    assert waiting.state is RoundState.ENDORSING
    for index in (3, 4):
        kept[index] += after.deposits
    with pytest.raises(NotInCustody, match="trustee 5"):
        hold(federation, NEXT)
    leave(after, {5: kept[5], 1: kept[1]})
    release, _ = hold(federation, NEXT)
    assert release.plan.epoch == 1
    assert release.plan.round_id == waiting.plan.round_id
    assert is_exact(federation, release)
    assert charges(federation) == [3] * TENANTS


def test_a_deposit_of_the_key_before_is_none_of_the_new_one(
    founded: tuple[Grounds, Path], federation: Federation, kept: dict[int, list[bytes]]
) -> None:
    before = Custody.founded(founded[0].federation)
    leave(before, kept)
    renew_mask_keys(before, federation)
    with pytest.raises(NotInCustody):
        hold(federation, NEXT)


def test_the_rule_is_of_the_first_round_of_a_later_epoch_alone(founded: tuple[Grounds, Path]) -> None:
    """Neither of a first epoch, nor within one, nor where a deposit would be opened by those who collude anyway."""
    grounds, root = founded
    with grounds.opened(root) as federation:
        first, last = (made.plan for made in federation.provider.releases())
        directory, custody = federation.provider.directory, Custody.founded(grounds.federation)
    check_new_epoch(first, [], directory, 3, [])
    check_new_epoch(last, [first], directory, 3, [])
    assert last.series is not None
    series = replace(last.series, position=0)
    new = replace(last, epoch=1, series=series)
    with pytest.raises(PlanRefused):
        check_new_epoch(new, [first], directory, 3, custody.deposits)
    fresh = replace(new, trustees=tuple(replace(one, mask_key=MaskKey(os.urandom(32)).public) for one in new.trustees))
    with pytest.raises(NotInCustody):
        check_new_epoch(fresh, [first], directory, 3, custody.deposits)
    check_new_epoch(fresh, [first], dataclasses.replace(directory, threshold=2), 3, [])
