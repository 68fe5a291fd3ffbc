"""Attacks that must fail, each beside the honest run of the same parties under the same set-up.

Whoever attacks may use every key that its role holds: the provider signs what it likes, a member answers what it likes,
a stranger has keys of its own. Where an attack is not refused but bounded, or succeeds today, the test says so and
asserts what happens; `docs/privacy.md` lists the same under "Not promised".
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from crypto import voprf
from crypto.codec import decode, encode
from crypto.errors import (
    AlreadyAnswered,
    BadSignature,
    DecodeError,
    PeerFault,
    PlanRefused,
    QuotaExceeded,
)
from crypto.ids import EncodedElement, LeaseId, Signature, TenantId
from crypto.masking import MaskKey, Words, words_from_bytes, words_to_bytes
from crypto.messages import Contribution, Directory, EvaluationRequest, Ladder, Member, UnmaskRequest, UnmaskShare
from crypto.noise import from_ring
from crypto.plan import MaskTrustee, Plan
from crypto.signing import Signed, SigningKey
from crypto.verbs import Verb
from provider_server.leases import Lease
from provider_server.planning import PlanSettings
from provider_server.release import Release
from provider_server.rounds import Round
from provider_server.tenants import GridTenants, Silence, Why
from provider_server.week import federated_week
from simulation.federation import Federation, found
from simulation.local_grid import Deliver, LocalGrid, task_identity
from tenant_client.database import open_database
from tenant_client.descriptor import Descriptor, rungs
from tenant_client.flower_client import client_app
from tenant_client.journal import Failure
from tenant_client.tenant import StartedLease
from tenant_client.tokens import TokenSource
from tenant_client.trustee import Trustee, TrusteeLimits, TrusteeService
from tests.factories import (
    POLICY,
    TENANTS,
    WEEK,
    Cast,
    InsecureSilence,
    a_descriptor,
    a_failure,
    a_plan,
    a_round,
    a_unit,
    keys,
    plan_digest,
    signed,
)

EVERYBODY = tuple(range(TENANTS))
MASKING = (3, 4, 5)
LEASES = 4
secaggplus = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")  # a function of that name hides it
HIDDEN = 2**34  # a uniform word is nearer to zero once in 2^29; an open sum of these tests is below 2^20


# ---- the honest run ------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(cast: Cast) -> Cast:
    """Tenant n has n + 1 failures in the week, and nobody adds noise: a release shows exact counts."""
    for number in EVERYBODY:
        tenant = cast.tenant(number)
        units = [a_unit(lease, tenant=number) for lease in range(number + 1)]
        tenant.journal.add(units, [a_failure(unit) for unit in units])
    return cast


def collected(cast: Cast, plan: Plan, tenants: Sequence[int] = EVERYBODY) -> Round:
    """A round that the named tenants have answered."""
    round_ = a_round(plan)
    for tenant in tenants:
        round_.receive(cast.tenant(tenant, sampler=InsecureSilence()).contribute(round_.signed_plan))
    return round_


def shares(cast: Cast, request: bytes, trustees: Sequence[int] = MASKING) -> list[bytes]:
    return [cast.trustee(index).unmask(request) for index in trustees]


def honest_failures(cast: Cast, plan: Plan, tenants: Sequence[int] = EVERYBODY) -> int:
    """What an honest round releases of the table of pairs."""
    round_ = collected(cast, plan, tenants)
    return failures(plan, round_.unmask(shares(cast, round_.close())))


def failures(plan: Plan, total: Words) -> int:
    return round(float(from_ring(plan, total)[0].sum()))


def is_hidden(total: Words) -> bool:
    return bool(np.abs(total.astype(np.int64).astype(np.float64)).min() > HIDDEN)


def asking_for(plan: Plan, tenants: Sequence[int]) -> bytes:
    """The request of a provider that chooses the set as it likes."""
    return keys().provider.sign(UnmaskRequest(signed(plan), ids(tenants)))


def ids(tenants: Sequence[int]) -> tuple[TenantId, ...]:
    return tuple(sorted(keys().tenant_id(tenant) for tenant in tenants))


def test_the_honest_run_of_this_module_is_exact(busy: Cast) -> None:
    assert honest_failures(busy, a_plan(1)) == 1 + 2 + 3 + 4 + 5


# ---- a tenant both present and absent ------------------------------------------------------------------------------


def test_two_sets_for_one_round_are_refused_by_every_trustee(busy: Cast) -> None:
    """The difference of the two sums would be tenant 0 alone, with its own share of noise only."""
    plan = a_plan(1)
    round_ = collected(busy, plan)
    answers = shares(busy, round_.close())
    for index in MASKING:
        with pytest.raises(AlreadyAnswered, match="unmasked another set"):
            busy.trustee(index).unmask(asking_for(plan, EVERYBODY[1:]))
    assert failures(plan, round_.unmask(answers)) == 15


@pytest.mark.parametrize("told_without", [(3,), (4, 5)])
def test_two_sets_told_to_different_trustees_open_neither(busy: Cast, told_without: tuple[int, ...]) -> None:
    plan, honest = a_plan(1), a_plan(2, window=(168, 336))
    parts = [collected(busy, plan, tenants) for tenants in (EVERYBODY, EVERYBODY[1:])]
    requests = [round_.close() for round_ in parts]
    split = [busy.trustee(index).unmask(requests[index in told_without]) for index in MASKING]
    for round_ in parts:
        assert is_hidden(round_.unmask(split))
    for index in MASKING:  # and nobody changes its mind
        with pytest.raises(AlreadyAnswered):
            busy.trustee(index).unmask(requests[index not in told_without])
    assert honest_failures(busy, honest) == 0


@dataclass(frozen=True)
class Sloppy:
    """A request of the same form, without its rules."""

    LABEL: ClassVar[str] = UnmaskRequest.LABEL
    plan: bytes
    contributors: tuple[TenantId, ...]


def test_one_request_cannot_name_a_tenant_twice(busy: Cast) -> None:
    """Nor is there a second list, for the absent."""
    plan = a_plan(1)
    twice = Sloppy(signed(plan), (*ids(EVERYBODY), ids(EVERYBODY)[-1]))
    with pytest.raises(DecodeError, match="each is named once"):
        busy.trustee(3).unmask(keys().provider.sign(twice))
    assert honest_failures(busy, plan) == 15


def test_the_same_attack_opens_a_single_vector_of_flowers_own_protocol() -> None:
    """Why masks come from a committee (ADR 2): nodes of Flower 1.41 answer for nodes that are both active and dead."""
    secret = [1.0, -2.0]
    run = SecAggPlus({1: secret, 2: [3.0, 3.0], 3: [5.0, 6.0]})
    np.testing.assert_allclose(run.opened(victim=1), secret, atol=1e-3)


class SecAggPlus:
    """Flower's own nodes through the stages of SecAgg+, and a server that names everybody in both lists at the end."""

    AGREED: ClassVar[dict[str, int | float]] = {
        "sample_num": 3,
        "share_num": 3,
        "threshold": 2,
        "clipping_range": 8.0,
        "target_range": 1 << 16,
        "mod_range": 1 << 32,
        "max_weight": 1.0,
    }

    def __init__(self, vectors: dict[int, list[float]]) -> None:
        self._states = {number: secaggplus.SecAggPlusState() for number in vectors}
        for number, state in self._states.items():
            state.nid = number
        self._keys: dict[int, Any] = {
            number: secaggplus._setup(state, ConfigRecord({**self.AGREED})) for number, state in self._states.items()
        }
        keys_of_all = {str(number): [pair["pk1"], pair["pk2"]] for number, pair in self._keys.items()}
        dealt: dict[int, Any] = {
            number: secaggplus._share_keys(state, ConfigRecord({**keys_of_all}))
            for number, state in self._states.items()
        }
        self._sent = {number: self._masked(number, vector, dealt) for number, vector in vectors.items()}

    def _masked(self, number: int, vector: list[float], dealt: dict[int, Any]) -> list[Any]:
        inbox = [
            (source, text)
            for source, said in dealt.items()
            for to, text in zip(said["dsts"], said["ctxts"], strict=True)
            if to == number
        ]
        shares_for_it = ConfigRecord({"srcs": [each[0] for each in inbox], "ctxts": [each[1] for each in inbox]})
        update = ndarrays_to_parameters([np.array(vector)])
        said: Any = secaggplus._collect_masked_vectors(self._states[number], shares_for_it, 1, update)
        return [bytes_to_ndarray(part) for part in said["masked_params"]]

    def opened(self, victim: int) -> Any:
        """The victim's vector, from what the server saw and asked for: a sum was all it should have got."""
        both: Any = ConfigRecord({"active_nids": list(self._states), "dead_nids": list(self._states)})
        secaggplus.check_configs("unmask", both)  # Flower's own check has no objection
        answers: list[Any] = [secaggplus._unmask(state, both)["shares"] for state in self._states.values()]
        at = list(self._states).index(victim)
        seed = combine_shares([answer[at] for answer in answers])
        private = bytes_to_private_key(combine_shares([answer[at + len(self._states)] for answer in answers]))
        words = self._without(self._sent[victim], seed, 1)
        for other in set(self._states) - {victim}:
            pair = generate_shared_key(private, bytes_to_public_key(self._keys[other]["pk1"]))
            words = self._without(words, pair, 1 if victim > other else -1)
        clip, target = self.AGREED["clipping_range"], self.AGREED["target_range"]
        return (words[1] % self.AGREED["mod_range"]) * (2 * clip / target) - clip

    def _without(self, words: list[Any], seed: bytes, sign: int) -> list[Any]:
        masks = pseudo_rand_gen(seed, int(self.AGREED["mod_range"]), [part.shape for part in words])
        return [part - sign * mask for part, mask in zip(words, masks, strict=True)]


