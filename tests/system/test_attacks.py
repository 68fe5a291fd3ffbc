"""Attacks that must fail, each beside the honest run of the same parties under the same set-up.

Whoever attacks may use every key that its role holds: the provider signs what it likes, a member answers what it likes,
a stranger has keys of its own. Where an attack is not refused but bounded, or succeeds today, the test says so and
asserts what happens; `docs/privacy.md` lists the same under "Not promised".
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message as FlowerMessage
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from crypto import voprf
from crypto.codec import Message, decode, digest, encode
from crypto.errors import (
    AlreadyAnswered,
    BadSignature,
    CohortTooSmall,
    DecodeError,
    Equivocation,
    MemberRefused,
    OutOfOrder,
    PeerFault,
    PlanRefused,
    QuotaExceeded,
    TooFewOwners,
)
from crypto.ids import Digest, EncodedElement, LeaseId, Nonce, Signature, TenantId, Token
from crypto.masking import MaskKey, Words, add_words, words_from_bytes, words_to_bytes
from crypto.signing import Signed, SigningKey, name_of, open_signed, reopened
from federation.protocol.directory import DirectoryEntry, Fork, Member, TrustChanged, UnknownHead, next_entry
from federation.protocol.noise import from_ring
from federation.protocol.plan import MaskTrustee, Plan
from federation.protocol.queries import Query
from federation.protocol.round_messages import (
    Contribution,
    ContributionHeader,
    DirectoryUpdate,
    Endorsement,
    EvaluationRequest,
    Ladder,
    Ownership,
    UnmaskCall,
    UnmaskRequest,
    UnmaskShare,
)
from provider_server.fleet.leases import Lease
from provider_server.fleet.release import Release
from provider_server.rounds.grouping import PoisonedRound, TenantScores
from provider_server.rounds.network.grid_tenants import GridTenants, Silence, Why
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.publisher import Publisher
from provider_server.rounds.round import Round
from provider_server.rounds.week import federated_week
from simulation.run.federation import Federation, found
from simulation.run.local_grid import Deliver, LocalGrid, local_task
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Failure
from tenant_client.doctor.workload.descriptor import Descriptor, rungs
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.tenant import StartedLease
from tenant_client.rounds.tokens import TokenSource, TrusteeService
from tests.support.changing import replace
from tests.support.factories import (
    POLICY,
    TENANTS,
    WEEK,
    WEEKS_PER_EPOCH,
    Cast,
    InsecureSilence,
    a_descriptor,
    a_failure,
    a_lease,
    a_plan,
    a_round,
    a_unit,
    all_leases,
    close,
    endorse_all,
    forged_contribution,
    header_of,
    keys,
    ownership,
    ownerships,
    plan_digest,
    share_all,
    signed,
)
from tests.support.plans import InsecureSeeded
from trustee.meter import EpochNotCurrent
from trustee.trustee import TrusteeLimits

EVERYBODY = tuple(range(TENANTS))
MASKING = (3, 4, 5)
QUORUM = (1, *MASKING)
LEASES = 4
WEEKLY: dict[str, Any] = {"windows": tuple(range(1, 14)), "weeks_per_epoch": 13}
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
    """A round that the named tenants have answered, in a store of its own."""
    round_ = a_round(plan, cast.store().rounds)
    for tenant in tenants:
        round_.receive(cast.tenant(tenant, sampler=InsecureSilence()).contribute(round_.signed_plan))
    return round_


def opened(cast: Cast, round_: Round) -> Words:
    """The sum of a round that honest trustees endorse and unmask."""
    close(round_)
    trustees = {index: cast.trustee(index) for index in QUORUM}
    endorse_all(round_, trustees)
    share_all(round_, trustees)
    return add_words(round_.open())


def honest_failures(cast: Cast, plan: Plan, tenants: Sequence[int] = EVERYBODY) -> int:
    """What an honest round releases of the table of pairs."""
    return failures(plan, opened(cast, collected(cast, plan, tenants)))


def failures(plan: Plan, total: Words) -> int:
    return round(float(from_ring(plan, total)[0].sum()))


def is_hidden(total: Words) -> bool:
    return bool(np.abs(total.astype(np.int64).astype(np.float64)).min() > HIDDEN)


def asking_for(plan: Plan, tenants: Sequence[int], said: Sequence[bytes] | None = None) -> bytes:
    """The request of a provider that chooses the set, and the words of owners, as it likes."""
    shown = ownerships(epoch=plan.epoch) if said is None else said
    return keys().provider.sign(UnmaskRequest(signed(plan), (headers(plan, tenants),), tuple(shown)))


def headers(plan: Plan, tenants: Sequence[int]) -> tuple[bytes, ...]:
    """What tenants sign of some contribution to a plan, in order."""
    return tuple(keys().tenants[tenant][0].sign(a_header(plan, tenant)) for tenant in sorted(tenants, key=ids_of))


def a_header(plan: Plan, tenant: int) -> ContributionHeader:
    nonce, named = Nonce(bytes([tenant]) * 16), plan_digest(signed(plan))
    return ContributionHeader(keys().tenant_id(tenant), plan.round_id, named, plan.start_hour, nonce, Digest(bytes(32)))


def ids_of(tenant: int) -> TenantId:
    return keys().tenant_id(tenant)


def ids(tenants: Sequence[int]) -> tuple[TenantId, ...]:
    return tuple(sorted(keys().tenant_id(tenant) for tenant in tenants))


def test_the_honest_run_of_this_module_is_exact(busy: Cast) -> None:
    assert honest_failures(busy, a_plan(1)) == 1 + 2 + 3 + 4 + 5


# ---- a tenant both present and absent ------------------------------------------------------------------------------


def test_two_sets_for_one_round_are_refused_by_every_trustee(busy: Cast) -> None:
    """The difference of the two sums would be tenant 0 alone, with its own share of noise only."""
    plan = a_plan(1)
    round_ = collected(busy, plan)
    assert failures(plan, opened(busy, round_)) == 15
    second = asking_for(plan, EVERYBODY[1:])
    for index in MASKING:
        with pytest.raises(AlreadyAnswered, match="endorsed another set"):
            busy.trustee(index).endorse(second)
        with pytest.raises(AlreadyAnswered, match="did not endorse this set"):
            busy.trustee(index).unmask(encode(UnmaskCall(second, decode(UnmaskCall, round_.call()).endorsements)))
        assert busy.trustee(index).conflicts() == [(plan.round_id, second)]  # the provider's own signature is kept


@pytest.mark.parametrize("told_without", [(3,), (4, 5)])
def test_two_sets_told_to_different_trustees_open_neither_and_prove_the_lie(
    busy: Cast, told_without: tuple[int, ...]
) -> None:
    plan = a_plan(1)
    requests = [asking_for(plan, tenants) for tenants in (EVERYBODY, EVERYBODY[1:])]
    words = [busy.trustee(index).endorse(requests[index in told_without]) for index in MASKING]
    for index in MASKING:
        own = requests[index in told_without]
        trustee = busy.trustee(index)
        with pytest.raises(Equivocation, match=f"endorsed another set for round {plan.round_id}") as caught:
            trustee.unmask(encode(UnmaskCall(own, tuple(words))))
        assert "keep the log as proof" in caught.value.hint
        with pytest.raises(AlreadyAnswered):  # and nobody changes its mind
            trustee.endorse(requests[index not in told_without])
        assert is_proof(plan, own, trustee.conflicts())
        assert trustee.rounds() == [(plan.round_id, name_of(own), False)]
    assert honest_failures(busy, a_plan(2, window=(168, 336))) == 0
    assert busy.trustee(3).conflicts()  # and is not forgotten


def is_proof(plan: Plan, own: bytes, conflicts: Sequence[tuple[Any, bytes]]) -> bool:
    """Whether anybody with the directory can see that one round was told two ways: by the provider's two signatures."""
    provider = keys().provider.public
    open_signed(UnmaskRequest, own, provider)
    others = set()
    for round_id, proof in conflicts:
        if kind_of(proof) == UnmaskRequest.LABEL:
            told = open_signed(UnmaskRequest, proof, provider)
            assert reopened(Plan, told.plan).round_id == round_id == plan.round_id
            others.add(name_of(proof))
        else:
            word = reopened(Endorsement, proof)
            assert open_signed(Endorsement, proof, keys().directory.trustee(word.trustee).verify_key) == word
            others.add(word.request)
    return bool(others) and name_of(own) not in others


