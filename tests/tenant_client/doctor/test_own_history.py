"""A bundle joined with a tenant's own history: calibrated, nothing twice, and unchanged where nothing is known."""

import hashlib
import json
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from crypto.ids import RoundId, Token
from federation.protocol.bundle import Bundle, HazardEntry, MismatchEntry, PairJudgement
from federation.protocol.check import Check, check
from federation.protocol.evidence import Evidence, PairEvidence
from federation.protocol.known_rates import experience
from federation.protocol.life_table import Dimension, Floats, LifeTable
from federation.protocol.ratio_likelihood import LOG_RATIOS, below
from federation.protocol.service_messages import CheckVerdict
from provider_server.fleet.analysis.mismatch import Mismatches, find_mismatches
from provider_server.fleet.learning.evidence import evidence_of
from tenant_client.doctor.advice.own_history import Joined, join
from tenant_client.doctor.records.attempts import Attempts, AttemptState
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Failure
from tenant_client.doctor.records.own_leases import OwnLease
from tenant_client.program.admission.decision import AdmissionMode, Desk
from tenant_client.program.cli import app
from tests.support.changing import replace
from tests.support.federations import WEEKS, Grounds, begin, lease_id
from tests.support.schemas import held

HOURS = 100.0
RATE = 1e-3  # failures per node-hour of an average workload


def token(name: str) -> Token:
    return Token(hashlib.sha256(name.encode()).digest()[: Token.length])


def a_lease(workload: int, context: int, nodes: int, failures: int) -> OwnLease:
    """Of 100 hours."""
    names = {"subarchetype": f"w{workload}", "context": f"c{context}", "context_level": f"c{context} l0"}
    return OwnLease({key: str(token(name)) for key, name in names.items()}, nodes, 0.0, HOURS, failures)


# ---- a bundle of one pair ------------------------------------------------------------------------------------------

FLAT = below(np.zeros(len(LOG_RATIOS)))
NEAR_ONE = below(-0.5 * (LOG_RATIOS / 0.1) ** 2)  # what all contributions say: as expected


def a_bundle(log_likelihood: bytes = FLAT, expected: float = 12.0, lease_shape: float = 0.0) -> Bundle:
    """A pair that is worse with a probability of 4% before anything is known of it."""
    prior = np.logaddexp(np.log(0.96) - 0.5 * (LOG_RATIOS / 0.2) ** 2, np.log(0.04) - np.abs(LOG_RATIOS - 1.5))
    evidence = Evidence(
        (RoundId(bytes(16)),),
        tuple(prior.tolist()),
        lease_shape,
        (1000 * RATE,),
        (PairEvidence(1.0, 0.2, 1000 * RATE, log_likelihood),),
    )
    entry = MismatchEntry(
        token("w0"), token("c0"), 0.04, 1.0, 0.5, 4.0, expected, PairJudgement.TOO_LITTLE, alternatives=()
    )
    level = HazardEntry(token("c0 l0"), "0", 1.0, 0.5, 2.0)
    return Bundle(3, 0, 100, (), (entry,), (level,), None, band_edges_hours=(0.0, 1000.0), evidence=evidence)


def the_entry(joined: Joined) -> MismatchEntry:
    (entry,) = joined.bundle.mismatches
    return entry


def test_own_failures_make_a_mismatch_of_what_the_bundle_does_not_know() -> None:
    joined = join(a_bundle(), [a_lease(0, 0, 20, 12)], [])  # 2 were expected
    entry = the_entry(joined)
    assert entry.judgement is PairJudgement.WORSE
    assert entry.risk_ratio_low < 6.0 < entry.risk_ratio_high
    assert check(joined.bundle, a_lease(0, 0, 1, 0).labels).verdict is CheckVerdict.MISMATCH


def test_own_hours_without_a_failure_acquit() -> None:
    entry = the_entry(join(a_bundle(), [a_lease(0, 0, 100, 0)], []))  # 10 were expected
    assert entry.judgement is PairJudgement.NOT_WORSE
    assert entry.probability_worse < 0.001


