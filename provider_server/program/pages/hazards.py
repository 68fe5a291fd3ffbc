"""Hazards by the age of a job: a curve for each context and build-up level, as the newest bundle has them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from federation.protocol.bundle import HazardEntry
from provider_server.program.pages.snapshot import Snapshot

UNKNOWN = "not known yet"
KNOWN_WITHIN = 100.0  # an interval whose ends are further apart, as a ratio, says nothing that anybody could use


@dataclass(frozen=True)
class Band:
    """Failures per 1,000 node-hours in an age band, with the interval; whether that says anything (`is_known`)."""

    label: str
    rate: float
    low: float
    high: float
    known: bool


def is_known(entry: HazardEntry) -> bool:
    """Whether the interval of a rate is narrow enough to show the rate."""
    return entry.rate_high <= KNOWN_WITHIN * entry.rate_low


@dataclass(frozen=True)
class Curve:
    """The hazard of a context at a build-up level, None both where the token's meaning is not known here.

    `panel` is the picture that it belongs into: that of its context.
    """

    name: str
    panel: str
    context: int | None
    level: int | None
    bands: tuple[Band, ...]


def hazard_curves(seen: Snapshot) -> tuple[Curve, ...]:
    """Curves of the newest bundle, by context and build-up level."""
    if not seen.learnt:
        return ()
    bundle = seen.learnt[-1]
    by_level: defaultdict[str, list[HazardEntry]] = defaultdict(list)
    for entry in bundle.hazards:
        by_level[str(entry.context_level)].append(entry)
    labels = band_labels(bundle.band_edges_hours)
    curves = [_curve(seen, token, entries, labels) for token, entries in by_level.items()]
    return tuple(sorted(curves, key=lambda one: (one.context is None, one.context or 0, one.level or 0, one.name)))


def _curve(seen: Snapshot, token: str, entries: Sequence[HazardEntry], labels: Sequence[str]) -> Curve:
    place = seen.places.get(token)
    ordered = sorted(entries, key=lambda entry: int(entry.band) if entry.band.isdigit() else 0)
    return Curve(
        seen.name(token),
        seen.group_name(place.context) if place else seen.name(token),
        place.context if place else None,
        place.level if place else None,
        tuple(Band(_label(one.band, labels), one.rate, one.rate_low, one.rate_high, is_known(one)) for one in ordered),
    )


def _label(band: str, labels: Sequence[str]) -> str:
    return labels[int(band)] if band.isdigit() and int(band) < len(labels) else f"band {band}"


def band_labels(edges_hours: Sequence[float]) -> tuple[str, ...]:
    """The age bands for a person; the last one is open.

    >>> band_labels((0.0, 24.0, 168.0, 100000.0))
    ('0–24 h', '1–7 d', 'from 7 d')
    """
    last = len(edges_hours) - 2
    return tuple(
        f"from {_age(low)}" if place == last and place else _span(low, high)
        for place, (low, high) in enumerate(pairwise(edges_hours))
    )


def _span(low: float, high: float) -> str:
    unit, name = (24.0, "d") if low >= 24 and low % 24 == high % 24 == 0 else (1.0, "h")
    return f"{low / unit:g}–{high / unit:g} {name}"


def _age(hours: float) -> str:
    return f"{hours / 24:g} d" if hours >= 24 and hours % 24 == 0 else f"{hours:g} h"