def kind_of(signed_message: bytes) -> str:
    body = bytes(decode(Signed, signed_message).body)
    return next(kind.LABEL for kind in (UnmaskRequest, Endorsement) if kind.LABEL.encode() in body[:40])


def test_a_request_is_unmasked_only_when_all_trustees_have_endorsed_it(busy: Cast) -> None:
    """Else two trustees might serve one set and the third another, before anybody could compare."""
    plan = a_plan(1)
    request = asking_for(plan, EVERYBODY)
    words = {index: busy.trustee(index).endorse(request) for index in MASKING}
    other = asking_for(a_plan(9, window=(336, 504)), EVERYBODY)
    elsewhere = busy.trustee(5).endorse(other)
    three, four = words[3], words[4]
    for some in ((), (three,), (three, four), (three, three, four), (three, four, elsewhere)):
        with pytest.raises(OutOfOrder, match="lacks the endorsements of trustees"):
            busy.trustee(3).unmask(encode(UnmaskCall(request, some)))
    posing = replace(reopened(Endorsement, words[4]), trustee=5)
    for signer in (keys().trustees[3][1], keys().provider, keys().tenants[0][0]):
        with pytest.raises(BadSignature):
            busy.trustee(3).unmask(encode(UnmaskCall(request, (three, four, signer.sign(posing)))))
    assert busy.trustee(3).rounds()[0][2] is False
    assert honest_failures(busy, a_plan(2, window=(168, 336))) == 0


class Sloppy(Message, frozen=True, tag=UnmaskRequest.LABEL):
    """A request of the same form, without its rules."""

    plan: bytes
    groups: tuple[tuple[bytes, ...], ...]
    ownerships: tuple[bytes, ...]


@pytest.mark.parametrize("groups", [((0, 1, 2, 3, 4, 4),), ((0, 1, 2, 3, 4), (0, 1, 2)), ((0, 1, 2), (2, 3, 4))])
def test_one_request_cannot_name_a_tenant_twice(busy: Cast, groups: tuple[tuple[int, ...], ...]) -> None:
    """Neither within a group nor in two of them, nor is there a second list, for the absent."""
    plan = a_plan(1)
    twice = Sloppy(signed(plan), tuple(headers(plan, group) for group in groups), ownerships())
    with pytest.raises(DecodeError, match="each contributor is named once"):
        busy.trustee(3).endorse(keys().provider.sign(twice))
    assert honest_failures(busy, plan) == 15


