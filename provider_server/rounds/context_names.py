"""What the provider calls its hardware groups: the operator's own words first.

A group is called as leases name it. Where telemetry made the group ("context 3" in leases), it is called as `[names]
contexts` in provider.toml says, or else by what tells it from the others, such as its model. The names stay with the
provider; what tenants see is `[names] contexts` alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from provider_server.fleet.analysis.contexts import Context
from provider_server.fleet.learning.hardware import Kept, label_of
from provider_server.rounds.lease_book import HARDWARE
from provider_server.rounds.settings import ProviderSettings
from provider_server.rounds.store.store import Store


def names_by_label(store: Store, settings: ProviderSettings, kept: Kept | None) -> dict[str, str]:
    """Names by what leases and provider.toml call each group."""
    public = settings.names.contexts
    written = {*store.note(HARDWARE), *public, *settings.leases.contexts.values()}
    described = {
        label_of(number): look for number, look in described_as(kept.contexts.contexts if kept else ()).items()
    }
    return {name: name for name in sorted(written)} | {
        label: public.get(label, look) for label, look in described.items()
    }


def names_by_token(
    tokens: Callable[[str, int], Mapping[str, str]], names: Mapping[str, str], levels: Iterable[int]
) -> dict[str, str]:
    """Names by token: of groups, and of groups at a wear level; `tokens` gives both for a label and a level."""
    found: dict[str, str] = {}
    for label, name in names.items():
        for level in levels:
            both = tokens(label, level)
            found |= {both["context"]: name, both["context_level"]: f"{name}, wear level {level}"}
    return found


def described_as(contexts: Sequence[Context]) -> dict[int, str]:
    """What tells each group from the others, by number; with the number where two are told in the same words."""
    looks = {one.number: one.description.rpartition(":")[0] or one.description for one in contexts}
    often = Counter(looks.values())
    return {number: look if often[look] == 1 else f"{look} (group {number})" for number, look in looks.items()}
