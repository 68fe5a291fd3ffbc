"""The record of a round proves its sum to whoever holds the directory: nothing in it is the provider's word alone.

    request, signed by the provider      the plan, and each contribution by the digest that its tenant signed
    endorsements of a quorum             trustees bind themselves to this request, and to no other of its window
    contributions, under masks           sums of them are what they are: their tenants signed the digests
    shares, signed by trustees           the sums of the masks

Sum of contributions - sum of masks = counts + noise. `opened_record` repeats it. A provider that publishes another sum
would need another signature of a tenant or of a mask trustee.

What a reader learns of tenants is what the provider learnt: sums with noise, which epsilon pays for, whoever reads
them; single contributions stay under the masks of every mask trustee. Records are made of rounds that count warnings.

Not promised: that the contributions are true, nor that nobody was left out; a tenant sees in the endorsed set whether
it was (`federation.protocol.endorsed`). All groups are in the sum, also what the provider found impossible.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from crypto.codec import Few, Many, Message, decode, first_field
from crypto.errors import PeerFault
from crypto.masking import Words, add_words, words_from_bytes
from crypto.signing import Signed, name_of, open_signed
from federation.protocol.directory import Chain, Directory, open_of_seat
from federation.protocol.life_table import Floats
from federation.protocol.noise import from_ring, open_groups, opened_shares
from federation.protocol.plan import Plan
from federation.protocol.round_messages import (
    Endorsement,
    UnmaskCall,
    UnmaskRequest,
    UnmaskShare,
    opened_contribution,
)
from federation.protocol.subjects import CLAIM, Subject
from federation.protocol.warnings import CellNoise, Claims, WarnedSum

_HINT = "the provider's record of this round proves nothing: tell the other tenants and the trustees"


class RoundRecord(Message, frozen=True, tag="pharoah/round-record/1"):
    """An `UnmaskCall`, the contributions in the order of its groups, and the signed shares of all mask trustees."""

    call: bytes
    contributions: Many[bytes]
    shares: Few[bytes]


@dataclass(frozen=True)
class ProvenSum:
    """The plan, its noisy tables, and of how many contributions they are the sum, the smallest group included."""

    plan: Plan
    tables: tuple[Floats, ...]
    contributors: int
    smallest_group: int

    @property
    def warned(self) -> WarnedSum | None:
        """What it says of warnings; None where the plan does not count them."""
        return warned_sum(self.plan, self.tables, self.contributors, self.smallest_group)


def opened_record(data: bytes, chain: Chain) -> ProvenSum:
    """The sum that a record proves; DecodeError, BadSignature, PeerFault or UnknownHead for what proves none."""
    record = decode(RoundRecord, data)
    told = decode(UnmaskCall, record.call)
    asked = open_signed(UnmaskRequest, told.request, chain.directory.provider)
    plan = open_signed(Plan, asked.plan, chain.directory.provider)
    then = chain.at(plan.directory)
    smallest = min(map(len, asked.groups), default=0)
    if smallest < plan.cohort_minimum:
        raise PeerFault(f"round {plan.round_id} has a group of {smallest} contributions", hint=_HINT)
    _check_endorsed(told, plan, then, chain.directory)
    opened = open_groups(plan, list(_sums(record, asked, plan, then)), smallest)
    for share in _shares(record, told, plan, (then, chain.directory), len(opened)):
        for total, words in zip(opened, share.mask_sums, strict=True):
            total -= words_from_bytes(words)
    return ProvenSum(plan, from_ring(plan, add_words(opened)), len(asked.contributors), smallest)


def _check_endorsed(told: UnmaskCall, plan: Plan, then: Directory, now: Directory) -> None:
    seats, named = set(), name_of(told.request)
    for signed in told.endorsements:
        index = first_field(Endorsement, decode(Signed, signed).body)
        word = open_of_seat(Endorsement, signed, index, then, now)
        if (word.round_id, word.request) == (plan.round_id, named):
            seats.add(index)
    if len(seats) < then.quorum:
        raise PeerFault(f"{len(seats)} trustees endorsed round {plan.round_id}, not {then.quorum}", hint=_HINT)


def _sums(record: RoundRecord, asked: UnmaskRequest, plan: Plan, then: Directory) -> Iterator[Words]:
    """The sum of each group under its masks."""
    if len(record.contributions) != len(asked.contributors):
        raise PeerFault(f"the record of round {plan.round_id} lacks contributions", hint=_HINT)
    contributions = iter(record.contributions)
    for group in asked.groups:
        total = np.zeros(plan.words, np.uint64)
        for signed in group:
            _, contribution = opened_contribution(next(contributions), then.verify_key)
            if contribution.header != signed or len(contribution.cells) != 8 * plan.words:
                raise PeerFault(f"round {plan.round_id} has another contribution than was endorsed", hint=_HINT)
            total += words_from_bytes(contribution.cells)
        yield total


def _shares(
    record: RoundRecord, told: UnmaskCall, plan: Plan, seated: tuple[Directory, Directory], groups: int
) -> Iterator[UnmaskShare]:
    """The shares of all mask trustees, each once."""
    waiting, named = {trustee.index for trustee in plan.trustees}, name_of(told.request)
    for signed in record.shares:
        index = first_field(UnmaskShare, decode(Signed, signed).body)
        share = open_of_seat(UnmaskShare, signed, index, *seated)
        fits = [len(words) for words in share.mask_sums] == [8 * plan.cells] * groups
        if index not in waiting or (share.round_id, share.request) != (plan.round_id, named) or not fits:
            raise PeerFault(f"trustee {index} gave no such share in round {plan.round_id}", hint=_HINT)
        waiting.remove(index)
        yield share
    if waiting:
        raise PeerFault(f"round {plan.round_id} lacks shares of trustees {sorted(waiting)}", hint=_HINT)


def warned_sum(plan: Plan, tables: Sequence[Floats], contributors: int, smallest_group: int) -> WarnedSum | None:
    """What noisy tables of a plan, one per marginal, say of warnings; None where it does not count them."""
    for marginal, table, counts in zip(plan.marginals, plan.tables, tables, strict=True):
        if marginal.counts is Subject.WARNINGS and table.shape == (3, 2):
            (unwarned, _), (came_true, in_vain), (checks_came_true, checks_in_vain) = counts.tolist()
            opened = opened_shares(plan, contributors, smallest_group)
            return WarnedSum(
                start_hour=plan.start_hour,
                end_hour=plan.end_hour,
                came_true=came_true,
                in_vain=in_vain,
                unwarned=unwarned,
                checks_came_true=checks_came_true,
                checks_in_vain=checks_in_vain,
                claims=claims_of(plan),
                noise=CellNoise(plan.mechanism, marginal.noise_scale, opened),
            )
    return None


def claims_of(plan: Plan) -> Claims:
    """What a plan claims of the provider's warnings."""
    return Claims.of(next((one.levels for one in plan.dimensions if one.name == CLAIM), ()))
