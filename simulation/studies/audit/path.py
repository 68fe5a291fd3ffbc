"""The way of counts from tenants through masks to releases, as fast as an audit needs it, and what an attacker sees.

Every step is the product's function (`contribution`, `mask_cells`, `sum_of_masks`, `open_groups`, `release`), put
together as `Tenant`, `Trustee`, `Round` and `Provider` put them; what is left out are signatures, ledgers and disks.
`tests/federation/test_audit.py` compares with the real parties, bit by bit.

The attacker is the provider with all mask trustees but one and some tenants. With the masks that it knows taken off,
single contributions are masked by the honest trustee alone (`audit.masks` audits those). From the releases it takes
off all that its tenants sent, noise included, so that the noise which is left is that of the others.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.ids import Digest, Nonce
from crypto.masking import MaskKey, MaskStream, Words, add_words, mask_cells, sum_of_masks
from crypto.signing import name_of
from federation.protocol.life_table import Floats
from federation.protocol.noise import Integers, NoiseSampler, contribution, from_ring, open_groups
from federation.protocol.plan import Plan
from provider_server.fleet.release import Answered, Release
from provider_server.rounds.opening import release
from simulation.studies.audit.parties import Parties, Party

Coins = NDArray[np.bool_]


@dataclass(frozen=True)
class Contributed:
    """What a tenant sent: `cells`; and what it alone knows: `own`, its counts with its noise, without masks."""

    party: Party
    streams: tuple[MaskStream, ...]
    own: Words
    cells: Words


def contributed(
    plan: Plan, named: Digest, party: Party, nonce: Nonce, counts: Sequence[Integers], sampler: NoiseSampler
) -> Contributed:
    """What `Tenant.contribute` sends of these counts; `named` is the digest of the plan."""
    bound = plan.round_id, named, party.id, party.mask.public, nonce
    streams = tuple(MaskStream(*bound, trustee.index, trustee.mask_key) for trustee in plan.trustees)
    own = contribution(plan, counts, sampler)
    return Contributed(party, streams, own, mask_cells(own, party.mask, streams))


class MaskSide:
    """A mask trustee: one side of every opening, made of masks alone."""

    def __init__(self, index: int, key: MaskKey) -> None:
        self._index, self._key = index, key

    def share(self, plan: Plan, sent: Sequence[Contributed]) -> Words:
        """What `Trustee.unmask` answers for one group of all."""
        streams = (stream for one in sent for stream in one.streams if stream.trustee == self._index)
        return _opened(plan, sum_of_masks(self._key, streams, plan.words), len(sent))


def released(plan: Plan, sent: Sequence[Contributed], shares: Sequence[Words]) -> Release:
    """What `open_release` makes of it, but for exposure: it sums, unmasks, and passes the gate."""
    opened = _opened(plan, add_words(one.cells for one in sent), len(sent)) - add_words(shares)
    answered = [Answered(one.party.id, plan.start_hour) for one in sent]
    return release(plan, opened, answered, plan.tables)


def _opened(plan: Plan, total: Words, contributors: int) -> Words:
    """One side of an opening: of what came in, of a trustee's masks, or of what some tenants know; (plan.cells,)."""
    (found,) = open_groups(plan, [total], contributors)
    return found


def seen_of_epoch(
    parties: Parties, plans: Sequence[Plan], coins: Coins, sampler: NoiseSampler, colluding: int
) -> Iterator[Floats]:
    """The release of each window, flat, in counts, without what the last `colluding` tenants sent.

    Units of a window are others than those of the next: each has an equal part of `coins`. The first tenant has a
    failure in every cell that `canary_counts` gives it, and nobody has others.
    """
    trustees = [MaskSide(*pair) for pair in parties.mask_keys.items()]
    for plan, own_coins in zip(plans, np.split(coins, len(plans)), strict=True):
        sent = _sent(parties, plan, own_coins, sampler)
        made = released(plan, sent, [trustee.share(plan, sent) for trustee in trustees])
        own = [one.own for one in sent[len(sent) - colluding :]]
        theirs = _opened(plan, add_words([np.zeros(plan.words, np.uint64), *own]), len(sent))
        pairs = zip(made.tables, from_ring(plan, theirs), strict=True)
        yield np.concatenate([(table.events - known).reshape(-1) for table, known in pairs])


def _sent(parties: Parties, plan: Plan, coins: Coins, sampler: NoiseSampler) -> list[Contributed]:
    named = name_of(parties.provider.sign(plan))
    counts = [canary_counts(plan, coins), *[_no_counts(plan)] * (len(parties.tenants) - 1)]
    nonces = (Nonce(os.urandom(Nonce.length)) for _ in counts)
    return [
        contributed(plan, named, party, nonce, own, sampler)
        for party, nonce, own in zip(parties.tenants, nonces, counts, strict=True)
    ]


def _no_counts(plan: Plan) -> list[Integers]:
    return [np.zeros(table.shape, np.int64) for table in plan.tables]


def canary_counts(plan: Plan, coins: Coins) -> list[Integers]:
    """Tables in which unit number c, if its coin says so, is counted once in cell c of every marginal.

    No unit may add more, and one that fails by hardware and by its script adds so much: it is the worst neighbour.
    """
    tables = _no_counts(plan)
    for table in tables:
        table.reshape(-1)[: len(coins)] = coins
    return tables


def at_canaries(plan: Plan, flat: Floats, canaries: int) -> Floats:
    """The cells of the units, shape (marginals, canaries)."""
    sizes = [table.events.size for table in plan.tables]
    starts = np.cumsum([0, *sizes[:-1]])
    return np.stack([flat[start : start + canaries] for start in starts])
