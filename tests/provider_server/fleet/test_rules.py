"""Rules on versions and settings: planted ones come back, by name and by interval; nothing else does."""

import numpy as np
import pytest

from federation.protocol.version_ranges import VersionRange, parse, version
from provider_server.fleet.analysis.conditions import NumberRange, OneOf, Records
from provider_server.fleet.analysis.rules import Rule, find_rules
from tests.support.changing import replace

NCCL = ["2.17.1", "2.18.1", "2.18.6", "2.19.3", "2.20.5", "2.21.5"]
DRIVER = ["525.105", "535.54", "535.129", "550.90"]
FABRIC = ["hdr", "ndr", "roce"]


def fleet(seed: int, *, lift: float = 4.0, noise_sd: float = 0.0, records: int = 3000, strata: int = 40) -> Records:
    """Software dealt at random to strata that differ in rate; NCCL 2.18 and 2.19 with the oldest driver fail more."""
    rng = np.random.default_rng(seed)
    stratum = rng.integers(0, strata, records)
    nccl, driver = rng.choice(NCCL, records), rng.choice(DRIVER, records)
    bad = np.isin(nccl, NCCL[1:4]) & (driver == DRIVER[0])
    exposure = rng.gamma(2.0, 50.0, records)
    mean = 0.005 * exposure * rng.lognormal(0.0, 0.6, strata)[stratum] * np.where(bad, lift, 1.0)
    return Records(
        strata=stratum,
        events=rng.poisson(mean) + rng.normal(0.0, noise_sd, records),
        exposure_node_hours=exposure,
        noise_variance=np.full(records, noise_sd**2),
        versions={"nccl": nccl.tolist(), "driver": driver.tolist()},
        settings={"fabric": rng.choice(FABRIC, records).tolist()},
        numbers={"tensor_parallel": rng.choice([1.0, 2.0, 4.0, 8.0], records).tolist()},
    )


def found(records: Records, seed: int = 0, *, max_depth: int = 3) -> tuple[Rule, ...]:
    return find_rules(records, np.random.default_rng(seed), max_depth=max_depth)


# ---- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.18.3", (2, 18, 3)),
        ("v2.18.3+cuda12.4", (2, 18, 3)),
        ("535.54.03-rc1", (535, 54, 3)),
        ("2.20", (2, 20)),
        ("2.18.0", (2, 18)),
        ("0", (0,)),
        ("unknown", ()),
        (None, ()),
    ],
)
def test_versions_are_tuples_of_numbers(text: str | None, numbers: tuple[int, ...]) -> None:
    assert version(text) == numbers


def test_versions_compare_as_numbers_and_not_as_text() -> None:
    early = VersionRange("nccl", version("2.9"), version("2.20"))
    assert early.holds("2.18.3")  # as text it would be before "2.9"
    assert early.holds("2.9.0")
    assert not early.holds("2.20")
    assert not early.holds(None)
    assert VersionRange("nccl", None, version("2.20")).holds(None)


def test_conditions_say_what_they_mean() -> None:
    assert str(VersionRange("nccl", version("2.18"), version("2.20"))) == "nccl in [2.18, 2.20)"
    assert str(VersionRange("driver", None, version("535"))) == "driver < 535"
    assert str(VersionRange("driver", version("535"), None)) == "driver >= 535"
    assert str(OneOf("fabric", ("roce",))) == "fabric = roce"
    assert str(OneOf("fabric", ("hdr", "ndr"))) == "fabric in {hdr, ndr}"
    assert str(NumberRange("ranks", 8.0, np.inf)) == "ranks > 8"
    assert str(NumberRange("ranks", -np.inf, 8.0)) == "ranks <= 8"
    assert str(NumberRange("ranks", 2.0, 8.0)) == "ranks > 2 and <= 8"


@pytest.mark.parametrize("words", ["nccl in [2.18, 2.20)", "driver < 535", "transformer-engine >= 1.7"])
def test_what_a_rule_says_is_read_again_word_for_word(words: str) -> None:
    assert str(parse(words)) == words


@pytest.mark.parametrize("words", ["fabric = roce", "ranks > 2 and <= 8", "ranks <= 8", "nccl", "nccl >= new"])
def test_what_is_no_range_of_versions_is_not_read_as_one(words: str) -> None:
    assert parse(words) is None


def test_intervals_that_touch_become_one_and_others_do_not() -> None:
    low, middle, high = (
        VersionRange("nccl", version(first), version(last))
        for first, last in (("2.17", "2.18"), ("2.18", "2.19"), ("2.19.3", "2.21"))
    )
    assert middle.joined(low) == VersionRange("nccl", version("2.17"), version("2.19"))
    assert middle.joined(high) is None
    assert NumberRange("ranks", 2.0, 4.0).joined(NumberRange("ranks", 4.0, 9.0)) == NumberRange("ranks", 2.0, 9.0)
    assert NumberRange("ranks", 2.0, 4.0).joined(NumberRange("ranks", 5.0, 9.0)) is None