# ---- a second answer under one mask --------------------------------------------------------------------------------


def test_two_answers_under_one_mask_are_never_there_to_subtract(busy: Cast) -> None:
    """Between two askings something fails: the difference of the answers would tell, were there two."""
    plan = a_plan(1)
    tenant = busy.tenant(0, sampler=InsecureSilence())
    first = tenant.answer(Verb.CONTRIBUTION, signed(plan))
    another = a_unit(99)
    tenant.journal.add([another], [a_failure(another)])
    for asked in (tenant, busy.tenant(0)):  # the second one is a process of its own, and draws real noise
        assert asked.answer(Verb.CONTRIBUTION, signed(plan)) == first
        with pytest.raises(PlanRefused, match="answered for another plan"):
            asked.answer(Verb.CONTRIBUTION, signed(replace(plan, band_edges_hours=(0.0, 1e5), end_hour=167)))
    assert honest_failures(busy, plan) == 15


def test_a_second_plan_under_an_unmasked_round_opens_no_second_sum(busy: Cast) -> None:
    plan, second = a_plan(1), a_plan(1, epsilon=0.5)
    assert plan.round_id == second.round_id
    assert honest_failures(busy, plan) == 15
    for index in MASKING:
        with pytest.raises(AlreadyAnswered):
            busy.trustee(index).unmask(asking_for(second, EVERYBODY))


