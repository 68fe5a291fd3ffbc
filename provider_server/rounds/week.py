"""One federated round from beginning to end, step by step. Read `federated_week` first.

Tenants are reached through `Tenants` (a Flower grid, in process or over a SuperLink), trustees through `MaskHolder`.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NoReturn, Protocol

from crypto.codec import MAX_MESSAGE_BYTES
from crypto.errors import AlreadyAnswered, MemberRefused, PharoahError, Refusal, Unreachable
from federation.protocol.queries import Query
from provider_server.fleet.analysis.hazard import Unsettled
from provider_server.fleet.learning.publication_gate import HeldBack, check
from provider_server.fleet.release import Release
from provider_server.rounds.opening import open_release
from provider_server.rounds.provider import Provider
from provider_server.rounds.publisher import Publisher
from provider_server.rounds.round import Round
from provider_server.rounds.schedule import Window
from provider_server.rounds.store.round_store import Answer, RoundState
from provider_server.rounds.warned import record_of

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
    """The stages of a round, in order."""

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
    """Holds the round over the hours `window`, or finishes the open round instead, and returns its release.

    Without a `publisher` it ends with the release, and no bundle is published. Refusals of the whole round (too few
    contributions, nothing to count) propagate, as does the error of a trustee that is away; a single tenant's fault
    does not. `announce` is called as each stage begins.
    """
    announce(Stage.DIRECTORY)
    tell_directory(provider, trustees)
    for _receipt in tenants.ask(Query.DIRECTORY, provider.members.update()):
        pass

    round_ = provider.unfinished()
    if round_ is not None and round_.state is RoundState.GIVING_UP:
        give_up(provider, trustees, round_)
        round_ = None
    tell_ended(provider, tenants, round_.plan.window if round_ else window)
    round_ = round_ or begin_round(provider, tenants, window, announce)

    release = federated_round(provider, tenants, trustees, round_, announce)
    show_record(provider, tenants, release)
    if publisher is not None:
        publish(publisher, tenants, announce)
    announce(Stage.DONE)
    return release


def tell_ended(provider: Provider, tenants: Tenants, window: Window) -> None:
    """Shows every tenant who was counted in the rounds before `window`: what was not counts again in the next."""
    ended = provider.ended(window)
    for _receipt in tenants.ask(Query.ENDED, ended) if ended else ():
        pass


def show_record(provider: Provider, tenants: Tenants, release: Release) -> None:
    """Shows every tenant what proves the sum of a round that counts warnings, if that fits into a message."""
    named = release.plan.round_id
    record = record_of(provider.store.rounds, named) or b""
    if len(record) > MAX_MESSAGE_BYTES:
        logger.warning("round %s: its record of %d MB is no message", named, len(record) // 10**6)
        return
    for _receipt in tenants.ask(Query.RECORD, record) if record else ():
        pass


def begin_round(
    provider: Provider, tenants: Tenants, window: Window, announce: Callable[[Stage], None] = lambda stage: None
) -> Round:
    """Asks every tenant what runs on its leases, and opens the round over `window` for contributions."""
    announce(Stage.REGISTER)
    for answer in tenants.ask(Query.REGISTRATIONS, provider.registration_request(window)):
        provider.register(answer)

    announce(Stage.PLAN)
    return provider.open_round(provider.plan(window))


def give_up(provider: Provider, trustees: Sequence[MaskHolder], round_: Round) -> None:
    """Ends a round without a release: a quorum of trustees endorses that nobody is in it.

    Its units count in the next round. One whose set was endorsed ends with that set, and one of which trustees endorsed
    so much that no quorum is left ends with none: then those in it are not counted again. The error of a trustee that
    is away propagates, and the same call later continues.
    """
    round_.give_up()
    holders = {trustee.index: trustee for trustee in trustees}

    def ask(holder: MaskHolder) -> None:
        round_.endorse_empty(holder.index, holder.endorse(round_.empty_request))

    waiting = [holders[index] for index in round_.silent(Answer.EMPTY) if index in holders]
    failures = _asked_in_turn(provider, round_, RoundState.GIVING_UP, waiting, ask)
    if round_.state is RoundState.GIVING_UP:
        _end_without_set(round_, failures)


def _end_without_set(round_: Round, failures: Sequence[PharoahError]) -> None:
    """Ends a round that is given up, if trustees have endorsed its set and are too many for a quorum on another."""
    bound = sum(isinstance(error, AlreadyAnswered) for error in failures)
    if not round_.can_end_empty(bound):
        round_.refuse()
        logger.warning("round %s: trustees are bound to its set, and none is shown to tenants", round_.plan.round_id)
        return
    _raise_first(round_, failures)


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
        logger.warning("bundle held back: %s", held.what, extra={"event": "held_back", "hint": held.hint})
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
        for answer in tenants.ask(Query.CONTRIBUTION, round_.signed_plan):
            provider.receive(round_, answer)
        round_.close(provider.group)

    if round_.state is RoundState.ENDORSING:
        announce(Stage.ENDORSE)
        while refusals := _endorsed(provider, round_, holders):
            round_.drop_refused(refusals, provider.group)
        _complete_quorum(provider, round_, holders)

    announce(Stage.UNMASK)
    for index in sorted(round_.missing(Answer.SHARE)):
        round_.share(index, holders[index].unmask(round_.call()))

    announce(Stage.RELEASE)
    return open_release(round_, provider.store)


def _endorsed(provider: Provider, round_: Round, holders: Mapping[int, MaskHolder]) -> list[MemberRefused]:
    """Asks the mask trustees that have not endorsed the set, and returns their refusals of single contributions."""
    refusals = []
    for index in sorted(round_.missing(Answer.ENDORSEMENT)):
        holders[index].follow(provider.members.update())
        try:
            round_.endorse(index, holders[index].endorse(round_.request))
        except MemberRefused as refusal:
            refusals.append(refusal)
    return refusals


def _complete_quorum(provider: Provider, round_: Round, holders: Mapping[int, MaskHolder]) -> None:
    """Asks trustees that do not mask, one by one, until enough have endorsed.

    If too few do, the error of one that is away is raised, before a refusal: others may make up for that one.
    """

    def ask(holder: MaskHolder) -> None:
        round_.endorse(holder.index, holder.endorse(round_.request))

    idle = [holders[index] for index in round_.idle() if index in holders]
    failures = _asked_in_turn(provider, round_, RoundState.ENDORSING, idle, ask)
    if round_.state is RoundState.ENDORSING:
        _raise_first(round_, failures)


def _asked_in_turn(
    provider: Provider,
    round_: Round,
    during: RoundState,
    holders: Sequence[MaskHolder],
    ask: Callable[[MaskHolder], None],
) -> list[PharoahError]:
    """Asks trustees one by one, as long as the round is in that state; the errors of those that fail."""
    failures: list[PharoahError] = []
    for holder in holders:
        if round_.state is not during:
            break
        try:
            holder.follow(provider.members.update())
            ask(holder)
        except PharoahError as error:
            failures.append(error)
    return failures


def _raise_first(round_: Round, failures: Sequence[PharoahError]) -> NoReturn:
    missing = Unreachable(f"round {round_.plan.round_id}: too few trustees are reached for a quorum")
    raise min(failures, key=lambda error: isinstance(error, Refusal), default=missing)
