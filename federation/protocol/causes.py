"""The failure taxonomy of Acme: 29 reasons in three domains (infrastructure, framework, script).

Names and numbers are those of Table 3 in Hu et al., "Characterization of Large Language Model Development in the
Datacenter", NSDI 2024; the table is `causes.toml`. Slugs name rows of plans and releases, so a slug is never reused.

    >>> CAUSES["nvlink_error"].domain
    <Domain.INFRASTRUCTURE: 'infrastructure'>
    >>> len(causes_of(Domain.SCRIPT))
    11
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec import Meta

from federation.protocol.toml_tables import BadTable, LazyTable, loads, rows, shipped


class Domain(StrEnum):
    """The domain of a cause: the provider's hardware, the software stack, or the user's code."""

    INFRASTRUCTURE = "infrastructure"
    FRAMEWORK = "framework"
    SCRIPT = "script"


class Cause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reason. `observed` counts failures in Table 3; `share_of_lost_gpu_time` is in percent, of all domains.

    `advice` is one sentence: what a user does about it.
    """

    slug: Annotated[str, Meta(pattern="^[a-z][a-z0-9_]*$")]
    title: str
    domain: Domain
    observed: Annotated[int, Meta(gt=0)]
    share_of_lost_gpu_time: Annotated[float, Meta(ge=0, le=100)]
    advice: Annotated[str, Meta(pattern=r"^[^\n]+\.$")]


CAUSES: Mapping[str, Cause] = LazyTable(lambda: parse(shipped("federation.protocol", "causes.toml")))

# What the rows of Table 3 add up to: failures, and lost GPU time in percent (99.99 in all, since rows are rounded).
_OBSERVED = {Domain.INFRASTRUCTURE: 281, Domain.FRAMEWORK: 404, Domain.SCRIPT: 1890}
_SHARES = {Domain.INFRASTRUCTURE: 82.06, Domain.FRAMEWORK: 14.71, Domain.SCRIPT: 3.22}


def causes_of(domain: Domain) -> tuple[Cause, ...]:
    """The reasons of one domain, in the order of Table 3."""
    return tuple(cause for cause in CAUSES.values() if cause.domain is domain)


def parse(text: str) -> Mapping[str, Cause]:
    """Read a table of causes by domain; BadTable unless it is Table 3 (keys, 29 unique reasons, sums by domain)."""
    file = "causes.toml"
    domains = loads(text, file)
    if list(domains) != list(Domain):
        raise BadTable(f"{file}: the domains are {[str(one) for one in Domain]}, this table has {list(domains)}")
    causes = [cause for name, table in domains.items() for cause in rows(table, Cause, file, "slug", domain=name)]
    unique = min(len({cause.slug for cause in causes}), len({cause.title for cause in causes}))
    if len(causes) != 29 or unique != 29:
        raise BadTable(f"{file}: Table 3 has 29 reasons, this table has {len(causes)}, of which {unique} are unique")
    for domain in Domain:
        _check_sums(domain, [cause for cause in causes if cause.domain is domain])
    return MappingProxyType({cause.slug: cause for cause in causes})


def _check_sums(domain: Domain, causes: Sequence[Cause]) -> None:
    observed = sum(cause.observed for cause in causes)
    share = sum(cause.share_of_lost_gpu_time for cause in causes)
    if observed != _OBSERVED[domain] or abs(share - _SHARES[domain]) > 0.001:
        raise BadTable(
            f"causes.toml: {domain}: {observed} failures and {share:.2f}% of lost GPU time do not add up to Table 3"
        )