# ---- a contribution that is replayed -------------------------------------------------------------------------------


def test_an_old_contribution_is_worth_nothing_in_a_new_round(busy: Cast) -> None:
    old, new = a_plan(1), a_plan(2, window=(168, 336))
    replayed = busy.tenant(0, sampler=InsecureSilence()).contribute(signed(old))
    round_ = collected(busy, new, EVERYBODY[1:])
    said = decode(Contribution, decode(Signed, replayed).body)
    relabelled = replace(said, round_id=new.round_id, plan=plan_digest(signed(new)))
    stolen = encode(Signed(encode(relabelled), decode(Signed, replayed).signature))
    for attempt, refusal in ((replayed, PeerFault), (stolen, BadSignature)):
        with pytest.raises(refusal):
            round_.receive(attempt)
    assert round_.contributors == ids(EVERYBODY[1:])
    assert failures(new, round_.unmask(shares(busy, round_.close()))) == 0
    assert honest_failures(busy, old) == 15


def test_a_tenant_that_signs_its_old_cells_anew_spoils_the_sum_and_nobody_can_tell(busy: Cast) -> None:
    """Succeeds today, as any lie of a member does: masks of the old round stay in the sum, which is then random.

    Nothing is revealed, but the release is worthless and no check of the provider sees it.
    """
    old, new = a_plan(1), a_plan(2, window=(168, 336))
    said = decode(Contribution, decode(Signed, busy.tenant(0).contribute(signed(old))).body)
    round_ = collected(busy, new, EVERYBODY[1:])
    anew = replace(said, round_id=new.round_id, plan=plan_digest(signed(new)))
    round_.receive(keys().tenants[0][0].sign(anew))
    assert is_hidden(round_.unmask(shares(busy, round_.close())))


