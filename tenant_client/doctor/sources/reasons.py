"""All reasons that a diagnosis may name: Acme's 29 and, below them, finer ones; the table of these is `reasons.toml`.

A finer reason stays with the tenant. A round counts its parent, or nothing (`counted_as`).

    >>> counted_as("segmentation_fault"), counted_as("nvlink_error"), counted_as("collective_timeout")
    ('runtime_error', 'nvlink_error', 'unknown')
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec import Meta

from federation.protocol.causes import CAUSES, Domain
from federation.protocol.toml_tables import BadTable, LazyTable, convert, loads, shipped

UNKNOWN = "unknown"
SENTENCE = r"^[^\n]+\.$"


@dataclass(frozen=True)
class Reason:
    """One reason. `parent` is a slug of `CAUSES`, itself for those, "" for none; `domain` is None if it may be any.

    `counted` says whether rounds count it, as its parent; `ended` that somebody ended a job that had not failed.
    """

    slug: str
    title: str
    parent: str
    domain: Domain | None
    counted: bool
    ended: bool
    advice: str


REASONS: Mapping[str, Reason] = LazyTable(lambda: parse(shipped("tenant_client.doctor.sources", "reasons.toml")))


def counted_as(reason: str, domain: str = "") -> str:
    """What rounds count for a reason: a slug of `CAUSES`, or "unknown".

    `domain` is whose fault the evidence says it is, "" where it says nothing of it. Where that is another's than the
    slug's, nothing is known that rounds could count.
    """
    known = REASONS.get(reason)
    if known is None or not known.counted or domain not in ("", CAUSES[known.parent].domain):
        return UNKNOWN
    return known.parent


def somebody_ended(reason: str) -> bool:
    """Whether it says that a person or a scheduler ended a job that had not failed."""
    known = REASONS.get(reason)
    return known is not None and known.ended


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    advice: Annotated[str, Meta(pattern=SENTENCE)]
    parent: str = ""
    domain: Domain | None = None
    counted: bool = True
    ended: bool = False


def parse(text: str) -> Mapping[str, Reason]:
    """Read a table of finer reasons and put it behind Acme's; BadTable unless each is new and counts as one of them."""
    reasons = {
        one.slug: Reason(one.slug, one.title, one.slug, one.domain, counted=True, ended=False, advice=one.advice)
        for one in CAUSES.values()
    }
    for slug, row in loads(text, "reasons.toml").items():
        row = convert(row, _Row, "reasons.toml")
        if slug in reasons or slug == UNKNOWN:
            raise BadTable(f"reasons.toml: {slug} is a reason already")
        if row.parent not in CAUSES and (row.parent or row.counted):
            raise BadTable(f"reasons.toml: {slug} is counted as {row.parent!r}, which is none of Table 3")
        domain = row.domain or (CAUSES[row.parent].domain if row.counted else None)
        reasons[slug] = Reason(slug, row.title, row.parent, domain, row.counted, row.ended, row.advice)
    return MappingProxyType(reasons)