def test_failures_of_one_bad_lease_say_less_where_leases_differ() -> None:
    one_bad = [a_lease(0, 0, 5, 14), *(a_lease(0, 0, 5, 0) for _ in range(5))]
    alike, differ = (the_entry(join(a_bundle(lease_shape=shape), one_bad, [])) for shape in (0.0, 0.3))
    assert differ.probability_worse < 0.5 * alike.probability_worse


@pytest.mark.parametrize(("others", "heard"), [(2.05, True), (1.95, False)])
def test_above_half_of_the_exposure_the_evidence_is_not_heard(others: float, heard: bool) -> None:  # noqa: FBT001
    """6 of the failures that were expected of all are the tenant's own."""
    own, answered = [a_lease(0, 0, 60, 18)], [(0.0, HOURS)]
    said = [the_entry(join(a_bundle(one, others * 6.0), own, answered)).risk_ratio for one in (FLAT, NEAR_ONE)]
    assert (said[0] != said[1]) == heard


def test_what_was_not_contributed_takes_nothing_out() -> None:
    own, bundle = [a_lease(0, 0, 60, 18)], a_bundle(NEAR_ONE)
    told, half, never = (the_entry(join(bundle, own, one)).risk_ratio for one in ([(0, 100)], [(0, 50)], []))
    assert told > half > never


def test_without_own_leases_under_its_tokens_a_bundle_stays_as_it_is() -> None:
    bundle = a_bundle()
    strange = replace(a_lease(0, 0, 4, 3), labels={})
    assert join(bundle, [strange], []).bundle is bundle
    assert join(replace(bundle, evidence=None), [a_lease(0, 0, 4, 3)], []).bundle.mismatches == bundle.mismatches


def test_a_pair_that_the_bundle_does_not_have_is_judged_by_its_own_history() -> None:
    joined = join(a_bundle(), [a_lease(7, 0, 20, 30), a_lease(7, 1, 50, 0)], [])
    verdicts = [check(joined.bundle, a_lease(7, context, 1, 0).labels).verdict for context in (0, 1)]
    assert verdicts == [CheckVerdict.MISMATCH, CheckVerdict.OK]


# ---- many pairs, learnt by the provider's own model ----------------------------------------------------------------

WORKLOADS, CONTEXTS = 30, 10
DIMENSIONS = (
    Dimension("workload", tuple(str(token(f"w{n}")) for n in range(WORKLOADS))),
    Dimension("context", tuple(str(token(f"c{n}")) for n in range(CONTEXTS))),
)


def learnt(found: Mismatches, explained: Floats) -> Bundle:
    """The bundle that says what was found."""
    cells = found.workload, found.context
    hours = explained[cells] / RATE
    evidence = evidence_of(found, explained[cells], hours, np.full(CONTEXTS, RATE))
    entries = (
        MismatchEntry(
            token(f"w{found.workload[at]}"),
            token(f"c{found.context[at]}"),
            float(min(1.0, found.probability_worse[at])),
            float(found.ratio[at]),
            float(found.ratio_low[at]),
            float(found.ratio_high[at]),
            float(found.expected[at]),
            PairJudgement.TOO_LITTLE,
            (),
        )
        for at in range(len(found.ratio))
    )
    hazards = (HazardEntry(token(f"c{n} l0"), "0", 1.0, 0.5, 2.0) for n in range(CONTEXTS))
    return Bundle(1, 0, 100, (), tuple(entries), tuple(hazards), None, (0.0, 1000.0), evidence=evidence)