def test_the_same_contribution_twice_counts_once(busy: Cast) -> None:
    plan = a_plan(1)
    round_ = collected(busy, plan)
    for tenant in EVERYBODY:
        round_.receive(busy.tenant(tenant).contribute(round_.signed_plan))
    assert failures(plan, round_.unmask(shares(busy, round_.close()))) == 15


# ---- a public key that is swapped ----------------------------------------------------------------------------------


def test_a_plan_under_the_providers_own_mask_keys_is_refused_and_the_pinned_ones_are_not(busy: Cast) -> None:
    plan = a_plan(1)
    own = tuple(MaskTrustee(index, MaskKey.generate(os.urandom).public) for index in MASKING)
    for trustees in (own, (*plan.trustees[:2], own[2]), tuple(replace(own[0], index=index) for index in (6, 7, 8))):
        with pytest.raises(PlanRefused, match="not in the directory with these keys"):
            busy.tenant(0).answer(Verb.CONTRIBUTION, signed(replace(plan, trustees=trustees)))
    assert busy.tenant(0).ledger.charges() == []
    assert honest_failures(busy, plan) == 15


def test_a_trustee_under_two_numbers_is_in_no_directory() -> None:
    """One honest mask of three would otherwise be one mask twice; the wire refuses it for whoever pins it."""
    honest = keys().directory
    assert decode(Directory, encode(honest)) == honest
    first, *others = honest.trustees
    doubled = (first, *(replace(record, mask_key=first.mask_key) for record in others))
    with pytest.raises(ValueError, match="the same key of a trustee"):
        replace(honest, trustees=doubled)


def test_a_member_under_another_mask_key_spoils_the_sum_and_opens_nothing(busy: Cast, tmp_path: Path) -> None:
    """A trustee that pins a forged directory sums a mask that no tenant used."""
    plan = a_plan(1)
    first, *others = keys().directory.members
    swapped = replace(first, mask_key=MaskKey.generate(os.urandom).public)
    forged = replace(keys().directory, members=(swapped, *others))
    round_ = collected(busy, plan)
    request = round_.close()
    share, mask = keys().trustees[2]
    with closing(Trustee(share, mask, forged, tmp_path / "fooled.db", os.urandom)) as fooled:
        assert is_hidden(round_.unmask([fooled.unmask(request), *shares(busy, request, MASKING[1:])]))
    assert honest_failures(busy, plan) == 15


def test_a_verify_key_cannot_be_swapped_below_an_id(busy: Cast) -> None:
    """The id follows from the key, so that a forged entry is another tenant and the victim's name stays its own."""
    plan, attacker = a_plan(1), SigningKey.generate(os.urandom)
    first, *others = keys().directory.members
    forged = replace(keys().directory, members=(replace(first, verify_key=attacker.public), *others))
    round_ = Round(plan, keys().provider, forged)
    bound = plan.round_id, plan_digest(round_.signed_plan)
    with pytest.raises(BadSignature, match="not in the directory"):
        round_.receive(attacker.sign(Contribution(first.tenant, *bound, bytes(8 * plan.cells))))
    request = keys().provider.sign(UnmaskRequest(round_.signed_plan, tuple(sorted(m.tenant for m in forged.members))))
    with pytest.raises(BadSignature, match="not in the directory"):  # honest trustees pinned the honest directory
        busy.trustee(3).unmask(request)
    assert honest_failures(busy, plan) == 15


