"""The audit of the whole path: its parts are the real parties' to the bit, its bounds hold, it convicts what it must.

What draws from the system's randomness fails by chance less than once in 10^9 runs: the quick audit convicts the
innocent once in 10^10, acquits the guilty as rarely, as the powers say that are asserted below, and four tests of every
bit have 7·10^-10 together. All else is deterministic, or seeded.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from scipy.stats import binom, binomtest

from crypto.codec import decode
from crypto.ids import Digest, MaskPublicKey, RoundId
from crypto.masking import words_to_bytes
from crypto.signing import name_of, reopened
from federation.protocol.plan import Mechanism, Plan
from federation.protocol.round_messages import Contribution, UnmaskShare
from simulation.studies.audit.attacks import LaplaceAttack
from simulation.studies.audit.bounds import (
    Tally,
    chance_of_conviction,
    gaussian_epsilon,
    gaussian_shift,
    largest_ratio,
    proven_epsilon,
)
from simulation.studies.audit.cases import GAUSSIAN, Row, Verdict, toss
from simulation.studies.audit.masks import (
    as_it_is,
    insecure_mask,
    plus_order_two,
    seen_by_accomplices,
    seen_under_an_alias,
    seen_under_the_old_derivation,
    with_top_bit,
)
from simulation.studies.audit.parties import Parties, default_settings, make_parties, make_plans
from simulation.studies.audit.path import Contributed, MaskSide, canary_counts, contributed, released
from simulation.studies.audit.study import ATTENDANCES, QUICK_RISK, audit, cases, is_wrong
from simulation.studies.study import Table
from tests.support.factories import header_of
from tests.support.hiding import looks_hidden
from tests.support.real_rounds import InsecureSeeded, Played, real_federation

LAPLACE = Mechanism.DISCRETE_LAPLACE
MISSED = 1e-10


@pytest.fixture(scope="module")
def parties() -> Parties:
    return make_parties()


@pytest.fixture(scope="module")
def report(parties: Parties) -> list[Row]:
    return audit(cases(parties, quick=True), QUICK_RISK)


# ---- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_audit_convicts_narrow_noise_and_the_old_masks_and_nothing_that_is_shipped(report: Sequence[Row]) -> None:
    assert [row.setting for row in report if is_wrong(row)] == []
    convicted = {at for at, row in enumerate(report) if row.verdict is Verdict.CONVICTED}
    assert [report[at].setting.strip() for at in sorted(convicted)] == [
        "noise a fifth narrower",
        "alias, masks of the old derivation",
        "3 of 3 trustees collude",
        *["noise a fifth narrower"] * len(ATTENDANCES),
        "noise halved",
    ]


@pytest.mark.nightly
def test_a_claim_is_that_of_the_defaults_and_what_is_missed_is_missed_by_rare_chance(report: Sequence[Row]) -> None:
    guilty = [row for row in report if row.expected is Verdict.CONVICTED and row.power is not None]
    assert len(guilty) == 2 + len(ATTENDANCES)
    assert sum(1 - (row.power or 0) for row in guilty) < MISSED
    for row in guilty:
        assert row.claimed == pytest.approx(1.0, rel=1e-5)
        assert max(row.by_counts, row.by_law or 0) > row.claimed


@pytest.mark.nightly
def test_what_is_proved_of_a_year_of_windows_is_near_the_claim_and_not_above(report: Sequence[Row]) -> None:
    """Neighbours differ in a lease in a window; all noise beyond that which is claimed is known to the attacker."""
    year = report[0]
    assert year.claimed == pytest.approx(1.0, rel=1e-5)
    assert 0.8 <= year.by_counts <= year.claimed


@pytest.mark.nightly
def test_one_contribution_shows_nothing_under_an_alias_and_all_but_its_noise_under_the_old_derivation(
    report: Sequence[Row],
) -> None:
    hidden = [row for row in report if row.claimed == 0 and row.expected is Verdict.WITHIN]
    assert len(hidden) == 5  # one of them without any trustee that colludes
    for row in hidden:
        assert row.by_counts == row.by_counts_at_audit_delta == 0
        assert row.at_most is not None
        assert row.at_most < 0.15
    (old,) = [row for row in report if "old derivation" in row.setting]
    assert old.by_counts > 1  # claimed is 0: only its own share of the noise, which is little, lies over it


@pytest.mark.nightly
def test_the_report_has_a_line_for_every_case_and_is_json(report: Sequence[Row]) -> None:
    lines = list(Table(report).lines())
    assert len(lines) == 1 + len(report)
    assert all(json.loads(json.dumps(asdict(row)))["verdict"] == row.verdict for row in report)
    assert all(row.setting in line and f"{row.canaries:,}" in line for row, line in zip(report, lines[1:], strict=True))


# ---- the path is that of the real parties ----------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [LAPLACE, GAUSSIAN])
def test_the_path_of_an_audit_is_that_of_the_real_parties_to_the_last_bit(
    parties: Parties, tmp_path: Path, mechanism: Mechanism
) -> None:
    samplers = [InsecureSeeded(number) for number in range(len(parties.tenants))]
    trustees = {index: MaskSide(index, key) for index, key in parties.mask_keys.items()}
    with real_federation(parties, default_settings(mechanism), tmp_path) as federation:
        for number in range(2):
            real = federation.played(number)
            plan = reopened(Plan, real.signed_plan)
            sent = repeated(parties, plan, real, samplers)
            assert [words_to_bytes(one.cells) for one in sent] == [cells_of(one) for one in real.contributions]
            shares = {index: trustee.share(plan, sent) for index, trustee in trustees.items()}
            assert {index: (words_to_bytes(words),) for index, words in shares.items()} == {
                index: reopened(UnmaskShare, signed).mask_sums for index, signed in real.shares.items()
            }
            made = released(plan, sent, list(shares.values()))
            for ours, theirs in zip(made.tables, real.released.tables, strict=True):
                assert np.array_equal(ours.events, theirs.events)
                assert np.array_equal(ours.noise_variance, theirs.noise_variance)


def repeated(parties: Parties, plan: Plan, real: Played, samplers: Sequence[InsecureSeeded]) -> list[Contributed]:
    """What the tenants sent, once more: the same counts, nonces and noise."""
    nonces = [header_of(contribution).nonce for contribution in real.contributions]
    told = zip(parties.tenants, nonces, real.counts, samplers, strict=True)
    return [contributed(plan, name_of(real.signed_plan), *one) for one in told]


def cells_of(contribution: bytes) -> bytes:
    return bytes(decode(Contribution, contribution).cells)


def test_one_unit_that_fails_twice_is_the_canary_of_an_audit(parties: Parties, tmp_path: Path) -> None:
    """One failure of the hardware and one of the script: a real tenant counts them once in every marginal."""
    with real_federation(parties, default_settings(LAPLACE), tmp_path) as federation:
        real = federation.played(0)
    plan = reopened(Plan, real.signed_plan)
    canary = canary_counts(plan, np.array([True]))
    assert [int(counts.sum()) for counts in real.counts[0]] == [int(counts.sum()) for counts in canary] == [1] * 3
    assert all(counts.sum() == 0 for tenant in real.counts[1:] for counts in tenant)


# ---- bounds ----------------------------------------------------------------------------------------------------------


def tally(members: int, right: int, others: int, wrong: int) -> Tally:
    return Tally(members, others, np.array([right]), np.array([wrong]))


def test_rates_are_bounded_as_clopper_and_pearson_do() -> None:
    risk = 1e-3
    right, wrong = (
        binomtest(count, 1000).proportion_ci(confidence_level=1 - risk / 2, method="exact") for count in (400, 100)
    )
    found = proven_epsilon(tally(1000, 400, 1000, 100), 0.01, risk)
    assert found == pytest.approx(math.log((right.low - 0.01) / wrong.high), rel=1e-9)
    assert proven_epsilon(tally(1000, 100, 1000, 400), 0.01, risk) == pytest.approx(found)
    assert proven_epsilon(tally(1000, 900, 1000, 600), 0.01, risk) == pytest.approx(found)
    assert proven_epsilon(tally(1000, 500, 1000, 500), 0.0, risk) == 0
    surely = (risk / 4) ** (1 / 1000)
    assert proven_epsilon(tally(1000, 1000, 1000, 0), 0.0, risk) == pytest.approx(math.log(surely / (1 - surely)))
    assert largest_ratio(tally(1000, 1000, 1000, 0), risk) == math.inf


def test_a_claim_that_holds_is_exceeded_no_more_often_than_is_said() -> None:
    """Randomised response of ε = 1, audited 4,000 times at a risk of 5%: more than 270 happen once in 10^6 times."""
    rng, epsilon, risk = np.random.default_rng(5), 1.0, 0.05
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    found = [
        proven_epsilon(tally(400, int(rng.binomial(400, chance)), 400, int(rng.binomial(400, 1 - chance))), 0.0, risk)
        for _ in range(4000)
    ]
    assert 0 < sum(one > epsilon for one in found) <= binom.isf(1e-6, 4000, risk)
    assert np.median(found) > 0.6


@pytest.mark.parametrize("shift", [0.05, 0.1855, 0.5, 3.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-2])
def test_the_epsilon_of_two_gaussians_is_that_of_dp_accounting(shift: float, delta: float) -> None:
    epsilon = gaussian_epsilon(shift, delta)
    if epsilon == 0:
        assert GaussianPrivacyLoss(1 / shift).get_delta_for_epsilon(0.0) <= delta
    else:
        assert GaussianPrivacyLoss(1 / shift).get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-6)
    assert gaussian_epsilon(-shift, delta) == 0


def test_the_shift_of_gaussians_lies_between_its_bounds() -> None:
    rng, shift = np.random.default_rng(6), 0.3
    for _ in range(100):
        right, wrong = (int((rng.normal(mean, 1, 2000) >= 0.1).sum()) for mean in (shift, 0.0))
        low, high = gaussian_shift(tally(2000, right, 2000, wrong), 0, 1e-6)
        assert low < shift < high < low + 0.65


def test_a_power_is_no_more_than_what_audits_reach() -> None:
    """Of 300 audits whose power is stated as .99, no fewer convict than happens once in 10^6 times."""
    rng, members, rates = np.random.default_rng(7), 4000, (np.array([0.3]), np.array([0.1]))

    def is_convicted(found: Tally) -> bool:
        return proven_epsilon(found, 0.0, 1e-6) > 0.55

    stated = chance_of_conviction(rates, tally(members, 0, members, 0), is_convicted)
    convicted = sum(
        is_convicted(tally(members, int(rng.binomial(members, 0.3)), members, int(rng.binomial(members, 0.1))))
        for _ in range(300)
    )
    assert stated == pytest.approx(0.99)
    assert convicted >= binom.ppf(1e-6, 300, stated)
    assert chance_of_conviction(rates, tally(40, 0, 40, 0), is_convicted) == 0


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_rates_of_laplace_scores_are_the_exact_ones(parties: Parties, factor: float) -> None:
    """With all shares a marginal says +1/b from one failure on and -1/b below, so that there are 8 scores."""
    plan = make_plans(parties, default_settings(LAPLACE), 32)[0]
    attack = LaplaceAttack(plan, 1.0)
    scales = np.array([marginal.noise_scale for marginal in plan.marginals])
    decay = np.exp(-1 / (factor * scales))
    for rates, up in zip(attack.rates(factor), (1 / (1 + decay), decay / (1 + decay)), strict=True):
        exact = np.zeros(len(attack.thresholds))
        for signs in product((True, False), repeat=3):
            score = np.where(signs, 1 / scales, -1 / scales).sum()
            exact += np.where(signs, up, 1 - up).prod() * (score >= attack.thresholds)
        assert rates == pytest.approx(exact, abs=1e-6)


# ---- masks -----------------------------------------------------------------------------------------------------------


def test_three_spellings_are_one_key_and_the_old_masks_are_those_that_were() -> None:
    own, peer = (X25519PrivateKey.from_private_bytes(bytes(range(at, at + 32))) for at in (0, 1))
    key = MaskPublicKey(peer.public_key().public_bytes_raw())
    shown = [spelling(key) for spelling in (as_it_is, with_top_bit, plus_order_two)]
    assert len(set(shown)) == 3
    assert len({own.exchange(X25519PublicKey.from_public_bytes(one)) for one in shown}) == 1
    bound = RoundId(bytes(range(16))), Digest(bytes(range(32))), 4
    then = [0x4E280139522FA747, 0xA2518052A62F3F3B, 0x0E29A260992B882E, 0x78ED58682DF9459]
    for one in shown:
        assert insecure_mask(own, one, *bound).tolist() == then


def test_what_is_seen_under_an_alias_passes_the_test_of_every_bit_and_not_under_the_old_derivation(
    parties: Parties,
) -> None:
    everywhere, coins = np.ones(2**15, np.bool_), toss(2**15)
    plan = make_plans(parties, default_settings(LAPLACE), len(coins))[0]
    for spelling in (as_it_is, with_top_bit, plus_order_two):
        assert looks_hidden(seen_under_an_alias(parties, plan, everywhere, spelling))
        assert not looks_hidden(seen_under_the_old_derivation(parties, plan, everywhere, spelling))
        bare = seen_under_the_old_derivation(parties, plan, coins, spelling)
        assert np.mean((bare & np.uint64(1)) == coins) > 0.6  # a share of the noise is mostly none
    assert looks_hidden(seen_by_accomplices(parties, plan, everywhere, 2))
    assert np.mean(seen_by_accomplices(parties, plan, coins, 3) == coins) > 0.6
