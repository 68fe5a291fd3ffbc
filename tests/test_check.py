"""Does this workload belong here: the verdict at its thresholds, its evidence, and a context that works."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from crypto.bundle import Bundle, HazardEntry, MismatchEntry
from crypto.ids import Token
from tenant_client.check import MISMATCH_PROBABILITY, WARNING_PROBABILITY, Check, Verdict, check
from tests.factories import labels, ladder, token

LEASE = labels(0, 0)


def context(number: int) -> Token:
    return Token(bytes.fromhex(labels(0, number)["context"]))


def entry(
    probability: float,
    place: int = 0,
    *,
    workload: Token | None = None,
    risk: tuple[float, float, float] = (2.0, 4.0, 8.0),
) -> MismatchEntry:
    low, ratio, high = risk
    return MismatchEntry(workload or ladder(0).subarchetype, context(place), probability, ratio, low, high, 12.0)


def hazard(place: int, band: str = "0") -> HazardEntry:
    level = Token(bytes.fromhex(labels(0, place)["context_level"]))
    return HazardEntry(level, band, 1.0, 0.5, 2.0)


def checked(*entries: MismatchEntry, hazards: Sequence[HazardEntry] = (), lease: dict[str, str] = LEASE) -> Check:
    return check(Bundle(7, 0, 168, (), entries, tuple(hazards), None), lease)


# ---- verdicts ------------------------------------------------------------------------------------------------------


def test_verdicts_are_the_exit_codes_of_the_command_line() -> None:
    assert [(verdict.name, int(verdict)) for verdict in Verdict] == [
        ("OK", 0),
        ("WARNING", 1),
        ("MISMATCH", 2),
        ("UNKNOWN", 3),
    ]


@pytest.mark.parametrize(
    ("probability", "verdict"),
    [
        (0.0, Verdict.OK),
        (math.nextafter(WARNING_PROBABILITY, 0), Verdict.OK),
        (WARNING_PROBABILITY, Verdict.WARNING),
        (math.nextafter(MISMATCH_PROBABILITY, 0), Verdict.WARNING),
        (MISMATCH_PROBABILITY, Verdict.MISMATCH),
        (1.0, Verdict.MISMATCH),
    ],
)
def test_the_verdict_changes_at_its_thresholds(probability: float, verdict: Verdict) -> None:
    found = checked(entry(probability))
    assert found.verdict is verdict
    assert found.evidence == entry(probability)


def test_the_reason_gives_size_interval_and_evidence() -> None:
    assert checked(entry(0.97)).reason == (
        "fails 4.0 times as often as expected (95% interval 2.0–8.0; probability of a mismatch 97%;"
        " 12 failures were expected)"
    )


def test_without_a_bundle_nothing_is_known() -> None:
    found = check(None, LEASE)
    assert (found.verdict, found.evidence, found.better_context, found.hazards) == (Verdict.UNKNOWN, None, None, ())
    assert found.reason == "no bundle has been received yet"


@pytest.mark.parametrize(
    "found",
    [
        checked(),
        checked(entry(1.0, place=1)),
        checked(entry(1.0, workload=token("another workload"))),
        checked(entry(1.0), lease={}),
        checked(entry(1.0), lease={name: value for name, value in LEASE.items() if name != "context"}),
    ],
    ids=["nothing", "another context", "another workload", "no labels", "no context"],
)
def test_what_the_bundle_does_not_say_is_unknown_and_not_fine(found: Check) -> None:
    assert (found.verdict, found.evidence, found.better_context) == (Verdict.UNKNOWN, None, None)
    assert found.reason == "bundle 7 knows nothing of this workload on this context"


def test_the_finest_rung_that_the_bundle_knows_decides() -> None:
    coarse = entry(1.0, workload=ladder(0).archetype)
    coarsest = entry(0.6, workload=ladder(0).family)
    assert checked(coarsest).verdict is Verdict.WARNING
    assert checked(coarsest, coarse).verdict is Verdict.MISMATCH
    assert checked(coarsest, coarse, entry(0.0)).verdict is Verdict.OK


# ---- a context that works ------------------------------------------------------------------------------------------


def test_the_context_whose_risk_is_surely_lowest_is_named() -> None:
    bad = entry(0.95, 0, risk=(2.0, 4.0, 8.0))
    good, better = entry(0.1, 1, risk=(0.5, 1.0, 2.0)), entry(0.1, 2, risk=(0.4, 1.1, 1.9))
    assert checked(bad, good, better).better_context == str(context(2))
    assert checked(better, good, bad).better_context == str(context(2))


def test_a_fine_context_needs_no_other() -> None:
    assert checked(entry(0.1), entry(0.0, 1, risk=(0.1, 0.2, 0.3))).better_context is None


def test_a_context_is_not_named_unless_its_risk_is_surely_below_this_one() -> None:
    bad = entry(0.95, risk=(2.0, 4.0, 8.0))
    assert checked(bad).better_context is None
    assert checked(bad, entry(0.1, 1, risk=(0.5, 1.0, 4.0))).better_context is None
    assert checked(bad, entry(0.1, 1, risk=(0.5, 1.0, math.nextafter(4.0, 0)))).better_context == str(context(1))


def test_a_context_that_is_itself_suspicious_is_not_recommended() -> None:
    worst = entry(1.0, 0, risk=(6.0, 9.0, 12.0))
    bad, doubtful = entry(0.95, 1, risk=(1.5, 2.0, 2.5)), entry(WARNING_PROBABILITY, 2, risk=(0.9, 1.5, 2.4))
    assert checked(worst, bad, doubtful).better_context is None
    assert checked(worst, bad, doubtful, entry(0.2, 3, risk=(0.8, 1.2, 3.0))).better_context == str(context(3))


def test_a_context_that_suits_another_workload_is_not_recommended() -> None:
    other = entry(0.0, 1, workload=token("another workload"), risk=(0.1, 0.2, 0.3))
    assert checked(entry(1.0), other).better_context is None


# ---- hazards -------------------------------------------------------------------------------------------------------


def test_the_hazards_of_the_leases_own_context_and_level_come_along() -> None:
    own = (hazard(0, "0"), hazard(0, "1"))
    for entries in ((), (entry(0.0),)):
        assert checked(*entries, hazards=(hazard(1), *own)).hazards == own
    assert checked(hazards=own, lease={}).hazards == ()


def test_a_check_changes_nothing_it_reads() -> None:
    given = entry(1.0)
    assert checked(given) == checked(replace(given))