# ---- a plan that is forged -----------------------------------------------------------------------------------------


def forgeries(plan: Plan) -> dict[str, bytes]:
    """Plans that the provider did not sign."""
    genuine = decode(Signed, signed(plan))
    cheaper = encode(replace(plan, epsilon=plan.epsilon / 2))
    return {
        "unsigned": encode(Signed(genuine.body, Signature(bytes(64)))),
        "signed by a stranger": SigningKey.generate(os.urandom).sign(plan),
        "signed by a member": keys().tenants[1][0].sign(plan),
        "altered after signing": encode(Signed(cheaper, genuine.signature)),
    }


@pytest.mark.parametrize("how", forgeries(a_plan(1)))
def test_a_forged_plan_costs_no_budget_and_opens_no_round(busy: Cast, how: str) -> None:
    plan = a_plan(1)
    forged = forgeries(plan)[how]
    tenant = busy.tenant(0)
    with pytest.raises(BadSignature):
        tenant.answer(Verb.CONTRIBUTION, forged)
    with pytest.raises(BadSignature):
        busy.trustee(3).unmask(keys().provider.sign(UnmaskRequest(forged, ids(EVERYBODY))))
    assert (tenant.ledger.charges(), tenant.sent(plan.round_id)) == ([], None)
    assert honest_failures(busy, plan) == 15


# ---- rows made for one tenant --------------------------------------------------------------------------------------


def owned_by(plan: Plan, owners: int) -> Plan:
    """The plan, its first row of workloads claimed to have so many owners."""
    workload, *others = plan.dimensions
    return replace(plan, dimensions=(replace(workload, owners=(owners, *workload.owners[1:])), *others))


@pytest.mark.parametrize("owners", [0, 1, POLICY.owners_minimum - 1])
def test_a_row_with_too_few_owners_is_refused_with_its_plan(busy: Cast, owners: int) -> None:
    plan = a_plan(1)
    with pytest.raises(PlanRefused, match=f"has {owners} owners, the policy wants {POLICY.owners_minimum}"):
        busy.tenant(0).answer(Verb.CONTRIBUTION, signed(owned_by(plan, owners)))
    assert busy.tenant(0).ledger.charges() == []
    assert honest_failures(busy, plan) == 15


def test_a_row_of_one_owner_under_a_false_number_is_not_noticed(busy: Cast) -> None:
    """Succeeds today: the number of owners is the provider's signed word. The count has its noise as every cell has."""
    lie = owned_by(a_plan(1), 10**6)
    busy.tenant(0).answer(Verb.CONTRIBUTION, signed(lie))
    assert len(busy.tenant(0).ledger.charges()) == 1


# ---- guessing descriptors through the trustees ---------------------------------------------------------------------

QUOTA = TrusteeLimits(evaluations_per_epoch=60)


def tokens_of(
    cast: Cast, tenant: int, descriptor: Descriptor, trustees: Sequence[TrusteeService], epoch: int = 0
) -> Ladder:
    with closing(open_database(cast.root / f"guesses-{tenant}.db")) as database:
        source = TokenSource(keys().directory, trustees, keys().tenants[tenant][0], database, os.urandom)
        return source.ladder(rungs(descriptor, ()), epoch)