# ---- rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_planted_rule_comes_back_word_for_word(seed: int) -> None:
    (rule,) = found(fleet(seed), seed)
    assert str(rule) == "driver < 535 and nccl in [2.18, 2.20)"
    assert rule.holds({"nccl": "2.19.9", "driver": "525.60.13", "fabric": "roce"})
    assert not rule.holds({"nccl": "2.20.1", "driver": "525.60.13"})
    assert not rule.holds({"nccl": "2.19.9", "driver": "535.54"})
    assert rule.q <= 0.05


@pytest.mark.nightly
@pytest.mark.parametrize("noise_sd", [0.0, 2.0])
def test_intervals_hold_the_planted_lift(noise_sd: float) -> None:
    inside, rules = 0, 0
    for seed in range(20):
        named = [rule for rule in found(fleet(seed, noise_sd=noise_sd), seed) if "nccl in [2.18, 2.20)" in str(rule)]
        rules += len(named)
        inside += sum(rule.low <= 4.0 <= rule.high for rule in named if "driver < 535 " in str(rule))
        assert all(rule.low > 1.0 for rule in named)
    assert rules >= 15
    assert inside >= 0.75 * rules


@pytest.mark.nightly
def test_without_a_planted_rule_hardly_any_is_found() -> None:
    false = sum(bool(found(fleet(seed, lift=1.0, records=1000), seed)) for seed in range(60))
    assert false <= 7  # 5% of 60, and chance


def test_software_that_merely_runs_in_bad_strata_is_not_blamed() -> None:
    """Old drivers are found where everything fails; within a stratum they are as good as any."""
    rng = np.random.default_rng(7)
    strata = rng.integers(0, 40, 4000)
    bad = strata < 20
    old = rng.random(4000) < np.where(bad, 0.8, 0.1)
    records = Records(
        strata=strata,
        events=rng.poisson(np.where(bad, 2.0, 0.2)).astype(np.float64),
        exposure_node_hours=np.full(4000, 100.0),
        noise_variance=np.zeros(4000),
        versions={"driver": np.where(old, "525", "535").tolist()},
    )
    assert records.events[old].mean() > 2.0 * records.events[~old].mean()
    assert found(records) == ()
    assert found(replace(records, strata=strata % 2))[0].lift > 2.0  # what too coarse strata would have said


def test_no_condition_is_idle() -> None:
    """Leaves that together cover all of a setting, or all numbers, say nothing about it."""
    for seed in range(4):
        for rule in found(fleet(seed, noise_sd=2.0), seed):
            assert "inf" not in str(rule)
            assert "{hdr, ndr, roce}" not in str(rule)


def test_the_evidence_is_that_of_strata_held_out() -> None:
    records = fleet(1)
    (rule,) = found(records)
    everywhere = records.inside(rule.conditions)
    assert 0.3 * everywhere.sum() < rule.support_records < 0.7 * everywhere.sum()
    assert rule.failures < records.events[everywhere].sum()
    assert rule.support_node_hours < records.exposure_node_hours[everywhere].sum()


def test_settings_numbers_and_absent_components_make_rules() -> None:
    rng = np.random.default_rng(8)
    records = fleet(8, lift=1.0)
    fabric, ranks = np.array(records.settings["fabric"]), np.array(records.numbers["tensor_parallel"])
    plugin = np.where(rng.random(3000) < 0.5, "1.2", "")
    extra = np.where((fabric == "roce") & (ranks > 2.0), 5.0, 1.0) * np.where(plugin == "", 1.0, 2.5)
    records = replace(
        records,
        events=rng.poisson(0.005 * records.exposure_node_hours * extra).astype(np.float64),
        versions={**records.versions, "plugin": [text or None for text in plugin]},
    )
    said = " | ".join(map(str, found(records)))
    assert "fabric = roce" in said
    assert "tensor_parallel > 3" in said
    assert "plugin >= 1" in said


def test_the_depth_is_bounded() -> None:
    assert all(len(rule.conditions) == 1 for rule in found(fleet(2), max_depth=1))


def test_the_same_records_and_seed_give_the_same_rules() -> None:
    assert found(fleet(3, noise_sd=2.0), 5) == found(fleet(3, noise_sd=2.0), 5)


@pytest.mark.parametrize("strata", [1, 2])
def test_without_strata_to_test_on_or_failures_there_is_no_rule(strata: int) -> None:
    records = fleet(4, strata=strata)
    assert bool(found(records)) == (strata > 1)
    assert found(replace(records, events=np.zeros(3000))) == ()


def test_records_that_do_not_fit_are_refused() -> None:
    records = fleet(5)
    with pytest.raises(ValueError, match="one entry per record"):
        replace(records, settings={"fabric": ["hdr"]})
    with pytest.raises(ValueError, match="positive exposure"):
        replace(records, exposure_node_hours=np.zeros(3000))
