"""Views for the owner: the preview of a contribution, the sent data, and the privacy budget."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from crypto.codec import encode
from crypto.ids import Digest, Nonce, RoundId, Signature
from crypto.signing import Signed, name_of
from federation.protocol.noise import Integers
from federation.protocol.plan import Marginal, Plan
from federation.protocol.privacy_cost import PrivacyLoss, plan_loss
from federation.protocol.round_messages import Contribution, ContributionHeader
from tenant_client.doctor.records.outcomes import SentOutcome
from tenant_client.doctor.records.questions import SentQuestions
from tenant_client.rounds.disclosure.message_layout import CELLS, Part, layout
from tenant_client.rounds.tenant import Tenant


@dataclass(frozen=True)
class PreviewCell:
    """A cell that is not zero: its offset in the message, its meaning, and its count before noise and masks."""

    offset: int
    marginal: str
    cell: tuple[tuple[str, str], ...]
    count: int


@dataclass(frozen=True)
class Preview:
    """The answer to a plan, byte by byte, before it is sent.

    It counts from `counts_from_hour` to the end of the window: windows that were not counted before are included.
    `epsilon` is the cost of a lease in a window, `whole_job_epsilon` that of one that ran in all that are counted.
    """

    round_id: str
    window_hours: tuple[int, int]
    counts_from_hour: int
    message_bytes: int
    cells: int
    epsilon: float
    whole_job_epsilon: float
    delta: float
    mechanism: str
    noise_scales: tuple[tuple[str, float], ...]
    counts: tuple[PreviewCell, ...]
    layout: tuple[Part, ...]


def preview(tenant: Tenant, plan: Plan) -> Preview:
    """The preview of an answer to `plan`. Read only: no charge, no noise drawn, nothing stored."""
    counted, loss, begins = tenant.counts(plan), plan_loss(plan), tenant.begins(plan)
    windows = plan.position_at(plan.start_hour) - plan.position_at(begins) + 1
    parts = layout(tenant.outbox.sent(plan.round_id) or _same_in_form(tenant, plan), plan)
    starts = [part.offset for part in parts if part.field.startswith(CELLS)]
    return Preview(
        round_id=str(plan.round_id),
        window_hours=(plan.start_hour, plan.end_hour),
        counts_from_hour=begins,
        message_bytes=parts[-1].offset + parts[-1].length,
        cells=plan.cells,
        epsilon=loss.at(plan.delta),
        whole_job_epsilon=loss.of_group(windows).at(plan.delta),
        delta=plan.delta,
        mechanism=plan.mechanism,
        noise_scales=tuple((marginal.name, marginal.noise_scale) for marginal in plan.marginals),
        counts=tuple(
            cell
            for start, marginal, table in zip(starts, plan.marginals, counted, strict=True)
            for cell in _cells(start, plan, marginal, table)
        ),
        layout=parts,
    )


def _same_in_form(tenant: Tenant, plan: Plan) -> bytes:
    """A message with the form and length of a contribution, and filler in place of secrets."""
    filler = hashlib.shake_256(b"pharoah/preview").digest(8 * plan.words + 144)
    start_hour, nonce = tenant.begins(plan), Nonce(filler[128:144])
    header = ContributionHeader(tenant.id, plan.round_id, Digest(filler[:32]), start_hour, nonce, Digest(filler[32:64]))
    signed = encode(Signed(Signature(filler[64:128]), memoryview(encode(header))))
    return encode(Contribution(signed, memoryview(filler[144:])))


def _cells(start: int, plan: Plan, marginal: Marginal, counts: Integers) -> Iterator[PreviewCell]:
    levels = {dimension.name: dimension.levels for dimension in plan.dimensions}
    for place in np.argwhere(counts):
        named = tuple((name, levels[name][at]) for name, at in zip(marginal.dimensions, place, strict=True))
        offset = start + 8 * int(np.ravel_multi_index(tuple(place), counts.shape))
        yield PreviewCell(offset, marginal.name, named, int(counts[tuple(place)]))


@dataclass(frozen=True)
class SentContribution:
    """A contribution as sent (retries are identical). It counts from `counts_from_hour` to the end of the window."""

    round_id: str
    window_hours: tuple[int, int]
    counts_from_hour: int
    message_bytes: int
    sha256: str


@dataclass(frozen=True)
class SentTokens:
    """The four workload tokens of a lease, sent on the provider's request."""

    lease: str
    start_h: float
    epoch: int
    family: str
    archetype: str
    subarchetype: str
    exact: str


@dataclass(frozen=True)
class SentElements:
    """The number of blinded elements sent to a trustee in an epoch, whether or not it answered."""

    epoch: int
    trustee: int
    elements: int


@dataclass(frozen=True)
class SentOwnership:
    """The tokens whose ownership this tenant signed; the provider shows the signature to trustees."""

    epoch: int
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class SentLink:
    """A token of an epoch, and what it was in the epoch before; sent only if the policy has `link_epochs`."""

    epoch: int
    token_before: str
    token_now: str


@dataclass(frozen=True)
class SentReceipt:
    """An acknowledgement of a directory entry by its digest, sent on each request."""

    entry: int
    head: str