def test_an_accomplice_confirms_guesses_until_its_quota_is_spent_and_no_longer(cast: Cast) -> None:
    """Bounded, not prevented: a member may evaluate what it likes, so a right guess shows, and each guess costs."""
    trustees = cast.trustees(QUOTA)
    seen = tokens_of(cast, 0, a_descriptor("llama"), trustees)
    assert tokens_of(cast, 4, a_descriptor("llama"), trustees) == seen
    guesses = guesses_before_the_quota(cast, trustees)
    spent = [trustee.evaluations()[keys().tenant_id(4), 0] for trustee in trustees]
    assert max(spent) <= QUOTA.evaluations_per_epoch
    assert sum(spent) / 3 <= QUOTA.evaluations_per_epoch * 5 / 3
    assert guesses < 10  # of up to 22 evaluations each
    assert tokens_of(cast, 1, a_descriptor("llama"), trustees) == seen  # honest members keep their own quota


def guesses_before_the_quota(cast: Cast, trustees: Sequence[TrusteeService]) -> int:
    """How many further descriptors an accomplice has evaluated before the trustees refuse."""
    for guess in range(100):
        try:
            tokens_of(cast, 4, a_descriptor(f"guess {guess}"), trustees)
        except PeerFault as refusal:
            if "QuotaExceeded" not in refusal.what:
                raise
            return guess
    raise AssertionError("a quota of 60 evaluations did not end")


def test_nobody_but_a_member_has_guesses_evaluated(cast: Cast) -> None:
    """Neither the provider under its own key, nor a stranger under a name of its own or of a member."""
    trustee = cast.trustee(3, QUOTA)
    stranger = SigningKey.generate(os.urandom)
    own = Member(stranger.public, MaskKey.generate(os.urandom).public).tenant
    for signer, name in ((keys().provider, keys().tenant_id(0)), (stranger, keys().tenant_id(0)), (stranger, own)):
        with pytest.raises(BadSignature):
            trustee.evaluate(signer.sign(a_guess(name)))
    assert trustee.evaluations() == {}
    trustee.evaluate(keys().tenants[0][0].sign(a_guess(keys().tenant_id(0))))
    assert trustee.evaluations() == {(keys().tenant_id(0), 0): 1}


def test_a_member_that_names_many_epochs_gets_the_quota_of_each(cast: Cast) -> None:
    """Succeeds today: a trustee has no clock, and a blinded input does not show its epoch. Its meter shows it."""
    trustee = cast.trustee(3, TrusteeLimits(evaluations_per_epoch=1))
    key, name = keys().tenants[4][0], keys().tenant_id(4)
    for epoch in range(5):
        trustee.evaluate(key.sign(a_guess(name, epoch)))
        with pytest.raises(QuotaExceeded):
            trustee.evaluate(key.sign(a_guess(name, epoch)))
    assert len(trustee.evaluations()) == 5


def a_guess(name: TenantId, epoch: int = 0) -> EvaluationRequest:
    blinded = voprf.blind([b"a guess"], os.urandom).elements
    return EvaluationRequest(name, epoch, tuple(EncodedElement(element.encoded) for element in blinded))


# ---- a whole week over the grid, with a node that attacks ----------------------------------------------------------

Answerer = Callable[[Verb, bytes], bytes]


@pytest.fixture
def eight(tmp_path: Path) -> Iterator[Federation]:
    settings = PlanSettings(1.0, 1e-8, cohort_minimum=6, noise_shares=1, owners_minimum=2)
    policy = {"owners_minimum": 2, "cohort_minimum": 2, "colluding_share": 0.0}
    with closing(found(tmp_path, 8, settings, policy, InsecureSilence())) as federation:
        for number in range(8):
            happen(federation, number)
        yield federation


def happen(federation: Federation, number: int) -> None:
    """The tenant runs one workload on four leases, and the first of them fails."""
    provider, tenant = federation.provider, federation.tenants[number]
    labels = provider.context_labels(0, "a100 hall 3", 0)
    leases = [LeaseId(bytes([number, lease]) + bytes(14)) for lease in range(LEASES)]
    provider.record_leases(Lease(lease, tenant.id, 4, 1.0, 100.0, labels) for lease in leases)
    tenant.start_leases([StartedLease(lease, 1.0, labels, a_descriptor()) for lease in leases], provider.epoch(0))
    tenant.record([Failure(str(leases[0]), 30.0, 29.0, "nvlink_error")])


