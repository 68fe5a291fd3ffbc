"""The failure taxonomy of Acme: 29 reasons in three domains (infrastructure, framework, script).

Names and numbers are those of Table 3 in Hu et al., "Characterization of Large Language Model Development in the
Datacenter", NSDI 2024; the table is `causes.toml`. Slugs name rows of plans and releases, so a slug is never reused.

    >>> CAUSES["nvlink_error"].domain
    <Domain.INFRASTRUCTURE: 'infrastructure'>
    >>> len(causes_of(Domain.SCRIPT))
    11
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any


class Domain(StrEnum):
    """The domain of a cause: the provider's hardware, the software stack, or the user's code."""

    INFRASTRUCTURE = "infrastructure"
    FRAMEWORK = "framework"
    SCRIPT = "script"


@dataclass(frozen=True)
class Cause:
    """One reason. `observed` counts failures in Table 3; `share_of_lost_gpu_time` is in percent, of all domains."""

    slug: str
    title: str
    domain: Domain
    observed: int
    share_of_lost_gpu_time: float


class _Causes(Mapping[str, Cause]):
    """The table by slug, read when it is first asked, so that importing this module does no I/O."""

    def __getitem__(self, slug: str) -> Cause:
        return _table()[slug]

    def __iter__(self) -> Iterator[str]:
        return iter(_table())

    def __len__(self) -> int:
        return len(_table())


CAUSES: Mapping[str, Cause] = _Causes()

# What the rows of Table 3 add up to: failures, and lost GPU time in percent (99.99 in all, since rows are rounded).
_OBSERVED = {Domain.INFRASTRUCTURE: 281, Domain.FRAMEWORK: 404, Domain.SCRIPT: 1890}
_SHARES = {Domain.INFRASTRUCTURE: 82.06, Domain.FRAMEWORK: 14.71, Domain.SCRIPT: 3.22}


def causes_of(domain: Domain) -> tuple[Cause, ...]:
    """The reasons of one domain, in the order of Table 3."""
    return tuple(cause for cause in CAUSES.values() if cause.domain is domain)


def parse(text: str) -> Mapping[str, Cause]:
    """Read a table of causes by domain; ValueError unless it is Table 3 (keys, 29 unique reasons, sums by domain)."""
    domains = tomllib.loads(text)
    if list(domains) != list(Domain):
        raise ValueError(f"the domains are {[str(domain) for domain in Domain]}, this table has {list(domains)}")
    causes = [_cause(slug, Domain(domain), row) for domain, rows in domains.items() for slug, row in rows.items()]
    unique = min(len({cause.slug for cause in causes}), len({cause.title for cause in causes}))
    if len(causes) != 29 or unique != 29:
        raise ValueError(f"Table 3 has 29 reasons, this table has {len(causes)}, of which {unique} are unique")
    for domain in Domain:
        _check_sums(domain, [cause for cause in causes if cause.domain is domain])
    return MappingProxyType({cause.slug: cause for cause in causes})


@cache
def _table() -> Mapping[str, Cause]:
    return parse(resources.files(__package__).joinpath("causes.toml").read_text(encoding="utf-8"))


def _check_sums(domain: Domain, causes: Sequence[Cause]) -> None:
    observed = sum(cause.observed for cause in causes)
    share = sum(cause.share_of_lost_gpu_time for cause in causes)
    if observed != _OBSERVED[domain] or abs(share - _SHARES[domain]) > 0.001:
        raise ValueError(f"{domain}: {observed} failures and {share:.2f}% of lost GPU time do not add up to Table 3")


def _cause(slug: str, domain: Domain, row: Mapping[str, Any]) -> Cause:
    wanted = {"title", "observed", "share_of_lost_gpu_time"}
    if not slug.isidentifier() or slug != slug.lower() or set(row) != wanted:
        raise ValueError(f"cause {slug!r} has keys {sorted(row)}, wanted are {sorted(wanted)} under a lower-case slug")
    cause = Cause(slug, row["title"], domain, row["observed"], row["share_of_lost_gpu_time"])
    if type(cause.observed) is not int or cause.observed <= 0 or not 0 <= cause.share_of_lost_gpu_time <= 100:
        raise ValueError(f"cause {slug!r}: observed must be a positive number, the share a percentage")
    return cause
