"""Does this workload belong here: the verdict at its thresholds, its evidence, and a context that works."""

from collections.abc import Sequence
from typing import Any

import pytest

from crypto.ids import Token
from federation.protocol.bundle import Bundle, ContextName, HazardEntry, MismatchEntry, PairJudgement
from federation.protocol.check import ANYTHING, Check, check
from federation.protocol.service_messages import CheckVerdict
from tests.support.changing import replace
from tests.support.factories import labels, ladder, token

LEASE = labels(0, 0)


def context(number: int) -> Token:
    return Token(bytes.fromhex(labels(0, number)["context"]))


def entry(
    probability: float,
    place: int = 0,
    *,
    workload: Token | None = None,
    judgement: PairJudgement = PairJudgement.TOO_LITTLE,
    better: Sequence[int] = (),
) -> MismatchEntry:
    own, other = workload or ladder(0).subarchetype, tuple(context(number) for number in better)
    return MismatchEntry(own, context(place), probability, 4.0, 2.0, 8.0, 12.0, judgement, other)


def mismatch(**more: Any) -> MismatchEntry:
    return entry(1.0, judgement=PairJudgement.WORSE, **more)


def hazard(place: int, band: str = "0") -> HazardEntry:
    level = Token(bytes.fromhex(labels(0, place)["context_level"]))
    return HazardEntry(level, band, 1.0, 0.5, 2.0)


def checked(*entries: MismatchEntry, hazards: Sequence[HazardEntry] = (), lease: dict[str, str] = LEASE) -> Check:
    return check(Bundle(7, 0, 168, (), entries, tuple(hazards), None), lease)


# ---- verdicts ------------------------------------------------------------------------------------------------------


def test_verdicts_are_the_exit_codes_of_the_command_line() -> None:
    assert [(verdict.name, int(verdict)) for verdict in CheckVerdict] == [
        ("OK", 0),
        ("WARNING", 1),
        ("MISMATCH", 2),
        ("UNKNOWN", 3),
    ]


@pytest.mark.parametrize(
    ("probability", "judgement", "verdict"),
    [
        (0.0, PairJudgement.NOT_WORSE, CheckVerdict.OK),
        (0.2, PairJudgement.TOO_LITTLE, CheckVerdict.OK),
        (0.9, PairJudgement.TOO_LITTLE, CheckVerdict.OK),
        (0.04, PairJudgement.SUSPECTED, CheckVerdict.WARNING),
        (0.9, PairJudgement.SUSPECTED, CheckVerdict.WARNING),
        (1.0, PairJudgement.CONFOUNDED, CheckVerdict.WARNING),
        (0.0, PairJudgement.CONFOUNDED, CheckVerdict.WARNING),
        (0.9, PairJudgement.WORSE, CheckVerdict.MISMATCH),
        (0.5, PairJudgement.WORSE, CheckVerdict.MISMATCH),
    ],
)
def test_the_verdict_is_the_judgement_of_the_bundle(
    probability: float, judgement: PairJudgement, verdict: CheckVerdict
) -> None:
    found = checked(entry(probability, judgement=judgement))
    assert found.verdict is verdict
    assert found.evidence == entry(probability, judgement=judgement)


def test_fine_for_want_of_evidence_is_said_so() -> None:
    weak, strong = checked(entry(0.2)), checked(entry(0.0, judgement=PairJudgement.NOT_WORSE))
    assert (weak.verdict, weak.weak_evidence, weak.word) == (CheckVerdict.OK, True, "ok, weak evidence")
    assert (strong.verdict, strong.weak_evidence, strong.word) == (CheckVerdict.OK, False, "ok")
    assert not checked(mismatch()).weak_evidence
    assert checked().word == "unknown"