def a_week(
    federation: Federation, attackers: dict[int, Answerer] | None = None, deliver: Deliver = list
) -> tuple[Release, tuple[Silence, ...]]:
    """The honest tenants are nodes 0 to 7; attackers take the place of one, or come as further nodes."""
    answer: dict[int, Answerer] = {number: tenant.answer for number, tenant in enumerate(federation.tenants)}
    apps = {number: client_app(given) for number, given in (answer | (attackers or {})).items()}
    with task_identity():
        tenants = GridTenants(LocalGrid(apps, deliver=deliver), 0.0, 0.0)
        return federated_week(federation.provider, tenants, federation.trustees, WEEK), tenants.silences


def pairs(release: Release) -> float:
    return float(release.table("pairs").events.sum())


def contribution_in(message: bytes) -> Contribution:
    return decode(Contribution, decode(Signed, message).body)


def test_the_honest_week_of_this_module_counts_everybody(eight: Federation) -> None:
    release, silences = a_week(eight)
    assert (release.contributors, pairs(release), silences) == (8, 8.0, ())


def test_a_strangers_node_contributes_nothing(eight: Federation, caplog: pytest.LogCaptureFixture) -> None:
    """Under a name of its own, in the name of a member, or with the words of one."""
    key = SigningKey.generate(os.urandom)
    own = Member(key.public, MaskKey.generate(os.urandom).public).tenant

    def under(name: TenantId) -> Answerer:
        def answer(verb: Verb, payload: bytes) -> bytes:
            if verb is not Verb.CONTRIBUTION:
                raise DecodeError("says nothing")
            plan = decode(Plan, decode(Signed, payload).body)
            said = Contribution(name, plan.round_id, plan_digest(payload), b"\xff" * (8 * plan.cells))
            return key.sign(said)

        return answer

    strangers = {8: under(own), 9: under(eight.tenants[0].id), 10: eight.tenants[0].answer}
    with caplog.at_level(logging.WARNING, logger="provider_server.provider"):
        release, _ = a_week(eight, strangers)
    assert (release.contributors, pairs(release)) == (8, 8.0)
    assert sum("BadSignature" in record.getMessage() for record in caplog.records) == 2


def test_a_forged_plan_is_answered_by_the_name_of_an_error_alone(eight: Federation) -> None:
    stranger = SigningKey.generate(os.urandom)
    apps = {number: client_app(tenant.answer) for number, tenant in enumerate(eight.tenants)}
    with task_identity():
        tenants = GridTenants(LocalGrid(apps), 0.0, 0.0)
        assert list(tenants.ask(Verb.CONTRIBUTION, stranger.sign(a_plan(1)))) == []
    assert {(silence.why, silence.detail) for silence in tenants.silences} == {(Why.FAILED, "BadSignature")}
    release, _ = a_week(eight)
    assert pairs(release) == 8.0


def twice_and_backwards(messages: list[Message]) -> list[Message]:
    return [*reversed(messages), *messages]


def test_messages_delivered_twice_and_backwards_change_nothing(eight: Federation) -> None:
    release, silences = a_week(eight, deliver=twice_and_backwards)
    assert (release.contributors, pairs(release), silences) == (8, 8.0, ())


@pytest.mark.parametrize(
    "damage",
    [lambda message: b"", lambda message: message[:-1], lambda message: message + message, lambda message: message[1:]],
    ids=["empty", "truncated", "doubled", "beheaded"],
)
def test_a_damaged_answer_costs_its_sender_its_place_and_nobody_else(
    eight: Federation, damage: Callable[[bytes], bytes]
) -> None:
    victim = eight.tenants[3]

    def damaged(verb: Verb, payload: bytes) -> bytes:
        said = victim.answer(verb, payload)
        return damage(said) if verb is Verb.CONTRIBUTION else said

    release, _ = a_week(eight, {3: damaged})
    assert (release.contributors, pairs(release)) == (7, 7.0)