def test_a_small_group_is_not_unmasked_beside_a_large_one(busy: Cast) -> None:
    """Groups are opened apart, so each has to have the cohort minimum by itself."""
    plan = a_plan(1)
    for groups in (((0, 1, 2), (3, 4)), ((0, 1, 2, 3), (4,)), ((0, 1, 2, 3, 4), ())):
        named = tuple(headers(plan, group) for group in groups)
        asked = UnmaskRequest(signed(plan), named, ownerships())
        with pytest.raises(CohortTooSmall, match="a group of round"):
            busy.trustee(3).endorse(keys().provider.sign(asked))
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
    first = tenant.answer(Query.CONTRIBUTION, signed(plan))
    another = a_unit(99)
    tenant.journal.add([another], [a_failure(another)])
    for asked in (tenant, busy.tenant(0)):  # the second one is a process of its own, and draws real noise
        assert asked.answer(Query.CONTRIBUTION, signed(plan)) == first
        with pytest.raises(PlanRefused, match="answered for another plan"):
            asked.answer(Query.CONTRIBUTION, signed(a_plan(1, epsilon=0.5)))
    assert honest_failures(busy, plan) == 15


def test_a_second_plan_under_an_unmasked_round_opens_no_second_sum(busy: Cast) -> None:
    plan, second = a_plan(1), a_plan(1, epsilon=0.5)
    assert plan.round_id == second.round_id
    assert honest_failures(busy, plan) == 15
    for index in MASKING:
        with pytest.raises(AlreadyAnswered):
            busy.trustee(index).endorse(asking_for(second, EVERYBODY))


# ---- a contribution that is replayed -------------------------------------------------------------------------------


def test_an_old_contribution_is_worth_nothing_in_a_new_round(busy: Cast) -> None:
    old, new = a_plan(1), a_plan(2, window=(168, 336))
    replayed = busy.tenant(0, sampler=InsecureSilence()).contribute(signed(old))
    round_ = collected(busy, new, EVERYBODY[1:])
    said = decode(Contribution, replayed)
    relabelled = replace(header_of(replayed), round_id=new.round_id, plan=plan_digest(signed(new)))
    stolen = replace(said, header=encode(replace(decode(Signed, said.header), body=memoryview(encode(relabelled)))))
    other = replace(said, cells=memoryview(bytes(len(said.cells))))
    for attempt, refusal in ((replayed, PeerFault), (encode(stolen), BadSignature), (encode(other), BadSignature)):
        with pytest.raises(refusal):
            round_.receive(attempt)
    assert round_.contributors == ids(EVERYBODY[1:])
    assert failures(new, opened(busy, round_)) == 0
    assert honest_failures(busy, old) == 15


def test_a_tenant_that_signs_its_old_cells_anew_spoils_the_sum_of_its_group_and_opens_nothing(busy: Cast) -> None:
    """Masks of the old round stay in the sum, which is then random; below it is found out, and left out."""
    old, new = a_plan(1), a_plan(2, window=(168, 336))
    said = busy.tenant(0).contribute(signed(old))
    round_ = collected(busy, new, EVERYBODY[1:])
    anew = replace(header_of(said), round_id=new.round_id, plan=plan_digest(signed(new)), start_hour=new.start_hour)
    round_.receive(forged_contribution(keys().tenants[0][0], anew, bytes(decode(Contribution, said).cells)))
    assert is_hidden(opened(busy, round_))


def test_the_same_contribution_twice_counts_once(busy: Cast) -> None:
    plan = a_plan(1)
    round_ = collected(busy, plan)
    for tenant in EVERYBODY:
        round_.receive(busy.tenant(tenant).contribute(round_.signed_plan))
    assert failures(plan, opened(busy, round_)) == 15


# ---- a public key that is swapped ----------------------------------------------------------------------------------


def test_a_plan_under_the_providers_own_mask_keys_is_refused_and_the_pinned_ones_are_not(busy: Cast) -> None:
    plan = a_plan(1)
    own = tuple(MaskTrustee(index, MaskKey.generate(os.urandom).public) for index in MASKING)
    for trustees in (own, (*plan.trustees[:2], own[2]), tuple(replace(own[0], index=index) for index in (6, 7, 8))):
        with pytest.raises(PlanRefused, match="not in the directory with these keys"):
            busy.tenant(0).answer(Query.CONTRIBUTION, signed(replace(plan, trustees=trustees)))
    assert busy.tenant(0).ledger.charges() == []
    assert honest_failures(busy, plan) == 15


def test_a_trustee_under_two_numbers_is_in_no_directory() -> None:
    """One honest mask of three would otherwise be one mask twice; the wire refuses it for whoever pins it."""
    honest = open_signed(DirectoryEntry, keys().founding, keys().provider.public)
    first, *others = honest.trustees
    doubled = (first, *(replace(record, mask_key=first.mask_key) for record in others))
    with pytest.raises(ValueError, match="the same key of a trustee"):
        replace(honest, trustees=doubled)


def test_a_mask_key_that_the_provider_swaps_is_refused_when_its_entry_comes(busy: Cast) -> None:
    """Else the provider could read who masks with a key of its own: the tenant signed for its own key only."""
    plan, victim = a_plan(1), keys().directory.members[0]
    swapped = replace(victim, mask_key=MaskKey.generate(os.urandom).public)
    entry = next_entry(keys().directory, left=[victim.tenant], joined=[swapped])
    update = encode(DirectoryUpdate((keys().provider.sign(entry),)))
    for party in (busy.tenant(1), busy.tenant(0), busy.trustee(3)):
        with pytest.raises(BadSignature, match="is not signed by the tenant"):
            party.follow(update)
        assert party.chain.directory.head == keys().directory.head
    under_it = replace(plan, directory=digest(encode(entry)))
    with pytest.raises(UnknownHead):
        busy.tenant(1).answer(Query.CONTRIBUTION, signed(under_it))
    with pytest.raises(UnknownHead):
        busy.trustee(3).endorse(asking_for(under_it, EVERYBODY))
    assert honest_failures(busy, plan) == 15


