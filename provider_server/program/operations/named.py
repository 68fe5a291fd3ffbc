"""How many parts of the fabric, and how many contexts, a release names as suspected or slow: for metrics."""

from federation.protocol.subjects import Subject
from provider_server.fleet.analysis.slow_contexts import slow_contexts
from provider_server.fleet.learning.votes import suspected
from provider_server.fleet.release import Release
from provider_server.rounds.provider import Provider


def parts_named(provider: Provider, release: Release) -> int:
    """Parts that votes name; 0 where none are counted."""
    if provider.parts is None:
        return 0
    plan = release.plan
    leases, tokens = provider.store.leases(release.first_hour, plan.end_hour), provider.part_tokens(plan.epoch)
    return sum(one.is_named for one in suspected(release, leases, provider.parts, tokens))


def contexts_named(release: Release) -> int:
    """Contexts that are named as slower; 0 where slow leases are not counted."""
    if not release.counts(Subject.SPEED):
        return 0
    table = release.table(Subject.SPEED)
    slow, usual = table.at("pace", "slow"), table.at("pace", "usual")
    found = slow_contexts(table.levels("context"), slow.events, usual.events, slow.noise_variance)
    return sum(one.is_named for one in found)