@dataclass(frozen=True)
class Sent:
    """All sent data by kind; in addition, each received bundle is acknowledged by its digest."""

    contributions: tuple[SentContribution, ...]
    registrations: tuple[SentTokens, ...]
    ownerships: tuple[SentOwnership, ...]
    links: tuple[SentLink, ...]
    evaluations: tuple[SentElements, ...]
    receipts: tuple[SentReceipt, ...]
    outcomes: tuple[SentOutcome, ...]
    questions: tuple[SentQuestions, ...]


def sent(tenant: Tenant) -> Sent:
    """All sent data, from the stored messages and from the notes written before other messages were sent."""
    return Sent(
        tuple(_sent_contribution(tenant, plan) for plan in tenant.plans()),
        tuple(
            SentTokens(
                lease=str(lease),
                start_h=start_h,
                epoch=epoch,
                family=str(ladder.family),
                archetype=str(ladder.archetype),
                subarchetype=str(ladder.subarchetype),
                exact=str(ladder.exact),
            )
            for lease, epoch, start_h, ladder in tenant.journal.told()
        ),
        tuple(_sent_ownerships(tenant)),
        tuple(_sent_links(tenant)),
        tuple(SentElements(*asked, elements) for asked, elements in tenant.tokens.evaluations().items()),
        tuple(_sent_receipts(tenant)),
        tuple(tenant.outcomes()),
        tuple(tenant.questions()),
    )


def _sent_ownerships(tenant: Tenant) -> Iterator[SentOwnership]:
    for epoch in sorted({epoch for _, epoch, _, _ in tenant.journal.told()}):
        yield SentOwnership(epoch, tuple(map(str, tenant.journal.held(epoch))))


def _sent_links(tenant: Tenant) -> Iterator[SentLink]:
    """Links are kept only under a policy that allows them; those of epochs that were asked about have left."""
    for epoch in sorted({epoch for _, epoch, _, _ in tenant.journal.told()}):
        for link in tenant.journal.links(epoch):
            yield SentLink(epoch, str(link.before), str(link.now))


def _sent_receipts(tenant: Tenant) -> Iterator[SentReceipt]:
    """Receipts name only pinned entries; requests are not recorded, so every possible receipt is listed."""
    for number, entry in enumerate(tenant.chain.entries):
        yield SentReceipt(number, str(name_of(entry)))


def _sent_contribution(tenant: Tenant, plan: Plan) -> SentContribution:
    message = tenant.outbox.sent(plan.round_id) or b""
    window, begins = (plan.start_hour, plan.end_hour), tenant.begins(plan)
    return SentContribution(str(plan.round_id), window, begins, len(message), hashlib.sha256(message).hexdigest())


@dataclass(frozen=True)
class SentBytes:
    """A part of a sent message: its offset, its meaning, and its bytes in hexadecimal."""

    part: Part
    hex: str


def sent_bytes(tenant: Tenant, round_id: RoundId) -> tuple[SentBytes, ...]:
    """Every byte of the contribution to a round; empty if the round was not answered."""
    message = tenant.outbox.sent(round_id)
    if message is None:
        return ()
    (plan,) = (plan for plan in tenant.plans() if plan.round_id == round_id)
    parts = layout(message, plan)
    return tuple(SentBytes(part, message[part.offset : part.offset + part.length].hex()) for part in parts)


@dataclass(frozen=True)
class BudgetLine:
    """The epsilon spent by a lease in a window, and what is left of the policy's limit.

    `rounds` are those that pay, `given_back` those whose answers were not opened.
    """

    window_hours: tuple[int, int]
    rounds: int
    given_back: int
    epsilon: float
    remaining: float


@dataclass(frozen=True)
class Budget:
    """The ledger for a person: by window, and the total of a lease that ran in all of them."""

    limit_epsilon: float
    delta: float
    lines: tuple[BudgetLine, ...]
    whole_job_epsilon: float


def budget(tenant: Tenant) -> Budget:
    """The state of the ledger against the policy."""
    policy, windows = tenant.policy, tenant.ledger.windows()
    lines = tuple(_line(tenant, window) for window in windows)
    losses = [tenant.ledger.spent(*window) for window in windows]
    return Budget(policy.epsilon_per_window, policy.delta, lines, _of_all(losses).at(policy.delta))


def _line(tenant: Tenant, window: tuple[int, int]) -> BudgetLine:
    start_h, end_h = window
    spent = tenant.ledger.spent(*window).at(tenant.policy.delta)
    over = [one for one in tenant.ledger.charges() if one.start_h < end_h and start_h < one.end_h]
    given_back = sum(one.is_given_back for one in over)
    left = max(0.0, tenant.policy.epsilon_per_window - spent)
    return BudgetLine(window, len(over) - given_back, given_back, spent, left)


def _of_all(losses: Sequence[PrivacyLoss]) -> PrivacyLoss:
    """Group privacy of a lease that ran in every window: epsilon adds up, and the square root of rho does."""
    return PrivacyLoss(sum(loss.epsilon for loss in losses), sum(loss.rho**0.5 for loss in losses) ** 2)