def test_a_verify_key_cannot_be_swapped_below_an_id(busy: Cast) -> None:
    """The id follows from the key, so that a forged member is another tenant and the victim's name stays its own."""
    plan, attacker = a_plan(1), SigningKey.generate(os.urandom)
    victim = keys().directory.members[0]
    forged = Member.of(attacker, MaskKey.generate(os.urandom), 0)
    assert forged.tenant != victim.tenant
    entry = next_entry(keys().directory, left=[victim.tenant], joined=[forged])
    trustee = busy.trustee(3)
    trustee.follow(encode(DirectoryUpdate((keys().provider.sign(entry),))))  # it is a fact that they are other tenants
    header = a_header(plan, 0)
    with pytest.raises(BadSignature):
        collected(busy, plan).receive(forged_contribution(attacker, header, bytes(8 * plan.words)))
    own = replace(header, tenant=forged.tenant)
    others = zip(ids(EVERYBODY[1:]), headers(plan, EVERYBODY[1:]), strict=True)
    both = sorted([*others, (forged.tenant, attacker.sign(own))])
    them = tuple(word for _, word in both)
    request = keys().provider.sign(UnmaskRequest(signed(plan), (them,), ownerships()))
    with pytest.raises(MemberRefused, match="not in the directory"):  # under the head that the tenants' plan names
        trustee.endorse(request)
    assert honest_failures(busy, plan) == 15


# ---- two directories -----------------------------------------------------------------------------------------------


def branches() -> tuple[DirectoryEntry, DirectoryEntry]:
    """Two next entries, each with another member of the provider's own."""
    sybils = [Member.of(SigningKey(bytes([n]) * 32), MaskKey(bytes([n]) * 32), 0) for n in (1, 2)]
    one, other = (next_entry(keys().directory, joined=[member]) for member in sybils)
    return one, other


def shown(entry: DirectoryEntry) -> bytes:
    return encode(DirectoryUpdate((keys().provider.sign(entry),)))


def test_a_round_under_a_directory_that_trustees_were_not_shown_does_not_happen(busy: Cast) -> None:
    for_tenants, for_trustees = branches()
    head = digest(encode(for_tenants))
    plan = replace(a_plan(1), directory=head)
    for number in EVERYBODY:
        busy.tenant(number).follow(shown(for_tenants))
    for index in MASKING:
        busy.trustee(index).follow(shown(for_trustees))
    answers = [busy.tenant(number, sampler=InsecureSilence()).contribute(signed(plan)) for number in EVERYBODY]
    assert len(answers) == TENANTS  # tenants cannot know
    for index in MASKING:
        with pytest.raises(UnknownHead, match=f"no directory with the head {head.hex()[:16]}…"):
            busy.trustee(index).endorse(asking_for(plan, EVERYBODY))
        with pytest.raises(Fork, match="entry 1 does not continue entry 1"):  # nor can it be made good
            busy.trustee(index).follow(shown(for_tenants))
        assert busy.trustee(index).rounds() == []
    assert honest_failures(busy, a_plan(2, window=(168, 336))) == 0  # under the head that all have seen


def test_a_round_under_a_directory_that_tenants_were_not_shown_does_not_happen(busy: Cast) -> None:
    for_tenants, for_trustees = branches()
    head = digest(encode(for_trustees))
    busy.tenant(0).follow(shown(for_tenants))
    with pytest.raises(UnknownHead, match=f"no directory with the head {head.hex()[:16]}…"):
        busy.tenant(0).answer(Query.CONTRIBUTION, signed(replace(a_plan(1), directory=head)))
    with pytest.raises(Fork):
        busy.tenant(0).answer(Query.DIRECTORY, shown(for_trustees))
    assert busy.tenant(0).ledger.charges() == []
    assert honest_failures(busy, a_plan(1)) == 15


def test_a_directory_with_other_trustees_is_not_followed_and_no_plan_names_them(busy: Cast) -> None:
    first, *others = keys().directory.trustees
    own = replace(first, mask_key=MaskKey.generate(os.urandom).public)
    entry = replace(next_entry(keys().directory), trustees=(own, *others))
    for party in (busy.tenant(0), busy.trustee(3)):
        with pytest.raises(TrustChanged, match="changes values that entry 0 fixed"):
            party.follow(shown(entry))
    assert honest_failures(busy, a_plan(1)) == 15


# ---- a plan that is forged -----------------------------------------------------------------------------------------


def forgeries(plan: Plan) -> dict[str, bytes]:
    """Plans that the provider did not sign."""
    genuine = decode(Signed, signed(plan))
    cheaper = encode(replace(plan, epsilon=plan.epsilon / 2))
    return {
        "unsigned": encode(Signed(Signature(bytes(64)), genuine.body)),
        "signed by a stranger": SigningKey.generate(os.urandom).sign(plan),
        "signed by a member": keys().tenants[1][0].sign(plan),
        "altered after signing": encode(Signed(genuine.signature, memoryview(cheaper))),
    }


@pytest.mark.parametrize("how", forgeries(a_plan(1)))
def test_a_forged_plan_costs_no_budget_and_opens_no_round(busy: Cast, how: str) -> None:
    plan = a_plan(1)
    forged = forgeries(plan)[how]
    tenant = busy.tenant(0)
    with pytest.raises(BadSignature):
        tenant.answer(Query.CONTRIBUTION, forged)
    asked = UnmaskRequest(forged, (headers(plan, EVERYBODY),), ownerships())
    with pytest.raises(BadSignature):
        busy.trustee(3).endorse(keys().provider.sign(asked))
    assert (tenant.ledger.charges(), tenant.outbox.sent(plan.round_id)) == ([], None)
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
        busy.tenant(0).answer(Query.CONTRIBUTION, signed(owned_by(plan, owners)))
    assert busy.tenant(0).ledger.charges() == []
    assert honest_failures(busy, plan) == 15