@pytest.mark.parametrize(
    "damage",
    [lambda message: message[:-1], lambda message: message + b"\0", lambda message: message[1:]],
    ids=["truncated", "extended", "beheaded"],
)
def test_a_damaged_question_is_refused_by_tenant_and_trustee_and_the_whole_one_answered(
    busy: Cast, damage: Callable[[bytes], bytes]
) -> None:
    plan = a_plan(1)
    with pytest.raises(DecodeError):
        busy.tenant(0).answer(Verb.CONTRIBUTION, damage(signed(plan)))
    with pytest.raises(DecodeError):
        busy.trustee(3).unmask(damage(asking_for(plan, EVERYBODY)))
    assert honest_failures(busy, plan) == 15


# ---- a member that lies about its counts ---------------------------------------------------------------------------


def adding(federation: Federation, liar: int, value: int) -> Answerer:
    """A member's answers, with `value` added to the first cell of its contribution, mod 2^64."""
    tenant = federation.tenants[liar]

    def answer(verb: Verb, payload: bytes) -> bytes:
        said = tenant.answer(verb, payload)
        if verb is not Verb.CONTRIBUTION:
            return said
        words = words_from_bytes(contribution_in(said).cells).copy()
        words[:1] += np.array([value], np.uint64)
        return tenant._signing_key.sign(replace(contribution_in(said), cells=words_to_bytes(words)))

    return answer


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        (2**64 - 1, -1 / 256),  # wraps to minus one in the ring, where a count is 256: no overflow, no loud failure
        (2**20, 4096.0),  # more failures than there are leases in the week
        (2**63, -(2.0**55)),  # the other half of the ring reads as negative
    ],
)
def test_a_lie_in_one_cell_stays_in_that_cell_and_is_not_noticed(
    eight: Federation, value: int, counts: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Succeeds today. The sum is off by exactly the lie, as the other cells are not; nothing bounds or reports it.

    Masked cells are uniform words, so no check can be made on a contribution. A ceiling on the released sum, which the
    provider could compute from its leases (F per job-week, plus noise), does not exist in this version.
    """
    with caplog.at_level(logging.WARNING):
        release, _ = a_week(eight, {2: adding(eight, 2, value)})
    assert release.contributors == 8
    assert float(release.table("pairs").events.reshape(-1)[0]) == 8.0 + counts
    assert release.table("hazard").events.sum() == 8.0
    assert "dropped" not in caplog.text
    bundle = eight.tenants[0].bundle()
    assert bundle is not None  # and findings built on the lie are published
    assert bundle.mismatches


# ---- a trustee that answers wrongly --------------------------------------------------------------------------------


def test_a_trustee_that_answers_for_another_opens_nothing(busy: Cast) -> None:
    """A share is not signed, so a wrong one is not named: it spoils the sum, which stays hidden."""
    plan = a_plan(1)
    round_ = collected(busy, plan)
    three, four, five = shares(busy, round_.close())
    posing = encode(replace(decode(UnmaskShare, three), trustee=5))
    with pytest.raises(PeerFault, match="one share of each"):
        round_.unmask([three, four, four])
    assert is_hidden(collected_again(busy, plan).unmask([three, four, posing]))
    assert failures(plan, round_.unmask([three, four, five])) == 15


def collected_again(cast: Cast, plan: Plan) -> Round:
    """The same round once more, from the contributions that tenants kept."""
    round_ = collected(cast, plan)
    round_.close()
    return round_


def test_masks_for_another_plan_of_the_round_open_nothing(busy: Cast) -> None:
    """The provider shows a trustee another plan than the tenants saw: other digest, other masks."""
    seen, shown = a_plan(1), a_plan(1, epsilon=0.5)
    round_ = collected(busy, seen)
    round_.close()
    wrong = busy.trustee(3).unmask(asking_for(shown, EVERYBODY))
    right = shares(busy, asking_for(seen, EVERYBODY), MASKING[1:])
    assert is_hidden(round_.unmask([wrong, *right]))
    with pytest.raises(AlreadyAnswered):
        busy.trustee(3).unmask(asking_for(seen, EVERYBODY))
