"""One federated week from beginning to end, step by step. Read `federated_week` first.

Tenants are reached through `Tenants` (a Flower grid, in process or over a SuperLink), trustees through `MaskHolder`.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from crypto.errors import AlreadyAnswered, MemberRefused, OutOfOrder, PharoahError, Refusal, Unreachable
from crypto.ids import Digest
from federation.protocol.queries import Query
from provider_server.analysis.hazard import Unsettled
from provider_server.learning.publication_gate import HeldBack, check
from provider_server.learning.publisher import Publisher
from provider_server.rounds.provider import Provider
from provider_server.rounds.release import Release
from provider_server.rounds.round import Round
from provider_server.rounds.schedule import Window
from provider_server.store.round_store import Answer, RoundState

logger = logging.getLogger(__name__)


class Tenants(Protocol):
    """The transport to the tenants."""

    def ask(self, query: Query, payload: bytes) -> Iterator[bytes]:
        """Sends `payload` to all connected tenants and yields their answers as they arrive; failing ones yield none."""


class MaskHolder(Protocol):
    """What the provider needs of a trustee."""

    @property
    def index(self) -> int:
        """Its index in the directory."""

    def follow(self, update: bytes) -> bytes:
        """DirectoryUpdate in, Receipt out."""

    def endorse(self, request: bytes) -> bytes:
        """Signed UnmaskRequest in, signed Endorsement out."""

    def unmask(self, call: bytes) -> bytes:
        """UnmaskCall in, signed UnmaskShare out."""


class Stage(StrEnum):
    """The stages of a week, in order."""

    DIRECTORY = "directory"
    REGISTER = "register"
    PLAN = "plan"
    CONTRIBUTE = "contribute"
    ENDORSE = "endorse"
    UNMASK = "unmask"
    RELEASE = "release"
    LEARN = "learn"
    PUBLISH = "publish"
    DONE = "done"


def federated_week(
    provider: Provider,
    publisher: Publisher | None,
    tenants: Tenants,
    trustees: Sequence[MaskHolder],
    window: Window,
    announce: Callable[[Stage], None] = lambda stage: None,
) -> Release:
    """Holds the round over the hours `window`, or finishes the oldest open round instead, and returns its release.

    While a trustee is away, so that the oldest round waits, the round over `window` is collected and waits behind it;
    the trustee's error propagates. Without a `publisher` the week ends with the release, and no bundle is published.
    Refusals of the whole round (too few contributions, nothing to count) propagate; a single tenant's fault does not.
    The first round of a new series comes after a second opening of the one before, for the weeks that members missed.
    `announce` is called as each stage begins.
    """
    announce(Stage.DIRECTORY)
    tell_directory(provider, trustees)
    for _receipt in tenants.ask(Query.DIRECTORY, provider.members.update()):
        pass

    unfinished = provider.unfinished()
    round_ = unfinished or begin_round(provider, tenants, window, announce)

    try:
        release = federated_round(provider, tenants, trustees, round_, announce)
        if unfinished is None and release.plan.is_second:
            logger.info("round %s: opened a second time, for what missed it", release.plan.round_id)
            round_ = begin_round(provider, tenants, window, announce)
            release = federated_round(provider, tenants, trustees, round_, announce)
    except Refusal:
        raise
    except PharoahError:  # a trustee is away
        collect_behind(provider, tenants, window)
        raise
    if publisher is not None:
        publish(publisher, tenants, announce)
    announce(Stage.DONE)
    return release


def begin_round(
    provider: Provider, tenants: Tenants, window: Window, announce: Callable[[Stage], None] = lambda stage: None
) -> Round:
    """Asks every tenant what runs on its leases, and opens the round over `window` for contributions.

    Before a round of a later window, the last one is opened a second time if its series says so and members missed it.
    """
    unheard = provider.unheard_weeks()
    if unheard is not None and unheard < window:
        window = unheard
    announce(Stage.REGISTER)
    for answer in tenants.ask(Query.REGISTRATIONS, provider.registration_request(window)):
        provider.register(answer)

    announce(Stage.PLAN)
    return provider.open_round(provider.plan(window))


def collect_behind(provider: Provider, tenants: Tenants, window: Window) -> None:
    """While the oldest round waits for a trustee, collects the one over `window`, which then waits behind it.

    Does nothing for a window before the newest round's end. What stops it is logged: it is tried again.
    """
    try:
        *_, newest = provider.waiting()
        if newest.state is not RoundState.COLLECTING and newest.plan.end_hour <= window[0]:
            newest = begin_round(provider, tenants, window)
        if newest.state is RoundState.COLLECTING:
            _collect(provider, tenants, newest)
            _collect_late(provider, tenants, newest)
            newest.collected()
            logger.info("round %s waits for the one before it", newest.plan.round_id, extra={"event": "collected"})
    except PharoahError as error:
        logger.warning("hours %d–%d are not collected yet: %s", *window, error.what)


def _collect(provider: Provider, tenants: Tenants, round_: Round) -> None:
    """Asks for contributions."""
    for answer in tenants.ask(Query.CONTRIBUTION, round_.signed_plan):
        provider.receive(round_, answer)


def _collect_late(provider: Provider, tenants: Tenants, round_: Round) -> None:
    """Asks for contributions to earlier rounds of the series that were charged and did not arrive.

    One to a round that waits for a trustee is not taken yet, so a round that was collected behind it asks again.
    """
    asked: frozenset[Digest] = frozenset()
    while wanted := provider.unheard(round_) - asked:  # one that arrives may name another
        asked |= wanted
        for answer in tenants.ask(Query.UNHEARD, provider.unheard_request(wanted)):
            provider.receive_late(wanted, answer)


def publish(publisher: Publisher, tenants: Tenants, announce: Callable[[Stage], None] = lambda stage: None) -> bool:
    """Learns from all releases, publishes a bundle and sends it to every tenant; whether it did.

    A bundle that predicts worse than the one in force, or whose fit does not settle, is held back: logged and not
    published. The release stands in either case.
    """
    announce(Stage.LEARN)
    releases = publisher.releases()
    try:
        check(publisher.review(releases))
        findings = publisher.learn(releases)
    except (HeldBack, Unsettled) as held:
        logger.warning("bundle held back: %s", held.what, extra={"event": "held back", "hint": held.hint})
        return False

    announce(Stage.PUBLISH)
    for _receipt in tenants.ask(Query.BUNDLE, publisher.publish(releases, findings)):
        pass
    return True


def tell_directory(provider: Provider, trustees: Sequence[MaskHolder]) -> None:
    """Sends the directory to every trustee; one that fails is logged, and gets it again in the next round."""
    for trustee in trustees:
        try:
            trustee.follow(provider.members.update())
        except PharoahError as error:
            cause = type(error).__name__, error.what
            logger.warning("trustee %d has not taken the directory: %s: %s", trustee.index, *cause)


def federated_round(
    provider: Provider,
    tenants: Tenants,
    trustees: Sequence[MaskHolder],
    round_: Round,
    announce: Callable[[Stage], None] = lambda stage: None,
) -> Release:
    """From a plan to its release: collect masked tables, fix the set, unmask once, release.

    Continues from the round's stored state and repeats no step. The error of a party that is away propagates; the same
    call later continues.
    """
    holders = {trustee.index: trustee for trustee in trustees}

    if round_.state is RoundState.COLLECTING:
        announce(Stage.CONTRIBUTE)
        _collect(provider, tenants, round_)

    if round_.state in (RoundState.COLLECTING, RoundState.COLLECTED):
        _collect_late(provider, tenants, round_)
        provider.close_round(round_)

    if round_.state is RoundState.ENDORSING:
        announce(Stage.ENDORSE)
        while refusals := _endorsed(provider, round_, holders):
            provider.drop_refused(round_, refusals)
        _complete_quorum(provider, round_, holders)

    announce(Stage.UNMASK)
    for index in sorted(round_.missing(Answer.SHARE)):
        round_.share(index, _unmasked(provider, round_, holders[index]))

    announce(Stage.RELEASE)
    return provider.release(round_)


def _endorsed(provider: Provider, round_: Round, holders: Mapping[int, MaskHolder]) -> list[MemberRefused]:
    """Asks the mask trustees that have not endorsed the set, and returns their refusals of single contributions."""
    refusals = []
    for index in sorted(round_.missing(Answer.ENDORSEMENT)):
        holders[index].follow(provider.members.update())
        try:
            round_.endorse(index, _word_of(provider, round_, holders[index]))
        except MemberRefused as refusal:
            refusals.append(refusal)
    return refusals


def _word_of(provider: Provider, round_: Round, holder: MaskHolder) -> bytes:
    """The trustee's endorsement. A successor learns the earlier rounds first, by the endorsements of the others."""
    try:
        return holder.endorse(round_.request)
    except OutOfOrder:
        history = provider.history(round_, holder.index)
        if not history:
            raise
        for earlier in history[:-1]:
            holder.endorse(earlier.request)
            holder.unmask(earlier.call())
        return holder.endorse(round_.request)


def _unmasked(provider: Provider, round_: Round, holder: MaskHolder) -> bytes:
    """The trustee's share. A successor of one that endorsed, and is lost since, endorses the same set first."""
    try:
        return holder.unmask(round_.call())
    except AlreadyAnswered:
        if not provider.history(round_, holder.index):
            raise
        holder.follow(provider.members.update())
        _word_of(provider, round_, holder)
        return holder.unmask(round_.call())


def _complete_quorum(provider: Provider, round_: Round, holders: Mapping[int, MaskHolder]) -> None:
    """Asks trustees that do not mask, one by one, until enough have endorsed.

    If too few do, the error of one that is away is raised, before a refusal: others may make up for that one.
    """
    failures: list[PharoahError] = []
    for index in round_.idle():
        if round_.state is not RoundState.ENDORSING:
            return
        if index in holders:
            try:
                holders[index].follow(provider.members.update())
                round_.endorse(index, holders[index].endorse(round_.request))
            except PharoahError as error:
                failures.append(error)
    if round_.state is RoundState.ENDORSING:
        missing = Unreachable(f"round {round_.plan.round_id}: too few trustees are reached for a quorum")
        raise min(failures, key=lambda error: isinstance(error, Refusal), default=missing)