RARE = [*all_leases(), a_lease(0, 90, workload=9)]


def with_a_row_for_one(plan: Plan) -> Plan:
    """A dictionary attack: a row for the workload of tenant 0 alone, under a number of owners that nobody counted."""
    workload, *others = plan.dimensions
    mine = RARE[-1].labels["subarchetype"]
    row = replace(workload, levels=(*workload.levels, mine), owners=(*workload.owners, 10**6))
    return replace(plan, dimensions=(row, *others))


def test_a_row_of_one_owner_under_a_false_number_is_refused_by_every_trustee(busy: Cast) -> None:
    """Tenants cannot know how many hold a token, so they answer; trustees count the owners' own signed words."""
    lie = with_a_row_for_one(a_plan(1))
    for number in EVERYBODY:
        busy.tenant(number, sampler=InsecureSilence()).answer(Query.CONTRIBUTION, signed(lie))
    for index in MASKING:
        with pytest.raises(TooFewOwners, match=r"1 tenants own row workload: .*, 3 are needed"):
            busy.trustee(index).endorse(asking_for(lie, EVERYBODY, ownerships(RARE)))
        assert busy.trustee(index).rounds() == []
    assert honest_failures(busy, a_plan(2, window=(168, 336))) == 0


def test_the_word_of_one_owner_counts_once_in_its_epoch_and_only_if_it_is_a_members(busy: Cast) -> None:
    lie = with_a_row_for_one(a_plan(1))
    mine, honest = ownership(0, leases=RARE), ownerships()
    held = reopened(Ownership, mine).tokens
    more = keys().tenants[0][0].sign(Ownership(keys().tenant_id(0), 0, *WEEK, held[1:]))
    other_epoch = tuple(ownership(number, 1, [replace(RARE[-1], tenant=keys().tenant_id(number))]) for number in (1, 2))
    trustee = busy.trustee(3)
    for said in ((mine,), (mine, mine, mine, *honest), (mine, more, *honest), (mine, *honest, *other_epoch)):
        with pytest.raises(TooFewOwners):
            trustee.endorse(asking_for(lie, EVERYBODY, said))
    for forged in (
        keys().provider.sign(Ownership(keys().tenant_id(1), 0, *WEEK, held)),
        keys().tenants[0][0].sign(Ownership(keys().tenant_id(1), 0, *WEEK, held)),
    ):
        with pytest.raises(BadSignature):
            trustee.endorse(asking_for(lie, EVERYBODY, (mine, forged, *honest)))
    assert trustee.rounds() == []
    assert honest_failures(busy, a_plan(1)) == 15


def test_a_plan_that_promises_fewer_owners_to_trustees_is_refused_by_tenants(busy: Cast) -> None:
    """Trustees hold the provider to the number in the plan; tenants see to it that the number is theirs."""
    lie = replace(with_a_row_for_one(a_plan(1)), owners_minimum=1)
    busy.trustee(3).endorse(asking_for(lie, EVERYBODY, ownerships(RARE)))
    with pytest.raises(PlanRefused, match="it promises 1 owners per row, the policy wants 3"):
        busy.tenant(0).answer(Query.CONTRIBUTION, signed(lie))
    assert honest_failures(busy, a_plan(2, window=(168, 336))) == 0


def test_a_plan_that_names_another_epoch_to_count_other_owners_is_refused_by_tenants(busy: Cast) -> None:
    lie = replace(a_plan(1), epoch=7)
    with pytest.raises(PlanRefused, match="it names epoch 7, and its windows lie in epoch 0"):
        busy.tenant(0).answer(Query.CONTRIBUTION, signed(lie))
    assert honest_failures(busy, a_plan(1)) == 15


def test_owners_that_the_provider_enrols_itself_are_believed_and_stand_in_everybodys_directory(busy: Cast) -> None:
    """Succeeds today: whoever decides about members can be members. They stand under every head, for all to count."""
    sybils = [(SigningKey.generate(os.urandom), MaskKey.generate(os.urandom)) for _ in range(2)]
    members = [Member.of(key, mask, 0) for key, mask in sybils]
    entry = next_entry(keys().directory, joined=members)
    lie = replace(with_a_row_for_one(a_plan(1)), directory=digest(encode(entry)))
    row = Token(bytes.fromhex(RARE[-1].labels["subarchetype"]))
    words = [
        key.sign(Ownership(member.tenant, 0, *WEEK, (row,))) for (key, _), member in zip(sybils, members, strict=True)
    ]
    trustee, tenant = busy.trustee(3), busy.tenant(0)
    for party in (trustee, tenant):
        party.follow(shown(entry))
        assert set(members) < set(party.chain.directory.members)
    assert trustee.endorse(asking_for(lie, EVERYBODY, (*ownerships(RARE), *words)))
    assert tenant.answer(Query.CONTRIBUTION, signed(lie))


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
    assert guesses < 30  # of up to 4 evaluations each, of which those of the family and the like are known
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
    own = Member.of(stranger, MaskKey.generate(os.urandom), 0).tenant
    for signer, name in ((keys().provider, keys().tenant_id(0)), (stranger, keys().tenant_id(0)), (stranger, own)):
        with pytest.raises(BadSignature):
            trustee.evaluate(signer.sign(a_guess(name)))
    assert trustee.evaluations() == {}
    trustee.evaluate(keys().tenants[0][0].sign(a_guess(keys().tenant_id(0))))
    assert trustee.evaluations() == {(keys().tenant_id(0), 0): 1}


