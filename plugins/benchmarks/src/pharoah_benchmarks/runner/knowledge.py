"""What is known of the pairs that stand-ins are chosen for: from releases and from what ran before."""

from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from pharoah_benchmarks.runner.plan import Context, Pairs
from provider_server.rounds import home as homes


def pairs_of(home: Path, database: str | None, contexts: Collection[Context]) -> Pairs | None:
    """Pairs of workloads with these contexts; None before the first release, when jobs run in turn."""
    with closing(homes.open_leases(home, database, homes.settings_of(home))) as book:
        known = homes.beliefs_of(home, book.store)
    if known is None:
        return None
    pairs, beliefs, token = known
    of = {token(context): context for context in contexts}
    return Pairs({(workload, of[told]): at for at, (workload, told) in enumerate(pairs) if told in of}, beliefs)