@cache
def a_world(share: float) -> tuple[Floats, list[OwnLease], Bundle]:
    """True ratios, the leases of a tenant with that share of the exposure of every pair, and what is learnt of all."""
    rng = np.random.default_rng(7)
    truth = rng.lognormal(0.0, 0.6, (WORKLOADS, CONTEXTS))
    nodes = rng.integers(100, 400, truth.shape)  # of all tenants, for 100 hours
    own_nodes = np.round(share * nodes).astype(int)
    own = rng.poisson(truth * RATE * HOURS * own_nodes)
    others = rng.poisson(truth * RATE * HOURS * (nodes - own_nodes))
    explained = np.asarray(RATE * HOURS * nodes, np.float64)
    events, none = np.asarray(own + others, np.float64), np.zeros(truth.shape)
    found = find_mismatches(LifeTable(DIMENSIONS, events, explained, none, none))
    leases = [a_lease(w, c, int(own_nodes[w, c]), int(own[w, c])) for w, c in np.ndindex(WORKLOADS, CONTEXTS)]
    return truth, leases, learnt(found, explained)


def covered(share: float, *, naive: bool) -> float:
    """Of that tenant's intervals, those that hold the truth; `naive` forgets what it contributed."""
    truth, leases, bundle = a_world(share)
    entries = join(bundle, leases, [] if naive else [(0.0, HOURS)]).bundle.mismatches
    held = [one.risk_ratio_low <= true <= one.risk_ratio_high for one, true in zip(entries, truth.flat, strict=True)]
    return float(np.mean(held))


@pytest.mark.parametrize(
    "share", [0.8, *(pytest.param(share, marks=pytest.mark.nightly) for share in (0.5, 0.4, 0.05))]
)
def test_intervals_of_a_tenant_with_much_of_the_exposure_hold_what_they_should(share: float) -> None:
    assert 0.90 <= covered(share, naive=False) <= 0.98


def test_who_joins_all_evidence_counts_its_own_twice_and_is_too_sure() -> None:
    assert covered(0.8, naive=True) < 0.90


# ---- the verb --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tenants with the same bundle and leases of 4 nodes: those of the first failed every 5 hours, of 100."""
    root = tmp_path_factory.mktemp("histories")
    with Grounds.founded(root, 2).opened(root) as parties:
        for number, tenant in enumerate(parties.tenants):
            begin(parties, number)
            units = tenant.journal.units()
            tenant.journal.size((unit.unit, 4) for unit in units)
            with closing(open_database(root / "tenants" / f"{number:03d}" / "tenant.db")) as connection:
                for unit in units:
                    ended_s = 3600 * (unit.start_h + 100)
                    attempt = Attempts(connection).begin(unit.unit, 3600 * unit.start_h)
                    Attempts(connection).end(unit.unit, attempt, AttemptState.SUCCEEDED, ended_s)
            ages = range(5, 100, 5) if number == 0 else ()
            tenant.record(Failure(one.unit, one.start_h + age, age, "nvlink_error") for one in units for age in ages)
            workload, context, level = (
                Token.fromhex(units[0].labels[name]) for name in ("subarchetype", "context", "context_level")
            )
            bundle = a_bundle()
            (entry,), (hazard,) = bundle.mismatches, bundle.hazards
            own = replace(entry, workload=workload, context=context), replace(hazard, context_level=level)
            signed = replace(bundle, number=number, mismatches=own[:1], hazards=own[1:])
            tenant.accept(parties.publisher.issue(signed))
    return root / "tenants"


def asked(homes: Path, number: int, *options: str) -> tuple[int, str]:
    """The exit code and the words of a check by a tenant of its first lease."""
    home = homes / f"{number:03d}"
    lease = str(lease_id(number, WEEKS[0], 0))
    done = CliRunner().invoke(app, ["check", lease, "--home", str(home), *options])
    return done.exit_code, done.output


def test_a_check_counts_own_failures_and_says_how_many(homes: Path) -> None:
    code, said = asked(homes, 0)
    assert code == CheckVerdict.MISMATCH
    assert "of these, yours: 38 failures on 2 leases, 0.8 expected" in said
    view = held("pharoah-tenant check fit", asked(homes, 0, "--json")[1])
    assert view["own"] == {"leases": 2, "failures": 38.0, "expected": pytest.approx(0.8), "share": 0.0}