def test_a_member_that_invents_epochs_has_the_quota_of_this_one_and_its_neighbours(cast: Cast) -> None:
    """A blinded input does not show its epoch, so each epoch that is granted is a quota; a clock limits them."""
    hour = 20 * WEEKS_PER_EPOCH * 168 + 5
    trustee = cast.trustee(3, TrusteeLimits(evaluations_per_epoch=1, now_hour=lambda: hour))
    key, name = keys().tenants[4][0], keys().tenant_id(4)
    for epoch in (0, 18, 22, 2**40):
        with pytest.raises(EpochNotCurrent, match=f"requested epoch {epoch}, current epoch 20"):
            trustee.evaluate(key.sign(a_guess(name, epoch)))
    assert trustee.evaluations() == {}
    for epoch in (19, 20, 21):
        trustee.evaluate(key.sign(a_guess(name, epoch)))
        with pytest.raises(QuotaExceeded):
            trustee.evaluate(key.sign(a_guess(name, epoch)))
    assert len(trustee.evaluations()) == 3


def test_without_a_clock_every_epoch_is_a_quota_and_the_meter_shows_it(cast: Cast) -> None:
    """As in a simulation; a trustee that is served over the network has a clock."""
    trustee = cast.trustee(3, TrusteeLimits(evaluations_per_epoch=1))
    for epoch in range(5):
        trustee.evaluate(keys().tenants[4][0].sign(a_guess(keys().tenant_id(4), epoch)))
    assert len(trustee.evaluations()) == 5


def a_guess(name: TenantId, epoch: int = 0) -> EvaluationRequest:
    blinded = voprf.blind([b"a guess"], os.urandom).elements
    return EvaluationRequest(name, 3, epoch, tuple(EncodedElement(element.encoded) for element in blinded))


# ---- a whole week over the grid, with a node that attacks ----------------------------------------------------------

Answerer = Callable[[Query, bytes], bytes]


@pytest.fixture
def eight(tmp_path: Path) -> Iterator[Federation]:
    settings = PlanSettings(1.0, 1e-8, cohort_minimum=6, noise_shares=1, owners_minimum=2, **WEEKLY)
    policy = {"owners_minimum": 2, "cohort_minimum": 2, "colluding_share": 0.0}
    with closing(found(tmp_path, 8, settings, policy, InsecureSilence())) as federation:
        for number in range(8):
            happen(federation, number)
        yield federation


def happen(federation: Federation, number: int, week: int = 0, *, leases: int = LEASES, failing: int = 1) -> None:
    """The tenant runs one workload on some leases for four days of a week, and the first of them fail."""
    provider, tenant, start_h = federation.provider, federation.tenants[number], 168.0 * week + 1
    labels = provider.context_labels(start_h, "a100 hall 3", 0)
    names = [LeaseId(bytes([number, week, lease]) + bytes(13)) for lease in range(leases)]
    provider.record_leases(Lease(name, tenant.id, 4, start_h, start_h + 99, labels) for name in names)
    started = [StartedLease(name, start_h, labels, a_descriptor()) for name in names]
    tenant.start_leases(started, provider.epoch(start_h))
    tenant.record([Failure(str(name), start_h + 29, 29.0, "nvlink_error") for name in names[:failing]])


def a_week(
    federation: Federation,
    attackers: dict[int, Answerer] | None = None,
    deliver: Deliver = list,
    window: tuple[int, int] = WEEK,
    publisher: Publisher | None = None,
) -> tuple[Release, tuple[Silence, ...]]:
    """The honest tenants are nodes 0 to 7; attackers take the place of one, or come as further nodes."""
    answer: dict[int, Answerer] = {number: tenant.answer for number, tenant in enumerate(federation.tenants)}
    apps = {number: client_app(given) for number, given in (answer | (attackers or {})).items()}
    with local_task():
        tenants = GridTenants(LocalGrid(apps, deliver=deliver), 0.0, 0.0)
        return federated_week(federation.provider, publisher, tenants, federation.trustees, window), tenants.silences


def pairs(release: Release) -> float:
    return float(release.table("pairs").events.sum())


def contribution_in(message: bytes) -> Contribution:
    return decode(Contribution, message)


def test_the_honest_week_of_this_module_counts_everybody(eight: Federation) -> None:
    release, silences = a_week(eight)
    assert (release.contributors, pairs(release), silences) == (8, 8.0, ())


def test_a_strangers_node_contributes_nothing(eight: Federation, caplog: pytest.LogCaptureFixture) -> None:
    """Under a name of its own, in the name of a member, or with the words of one."""
    key = SigningKey.generate(os.urandom)
    own = Member.of(key, MaskKey.generate(os.urandom), 0).tenant

    def under(name: TenantId) -> Answerer:
        def answer(verb: Query, payload: bytes) -> bytes:
            if verb is not Query.CONTRIBUTION:
                raise DecodeError("says nothing")
            plan = reopened(Plan, payload)
            said = ContributionHeader(
                name, plan.round_id, plan_digest(payload), plan.start_hour, Nonce(bytes(16)), Digest(bytes(32))
            )
            return forged_contribution(key, said, b"\xff" * (8 * plan.words))

        return answer

    strangers = {8: under(own), 9: under(eight.tenants[0].id), 10: eight.tenants[0].answer}
    with caplog.at_level(logging.WARNING, logger="provider_server.rounds.provider"):
        release, _ = a_week(eight, strangers)
    assert (release.contributors, pairs(release)) == (8, 8.0)
    assert sum("BadSignature" in record.getMessage() for record in caplog.records) == 2


def test_a_forged_plan_is_answered_by_the_name_of_an_error_alone(eight: Federation) -> None:
    stranger = SigningKey.generate(os.urandom)
    apps = {number: client_app(tenant.answer) for number, tenant in enumerate(eight.tenants)}
    with local_task():
        tenants = GridTenants(LocalGrid(apps), 0.0, 0.0)
        assert list(tenants.ask(Query.CONTRIBUTION, stranger.sign(a_plan(1)))) == []
    assert {(silence.why, silence.detail) for silence in tenants.silences} == {(Why.FAILED, "BadSignature")}
    release, _ = a_week(eight)
    assert pairs(release) == 8.0