def test_contexts_have_the_names_that_the_bundle_tells() -> None:
    told = Bundle(7, 0, 168, (), (), (), None, context_names=(ContextName(context(1), "H100, hall B"),))
    found = checked(mismatch(better=[1]))
    assert (found.context_name, found.better_context_name) == ("", "")
    named = found.named(told.names, str(context(0)))
    assert (named.context_name, named.better_context_name) == ("", "H100, hall B")
    with pytest.raises(ValueError, match="one name"):
        Bundle(7, 0, 168, (), (), (), None, context_names=told.context_names * 2)


def test_the_reason_gives_size_interval_and_evidence() -> None:
    said = (
        "fails 4.0 times as often as expected (its own counts alone: 2.0–8.0 at 95%, 12 failures were expected;"
        " among all pairs, probability that it is worse: 97%)"
    )
    assert checked(entry(0.97, judgement=PairJudgement.WORSE)).reason == said
    assert checked(entry(0.97, judgement=PairJudgement.CONFOUNDED)).reason.startswith(
        f"{said}, but script errors are as frequent too"
    )
    assert checked(entry(0.97, judgement=PairJudgement.SUSPECTED)).reason.startswith(
        f"{said}; not certain: use another hardware group"
    )
    assert checked(entry(0.97)).reason == f"{said}; too few failures expected to call this normal"


def test_what_leaves_fiftyfold_open_is_unknown_and_not_fine() -> None:
    """The first release of an idle federation: next to nothing was expected, and nothing failed."""
    idle = replace(entry(0.03), risk_ratio=1.0, risk_ratio_low=0.1, expected_failures=0.01)
    nearly, anything = (checked(replace(idle, risk_ratio_high=high)) for high in (ANYTHING - 0.1, ANYTHING))
    assert (nearly.verdict, nearly.word) == (CheckVerdict.OK, "ok, weak evidence")
    assert (anything.verdict, anything.word, anything.weak_evidence) == (CheckVerdict.UNKNOWN, "unknown", False)
    assert anything.reason.endswith("too few failures expected to call this normal")
    doubted = replace(idle, risk_ratio_high=90.0, judgement=PairJudgement.SUSPECTED)
    assert checked(doubted).verdict is CheckVerdict.WARNING


def test_without_a_bundle_nothing_is_known() -> None:
    found = check(None, LEASE)
    assert (found.verdict, found.evidence, found.better_context, found.hazards) == (
        CheckVerdict.UNKNOWN,
        None,
        None,
        (),
    )
    assert found.reason == "no report received yet"


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
    assert (found.verdict, found.evidence, found.better_context) == (CheckVerdict.UNKNOWN, None, None)
    assert found.reason == "report 7 has no evidence about this workload on this hardware group"


def test_the_finest_rung_that_the_bundle_knows_decides() -> None:
    coarse = mismatch(workload=ladder(0).archetype)
    coarsest = entry(0.6, workload=ladder(0).family, judgement=PairJudgement.SUSPECTED)
    assert checked(coarsest).verdict is CheckVerdict.WARNING
    assert checked(coarsest, coarse).verdict is CheckVerdict.MISMATCH
    assert checked(coarsest, coarse, entry(0.0)).verdict is CheckVerdict.OK


# ---- a context that works ------------------------------------------------------------------------------------------


def test_the_first_alternative_of_the_bundle_is_named() -> None:
    assert checked(mismatch(better=(2, 1))).better_context == str(context(2))
    assert checked(entry(0.6, judgement=PairJudgement.SUSPECTED, better=(1,))).better_context == str(context(1))
    assert checked(mismatch()).better_context is None


def test_a_fine_context_needs_no_other() -> None:
    assert checked(entry(0.1, better=(1,))).better_context is None


# ---- hazards -------------------------------------------------------------------------------------------------------


def test_the_hazards_of_the_leases_own_context_and_level_come_along() -> None:
    own = (hazard(0, "0"), hazard(0, "1"))
    for entries in ((), (entry(0.0),)):
        assert checked(*entries, hazards=(hazard(1), *own)).hazards == own
    assert checked(hazards=own, lease={}).hazards == ()


def test_a_check_changes_nothing_it_reads() -> None:
    given = entry(1.0)
    assert checked(given) == checked(replace(given))