def test_the_default_gate_answers_alike_under_two_histories(homes: Path) -> None:
    failed, never = (asked(homes, number, "--gate") for number in (0, 1))
    assert failed[0] == never[0] == CheckVerdict.OK
    assert failed[1] == never[1].replace("bundle 1", "bundle 0")
    assert asked(homes, 0)[0] != asked(homes, 1)[0]  # what the gate does not tell


def admitted(homes: Path, number: int) -> dict[str, Any]:
    """What the webhook answers about a pod that will run the workload of a tenant's first lease."""
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    meta = {"annotations": {"pharoah.dev/like": str(lease_id(number, WEEKS[0], 0))}}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    pod = {"metadata": meta, "spec": {"containers": [container]}}
    request = {"uid": "u", "kind": kind, "operation": "CREATE", "object": pod}
    told = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    desk = Desk(homes / f"{number:03d}", AdmissionMode.REQUIRE, ("nvidia.com/",))
    answer: dict[str, Any] = json.loads(desk.answer(json.dumps(told).encode()))["response"]
    return answer


def test_the_default_admission_answers_alike_under_two_histories(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, never = (admitted(homes, number) for number in (0, 1))
    assert failed == never == {"uid": "u", "allowed": True}
    monkeypatch.setenv("PHAROAH_DECISIONS_OWN_HISTORY", "true")
    failed, never = (admitted(homes, number) for number in (0, 1))
    assert "patch" in failed  # what the default does not tell
    assert never == {"uid": "u", "allowed": True}


def test_an_owner_can_let_own_history_into_the_gate(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHAROAH_DECISIONS_OWN_HISTORY", "true")
    assert [asked(homes, number, "--gate")[0] for number in (0, 1)] == [CheckVerdict.MISMATCH, CheckVerdict.OK]


def test_own_history_is_never_joined_online(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's answer is shown as it came, whatever the owner lets in elsewhere."""
    monkeypatch.setenv("PHAROAH_DECISIONS_OWN_HISTORY", "true")
    online = Check.of(7, None, ())
    monkeypatch.setattr("tenant_client.program.verbs.judging._asked", lambda home, labels: online)
    for number in (0, 1):
        code, said = asked(homes, number, "--online")
        assert code == CheckVerdict.UNKNOWN
        assert "of these, yours" not in said
        assert "expect 0.28 failures in 1,000 node-hours" in said
        assert ": by public experience, not yet by yours" in said


def test_what_a_lease_may_expect_rests_on_other_fleets_until_own_failures_say_more(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the bundle has a rate of the hardware; no verdict comes of it."""
    monkeypatch.setattr("tenant_client.program.verbs.check.judged", lambda *_: (Check.of(7, None, ()), None))
    failed, never = (held("pharoah-tenant check fit", asked(homes, number, "--json")[1]) for number in (0, 1))
    gated = held("pharoah-tenant check fit", asked(homes, 0, "--gate", "--json")[1])
    assert failed["verdict"] == never["verdict"] == CheckVerdict.UNKNOWN
    assert 0.0 < failed["public_share"] < 1.0 == gated["public_share"]
    assert never["first_rate"]["rate"] < gated["first_rate"]["rate"] < failed["first_rate"]["rate"]
    assert "% by public experience, not yet by yours" in asked(homes, 0)[1]


def test_a_rate_of_the_bundle_goes_before_and_says_how_little_may_rest_on_others(homes: Path) -> None:
    view = held("pharoah-tenant check fit", asked(homes, 0, "--json")[1])
    bounds = [(one["rate_low"], one["rate_high"]) for one in view["hazards"]]
    assert view["first_rate"] is None
    assert view["public_share"] == min(experience().share_behind(*each) for each in bounds)