def twice_and_backwards(messages: list[FlowerMessage]) -> list[FlowerMessage]:
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

    def damaged(verb: Query, payload: bytes) -> bytes:
        said = victim.answer(verb, payload)
        return damage(said) if verb is Query.CONTRIBUTION else said

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
        busy.tenant(0).answer(Query.CONTRIBUTION, damage(signed(plan)))
    with pytest.raises(DecodeError):
        busy.trustee(3).endorse(damage(asking_for(plan, EVERYBODY)))
    assert honest_failures(busy, plan) == 15


# ---- a member that lies about its counts ---------------------------------------------------------------------------

GROUPS, GROUP = 3, 4
SPOILT = (GROUPS - 1) * GROUP  # who is left when one group is left out
LIE = 3


@pytest.fixture
def twelve(tmp_path: Path) -> Iterator[Federation]:
    """As `eight`, but in three groups of four."""
    settings = PlanSettings(1.0, 1e-8, cohort_minimum=GROUP, noise_shares=1, owners_minimum=2, groups=GROUPS, **WEEKLY)
    policy = {"owners_minimum": 2, "cohort_minimum": 2, "colluding_share": 0.0}
    with closing(found(tmp_path, GROUPS * GROUP, settings, policy, InsecureSilence())) as federation:
        for number in range(GROUPS * GROUP):
            happen(federation, number)
        yield federation


def adding(federation: Federation, liar: int, value: int, words: slice = slice(1)) -> Answerer:
    """A member's answers, with `value` added to the first words of its contribution, mod 2^64."""
    tenant = federation.tenants[liar]

    def answer(verb: Query, payload: bytes) -> bytes:
        said = tenant.answer(verb, payload)
        if verb is not Query.CONTRIBUTION:
            return said
        sent = words_from_bytes(contribution_in(said).cells).copy()
        sent[words] += np.array([value], np.uint64)
        return forged_contribution(tenant._signing_key, header_of(said), words_to_bytes(sent))

    return answer


def counted(federation: Federation, release: Release) -> frozenset[int]:
    """Who is part of a release."""
    numbers = {tenant.id: number for number, tenant in enumerate(federation.tenants)}
    return frozenset(numbers[answered.tenant] for answered in release.answered)


def suspicion(federation: Federation) -> TenantScores:
    return TenantScores.from_dict(federation.provider.store.rounds.suspicion())


def test_the_honest_week_in_groups_counts_everybody(twelve: Federation) -> None:
    release, _ = a_week(twelve)
    assert (release.contributors, pairs(release)) == (GROUPS * GROUP, float(GROUPS * GROUP))
    assert suspicion(twelve).suspects() == frozenset()


@pytest.mark.parametrize("value", [2**40, 2**64 - 2**40, 2**63, 2**20], ids=["2^40", "-2^40", "2^63", "2^20"])
def test_a_huge_lie_in_one_cell_costs_its_group_and_the_others_are_exact(twelve: Federation, value: int) -> None:
    """More failures than leases, fewer than none, or the other half of the ring, which reads as negative."""
    release, _ = a_week(twelve, {2: adding(twelve, 2, value)})
    honest = counted(twelve, release)
    assert 2 not in honest
    assert len(honest) == release.contributors == SPOILT
    for table in ("pairs", "hazard"):
        assert release.table(table).events.sum() == SPOILT
    assert release.table("pairs").exposure_node_hours.sum() == SPOILT * LEASES * 4 * 99


def test_the_bundle_of_a_week_with_a_huge_lie_counts_those_who_are_left(twelve: Federation) -> None:
    a_week(twelve, {2: adding(twelve, 2, 2**40)}, publisher=twelve.publisher)
    assert all(tenant.bundle() is not None for tenant in twelve.tenants)
    bundle = twelve.tenants[0].bundle()
    assert bundle is not None
    assert bundle.statement is not None
    assert bundle.statement.contributions_fewest == SPOILT


def test_a_lie_in_every_cell_is_one_lie(twelve: Federation) -> None:
    release, _ = a_week(twelve, {7: adding(twelve, 7, 2**24, slice(None))})
    assert 7 not in counted(twelve, release)
    assert pairs(release) == SPOILT


def test_the_last_word_of_the_ring_is_minus_one_failure_and_passes(twelve: Federation) -> None:
    """2^64 - 1 overflows nothing, and is no lie worth finding."""
    release, _ = a_week(twelve, {2: adding(twelve, 2, 2**64 - 1)})
    assert release.contributors == GROUPS * GROUP
    assert pairs(release) == GROUPS * GROUP - 1


def test_a_lie_within_the_noise_passes_and_moves_the_release_by_no_more_than_itself(twelve: Federation) -> None:
    """Bounded, not prevented: what is smaller than a few deviations of the noise cannot be told from it."""
    release, _ = a_week(twelve, {2: adding(twelve, 2, LIE)})
    assert pairs(release) == GROUPS * GROUP + LIE
    assert 2 * float(np.sqrt(release.table("pairs").noise_variance.max())) > LIE


def test_a_round_of_one_group_with_a_huge_lie_is_not_released(eight: Federation) -> None:
    """Ceilings need no other group to compare with; there is nothing else to release."""
    with pytest.raises(PoisonedRound, match="1 of 1 groups hold impossible counts") as caught:
        a_week(eight, {2: adding(eight, 2, 2**40)})
    assert "nothing was released" in caught.value.hint
    assert eight.provider.store.releases() == []


