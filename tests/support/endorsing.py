"""Rounds that are over, as the provider shows them: a set, and what trustees signed of it."""

from collections.abc import Iterable, Sequence

from crypto.codec import encode
from crypto.ids import Digest
from federation.protocol.endorsed import EndedRound, EndedRounds, EndorsedSet
from federation.protocol.plan import Plan
from federation.protocol.round_messages import Endorsement
from tests.support.factories import keys

QUORUM = (1, 2, 3, 4)


def endorsed_set(plan: Plan, tenants: Iterable[int]) -> EndorsedSet:
    """The set of a round that names these tenants."""
    named = tuple(sorted(keys().tenant_id(number) for number in tenants))
    return EndorsedSet(plan.round_id, plan.directory, plan.epoch, *plan.window, named)


def ended(plan: Plan, tenants: Iterable[int], trustees: Sequence[int] = QUORUM) -> EndedRound:
    """The same with the endorsements of `trustees`; without tenants the round was given up."""
    return endorsed(endorsed_set(plan, tenants), trustees)


def endorsed(of: EndorsedSet, trustees: Sequence[int] = QUORUM) -> EndedRound:
    """A set with the endorsements of `trustees`."""
    request = Digest(bytes(Digest.length))
    words = (Endorsement(index, of.round_id, request, of.name) for index in trustees)
    signed = zip(trustees, words, strict=True)
    return EndedRound(of, tuple(keys().trustees[index - 1][1].sign(word) for index, word in signed))


def shown(*rounds: EndedRound) -> bytes:
    """The query that shows them to a tenant."""
    return encode(EndedRounds(rounds))
