"""One federated week from beginning to end: who does what, in order. This is the function to read first.

Tenants are reached through `Tenants` (a Flower grid, in process or through a SuperLink), trustees through
`TrusteeService` of the tenant's side, which the provider knows only by the two methods it uses.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from crypto.plan import Plan
from crypto.verbs import Verb
from provider_server.provider import Provider, Window
from provider_server.release import Release
from provider_server.tenants import Tenants


class MaskHolder(Protocol):
    """What the provider needs of a trustee."""

    @property
    def index(self) -> int:
        """Its number in the directory."""

    def unmask(self, request: bytes) -> bytes:
        """Signed UnmaskRequest in, UnmaskShare out."""


class Stage(StrEnum):
    """The stages of a week, in order; each is announced when it begins."""

    REGISTER = "register"
    PLAN = "plan"
    CONTRIBUTE = "contribute"
    UNMASK = "unmask"
    RELEASE = "release"
    LEARN = "learn"
    PUBLISH = "publish"
    DONE = "done"


def federated_week(
    provider: Provider,
    tenants: Tenants,
    trustees: Sequence[MaskHolder],
    window: Window,
    announce: Callable[[Stage], None] = lambda stage: None,
) -> Release:
    """Runs the week whose hours are `window` and returns its release.

    Refusals of the whole round (too few contributions, nothing to count) propagate; a single tenant's fault does not.
    """
    announce(Stage.REGISTER)
    for answer in tenants.ask(Verb.REGISTRATIONS, provider.registration_request(window)):
        provider.register(answer)

    announce(Stage.PLAN)
    plan = provider.plan(window)
    release = federated_round(provider, tenants, trustees, plan, announce)

    announce(Stage.LEARN)
    releases = provider.releases()
    findings = provider.learn(releases)

    announce(Stage.PUBLISH)
    for _receipt in tenants.ask(Verb.BUNDLE, provider.publish(releases, findings)):
        pass
    announce(Stage.DONE)
    return release


def federated_round(
    provider: Provider,
    tenants: Tenants,
    trustees: Sequence[MaskHolder],
    plan: Plan,
    announce: Callable[[Stage], None] = lambda stage: None,
) -> Release:
    """From a plan to its release: collect masked tables, close the set, unmask once, pass the gate."""
    announce(Stage.CONTRIBUTE)
    round_ = provider.open_round(plan)
    for answer in tenants.ask(Verb.CONTRIBUTION, round_.signed_plan):
        provider.receive(round_, answer)

    announce(Stage.UNMASK)
    request = round_.close()
    masking = {trustee.index for trustee in plan.trustees}
    noisy_sum = round_.unmask(trustee.unmask(request) for trustee in trustees if trustee.index in masking)

    announce(Stage.RELEASE)
    return provider.release(round_, noisy_sum)