def test_a_round_of_which_most_groups_are_poisoned_is_not_released(twelve: Federation) -> None:
    liars = {number: adding(twelve, number, 2**40 + number) for number in range(GROUPS * GROUP)}
    with pytest.raises(PoisonedRound, match="3 of 3 groups hold impossible counts"):
        a_week(twelve, liars)
    assert twelve.provider.store.releases() == []


def test_a_contribution_of_last_week_signed_anew_costs_its_group_and_the_others_are_exact(twelve: Federation) -> None:
    """The masks of last week stay in the sum of its group, which is random; no word of it is in the release."""
    liar = twelve.tenants[5]
    first, _ = a_week(twelve)
    old = contribution_in(liar.outbox.sent(first.plan.round_id) or b"")

    def replaying(verb: Query, payload: bytes) -> bytes:
        said = liar.answer(verb, payload)
        if verb is not Query.CONTRIBUTION:
            return said
        return forged_contribution(liar._signing_key, header_of(said), bytes(old.cells))

    for number in range(GROUPS * GROUP):
        happen(twelve, number, week=1)
    release, _ = a_week(twelve, {5: replaying}, window=(168, 336))
    assert 5 not in counted(twelve, release)
    assert (release.contributors, pairs(release)) == (SPOILT, float(SPOILT))
    assert [made.contributors for made in twelve.provider.store.releases()] == [GROUPS * GROUP, SPOILT]


BUSY, HONEST, TENFOLD, WEEKS = 60, 4, 40, 9  # it took three weeks to five in seven runs


@pytest.mark.nightly
def test_a_member_that_reports_ten_times_its_failures_is_found_within_weeks_and_bounded_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its every lie has a lease that could have failed, so no ceiling is passed; only that it fails so often is odd."""
    monkeypatch.setattr(os, "urandom", np.random.default_rng(3).bytes)  # insecure: keys and groups of a seed
    settings = PlanSettings(8.0, 1e-8, cohort_minimum=GROUP, noise_shares=2, owners_minimum=2, groups=4, **WEEKLY)
    policy = {"epsilon_per_window": 8.0, "owners_minimum": 2, "cohort_minimum": 2, "colluding_share": 0.0}
    with closing(found(tmp_path, 4 * GROUP, settings, policy, InsecureSeeded(3))) as federation:
        liar = federation.tenants[3].id
        for week in range(WEEKS):
            for number in range(4 * GROUP):
                happen(federation, number, week, leases=BUSY, failing=TENFOLD if number == 3 else HONEST)
            release, _ = a_week(federation, window=(168 * week, 168 * week + 168))
            spread = float(np.sqrt(release.table("hazard").noise_variance.sum()))
            honest = HONEST * len(counted(federation, release) - {3})
            assert release.table("hazard").events.sum() < honest + BUSY + 5 * spread  # its ceiling is all that it adds
            if suspicion(federation).suspects() == {liar}:
                break
        else:
            raise AssertionError("nobody is suspected")
        assert suspicion(federation).named() <= {liar}


# ---- a trustee that answers wrongly --------------------------------------------------------------------------------


def test_a_trustee_that_answers_for_another_is_not_heard(busy: Cast) -> None:
    """A share is signed, so nobody speaks in another's name, and a wrong one has an author."""
    plan = a_plan(1)
    round_ = collected(busy, plan)
    close(round_)
    trustees = {index: busy.trustee(index) for index in QUORUM}
    endorse_all(round_, trustees)
    three, four = (trustees[index].unmask(round_.call()) for index in (3, 4))
    round_.share(3, three)
    posing = replace(reopened(UnmaskShare, four), trustee=5)
    for share in (four, keys().trustees[3][1].sign(posing), keys().provider.sign(posing)):
        with pytest.raises(BadSignature):
            round_.share(5, share)
    with pytest.raises(PeerFault, match="answered another request"):
        round_.share(4, keys().trustees[3][1].sign(posing))
    share_all(round_, trustees)
    assert failures(plan, add_words(round_.open())) == 15


def test_a_trustee_that_lies_about_its_masks_opens_nothing_and_has_signed_the_lie(busy: Cast) -> None:
    plan = a_plan(1)
    round_ = collected(busy, plan)
    close(round_)
    trustees = {index: busy.trustee(index) for index in QUORUM}
    endorse_all(round_, trustees)
    right = reopened(UnmaskShare, trustees[5].unmask(round_.call()))
    wrong = keys().trustees[4][1].sign(replace(right, mask_sums=(os.urandom(len(right.mask_sums[0])),)))
    round_.share(5, wrong)
    share_all(round_, trustees)
    assert is_hidden(add_words(round_.open()))
    assert open_signed(UnmaskShare, wrong, keys().directory.trustee(5).verify_key).mask_sums != right.mask_sums
    assert honest_failures(busy, plan) == 15


def test_a_plan_that_only_one_trustee_is_shown_opens_nothing(busy: Cast) -> None:
    """The provider shows a trustee another plan than the tenants saw: another request, which the others did not see."""
    seen, shown_to_one = a_plan(1), a_plan(1, epsilon=0.5)
    round_ = collected(busy, seen)
    close(round_)
    words = [busy.trustee(3).endorse(asking_for(shown_to_one, EVERYBODY))]
    words += [busy.trustee(index).endorse(round_.request) for index in MASKING[1:]]
    for index, request in ((3, asking_for(shown_to_one, EVERYBODY)), (4, round_.request), (5, round_.request)):
        with pytest.raises(Equivocation):
            busy.trustee(index).unmask(encode(UnmaskCall(request, tuple(words))))
    with pytest.raises(PeerFault, match="answered another request"):
        round_.endorse(3, words[0])
    with pytest.raises(AlreadyAnswered):
        busy.trustee(3).endorse(round_.request)
