"""Joins a bundle with what this tenant knows exactly: its own leases and how they ended. On this machine, at no budget.

    p(θ | all) ~ p(θ) (lent(θ) L(θ | contributions))^(1 - share) L(θ | own failures)

θ is a pair's failure rate over what workload and context explain. The bundle's evidence has all but the last factor,
and what to expect of a lease; own failures are Poisson, or negative binomial where leases differ, and what is uncertain
about the expectation is integrated over. `share` is what of the pair's expected failures was the tenant's own in the
contributions: that much of the evidence is its own again. Above half, the prior and its own failures are all.
The interval is that of the pair by itself, as in the bundle: of both likelihoods L, under a flat prior of log θ.

What it promises: nothing is counted twice, and nothing leaves. What follows from it may: a decision that the provider
sees (a job that does not start, a node that is left out) tells of exact outcomes; see docs/privacy.md.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.polynomial.hermite_e import hermegauss

from crypto.ids import Token
from federation.base.sqlite import Connection
from federation.base.visible import counted_as
from federation.protocol.bundle import Bundle, MismatchEntry, PairJudgement
from federation.protocol.evidence import Evidence, PairEvidence
from federation.protocol.judgement import HARMFUL_RATIO, LIKELY, surest, suspected
from federation.protocol.life_table import PER_NODE_HOURS, Floats
from federation.protocol.ratio_likelihood import LOG_RATIOS, below, log_lent, log_likelihood
from federation.protocol.round_messages import finest_row
from tenant_client.doctor.records.own_leases import OwnLease, answered_hours, own_leases

MOST_SHARE = 0.5
NOT_LEARNT_SD = 0.5  # of the log expectation of a pair without finding: workloads differ by half
_NODES, _WEIGHTS = hermegauss(7)

Hours = tuple[float, float]
Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class OwnPair:
    """All own leases of a workload on a context: failures and what was expected, each (leases,).

    `share` is what of all tenants' expected failures was its own, in contributions that are behind the bundle.
    """

    failures: Floats
    expected: Floats
    node_hours: float
    share: float

    @property
    def words(self) -> str:
        """For the owner."""
        leases = counted_as(len(self.failures), "lease")
        return f"{counted_as(int(self.failures.sum()), 'failure')} on {leases}, {self.expected.sum():.1f} expected"


@dataclass(frozen=True)
class Joined:
    """A bundle whose findings include the tenant's own history, which is `own` by workload and context."""

    bundle: Bundle
    own: Mapping[Pair, OwnPair]

    def of(self, labels: Mapping[str, str]) -> OwnPair | None:
        """The own history behind what is said of these labels."""
        rows = {str(entry.workload) for entry in self.bundle.mismatches}
        return self.own.get((finest_row(labels, rows), labels.get("context", "")))


def own_history(connection: Connection, bundle: Bundle, now_h: float) -> Joined:
    """The bundle with what the tenant's database knows."""
    rounds = frozenset(map(bytes, bundle.evidence.rounds)) if bundle.evidence else frozenset()
    return join(bundle, own_leases(connection, now_h), answered_hours(connection, rounds))


def join(bundle: Bundle, leases: Iterable[OwnLease], answered: Sequence[Hours]) -> Joined:
    """The bundle with own leases joined; `answered` are the hours that own contributions behind it count."""
    return Joiner(bundle).join(leases, answered)


class Joiner:
    """A bundle indexed for histories: each is joined without a walk through all of it but one."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._known = bundle.evidence if bundle.band_edges_hours else None
        entries = [((str(entry.workload), str(entry.context)), entry) for entry in bundle.mismatches]
        self._found = dict(entries)
        self._rows = {workload for workload, _ in self._found}
        behind = self._known.pairs if self._known else ()
        self._evidence = {pair: one for (pair, _), one in zip(entries, behind, strict=False)}
        self._rates = _Rates.of(bundle, self._known) if self._known else None

    def join(self, leases: Iterable[OwnLease], answered: Sequence[Hours]) -> Joined:
        """The bundle with these; without evidence in it, or without own leases under its tokens, it is as it was."""
        known, own = self._known, self._own_pairs(leases, answered)
        if known is None or not own:
            return Joined(self._bundle, {})
        learnt = [_Learnt.of(known, self._evidence.get(pair, _NOTHING), one) for pair, one in own.items()]
        probability, hours = np.array([_worse(one.mass) for one in learnt]), [one.node_hours for one in own.values()]
        sure, doubted = set(surest(probability).tolist()), suspected(probability, np.array(hours))
        found = dict(self._found)
        for place, (pair, one) in enumerate(own.items()):
            before = found.get(pair)
            entry = _entry(pair, before, one, learnt[place])
            if before is not None and before.judgement is PairJudgement.CONFOUNDED and probability[place] >= LIKELY:
                judgement = PairJudgement.CONFOUNDED
            elif doubted[place]:
                judgement = PairJudgement.WORSE if place in sure else PairJudgement.SUSPECTED
            else:
                judgement = _unsuspected(known, before, one, learnt[place])
            found[pair] = replace(entry, judgement=judgement)
        likely = dict(zip(own, (one.likely_high for one in learnt), strict=True))
        entries = tuple(self._with_alternatives(pair, found, likely) if pair in own else found[pair] for pair in found)
        return Joined(replace(self._bundle, mismatches=entries, evidence=None), own)

    def _own_pairs(self, leases: Iterable[OwnLease], answered: Sequence[Hours]) -> dict[Pair, OwnPair]:
        """Own leases by the rows of the bundle, in order; leases without tokens are left out."""
        failures, expected, hours, told = (defaultdict[Pair, list[float]](list) for _ in range(4))
        for lease in leases if self._rates else ():
            labels = lease.labels
            pair = finest_row(labels, self._rows) or labels.get("subarchetype", ""), labels.get("context", "")
            if all(pair):
                mean = self._expected(pair, lease)
                failures[pair].append(float(lease.failures))
                expected[pair].append(mean)
                hours[pair].append(lease.nodes * (lease.end_h - lease.start_h))
                told[pair].append(mean * _overlap((lease.start_h, lease.end_h), answered))
        return {
            pair: OwnPair(
                np.array(failures[pair]), np.array(expected[pair]), sum(hours[pair]), self._share(pair, sum(told[pair]))
            )
            for pair in failures
        }

    def _expected(self, pair: Pair, lease: OwnLease) -> float:
        """The failures of a lease, as workload and context alone explain them."""
        rates, evidence = self._rates, self._evidence.get(pair)
        return (evidence.usual if evidence else rates.usual) * rates.expected(lease) if rates else 0.0

    def _share(self, pair: Pair, told: float) -> float:
        """The share of a pair's expected failures that the tenant has told of."""
        of_all = self._found[pair].expected_failures if pair in self._found else 0.0
        return told / of_all if of_all > told else float(of_all > 0.0)

    def _with_alternatives(
        self, pair: Pair, found: Mapping[Pair, MismatchEntry], likely: Mapping[Pair, float]
    ) -> MismatchEntry:
        """The entry with contexts that its own history does not speak against, the bundle's first.

        Where the bundle names none: those where the workload fails less, at the upper end of what is `likely` (of
        pairs with own history), than here; the least first.
        """
        entry = found[pair]
        if entry.judgement not in _SUSPICIOUS:
            return replace(entry, alternatives=())
        others = {
            context: other
            for (workload, context), other in found.items()
            if workload == pair[0] and context != pair[1] and other.judgement not in _SUSPICIOUS
        }
        named = tuple(token for token in entry.alternatives if str(token) in others)
        if named or pair not in self._evidence:
            return replace(entry, alternatives=named)
        ratio = entry.risk_ratio if entry.probability_worse >= LIKELY else likely[pair]
        high = {c: self._likely_rate((pair[0], c), likely) for c in others if (pair[0], c) in self._evidence}
        bound = ratio * self._evidence[pair].usual_rate
        better = sorted((context for context in high if high[context] < bound), key=lambda c: (high[c], c))
        return replace(entry, alternatives=tuple(Token.fromhex(context) for context in better[:3]))

    def _likely_rate(self, pair: Pair, likely: Mapping[Pair, float]) -> float:
        """The upper end of a pair's likely rate: with own history, or as the bundle has it."""
        evidence = self._evidence[pair]
        if pair not in likely and self._known:
            return evidence.usual_rate * _quantile(_mass(_log_known(self._known, evidence, 1.0)), 0.975)
        return evidence.usual_rate * likely[pair]


# ---- what was expected ---------------------------------------------------------------------------------------------


def _overlap(hours: Hours, answered: Sequence[Hours]) -> float:
    """Which share of these hours is in answered ones, which do not overlap each other."""
    inside = sum(max(0.0, min(hours[1], end) - max(hours[0], start)) for start, end in answered)
    return inside / (hours[1] - hours[0])


@dataclass(frozen=True)
class _Rates:
    """Failures per node-hour of an average workload, by context level and band; `mean` (bands,) where none is known.

    `usual` is the mean factor of all pairs.
    """

    edges: tuple[float, ...]
    by_level: Mapping[str, Floats]
    mean: Floats
    usual: float

    @classmethod
    def of(cls, bundle: Bundle, known: Evidence) -> "_Rates":
        edges, bands = bundle.band_edges_hours, len(bundle.band_edges_hours) - 1
        places = {str(band): band for band in range(bands)}
        by_level: defaultdict[str, Floats] = defaultdict(lambda: np.full(bands, np.nan))
        for entry, rate in zip(bundle.hazards, known.hazards, strict=True):
            if entry.band in places:
                by_level[str(entry.context_level)][places[entry.band]] = rate / PER_NODE_HOURS
        table = np.array(list(by_level.values())).reshape(-1, bands)
        counted = np.maximum((~np.isnan(table)).sum(axis=0), 1)
        mean = np.nan_to_num(table).sum(axis=0) / counted
        filled = {level: np.where(np.isnan(rates), mean, rates) for level, rates in by_level.items()}
        usual = float(np.mean([one.usual for one in known.pairs])) if known.pairs else 1.0
        return cls(edges, filled, mean, usual)

    def expected(self, lease: OwnLease) -> float:
        """Failures of a lease, if its workload is an average one."""
        ages = np.clip(np.array(self.edges), 0.0, lease.end_h - lease.start_h)
        rates = self.by_level.get(lease.labels.get("context_level", ""), self.mean)
        return float(lease.nodes * (np.diff(ages) @ rates))


# ---- the posterior ---------------------------------------------------------------------------------------------------

_NOTHING = PairEvidence(1.0, NOT_LEARNT_SD, 0.0, below(np.zeros(len(LOG_RATIOS))))


@dataclass(frozen=True, eq=False)
class _Learnt:
    """What is known of a pair with its own history: the mass of each of `LOG_RATIOS`, and by its failures alone."""

    mass: Floats
    by_itself: Floats

    @classmethod
    def of(cls, known: Evidence, evidence: PairEvidence, own: OwnPair) -> "_Learnt":
        others = 0.0 if own.share > MOST_SHARE else 1.0 - own.share
        of_own = _log_likelihood(own, evidence.usual_log_sd, known.lease_shape)
        by_itself = _mass(others * log_likelihood(evidence) + of_own)
        return cls(_mass(_log_known(known, evidence, others) + of_own), by_itself)

    @property
    def likely_high(self) -> float:
        """The upper end of the central 95%."""
        return _quantile(self.mass, 0.975)


def _log_known(known: Evidence, evidence: PairEvidence, others: float) -> Floats:
    """Of each of `LOG_RATIOS`, before own failures; `others` is the share of the evidence that is heard."""
    return np.array(known.log_prior) + others * (log_likelihood(evidence) + log_lent(evidence))


def _mass(log_mass: Floats) -> Floats:
    mass = np.exp(log_mass - log_mass.max())
    return np.asarray(mass / mass.sum(), np.float64)


def _log_likelihood(own: OwnPair, log_sd: float, shape: float) -> Floats:
    """Of own failures at each of `LOG_RATIOS`, integrated over the log of what was expected, which is uncertain."""
    failures, expected = own.failures.sum(), own.expected if shape else own.expected.sum(keepdims=True)
    log_rate = LOG_RATIOS[:, None] + log_sd * _NODES
    mean = expected * np.exp(log_rate)[..., None]
    each = (own.failures + shape) * np.log1p(mean / shape) if shape else mean
    log_p = failures * log_rate - each.sum(axis=2) + np.log(_WEIGHTS)
    top = log_p.max()
    return np.asarray(np.log(np.maximum(np.exp(log_p - top).sum(axis=1), np.finfo(float).tiny)), np.float64)


def _worse(mass: Floats) -> float:
    """The probability of a harmful ratio."""
    return min(1.0, float(mass[np.log(HARMFUL_RATIO) < LOG_RATIOS].sum()))


def _quantile(mass: Floats, share: float) -> float:
    """The ratio below which that share of the mass lies; each value's mass is spread over its step."""
    half = 0.5 * float(LOG_RATIOS[1] - LOG_RATIOS[0])
    return float(np.exp(np.interp(share, np.cumsum(mass), LOG_RATIOS + half)))


# ---- the entry -------------------------------------------------------------------------------------------------------


def _entry(pair: Pair, before: MismatchEntry | None, own: OwnPair, learnt: _Learnt) -> MismatchEntry:
    """The finding about a pair with its own history, not judged yet."""
    of_others = before.expected_failures * (own.share <= MOST_SHARE) * (1.0 - own.share) if before else 0.0
    workload, context = map(Token.fromhex, pair)
    ratio = _quantile(learnt.mass, 0.5)
    low, high = (_quantile(learnt.by_itself, share) for share in (0.025, 0.975))
    return MismatchEntry(
        workload,
        context,
        probability_worse=_worse(learnt.mass),
        risk_ratio=ratio,
        risk_ratio_low=min(low, ratio),
        risk_ratio_high=max(high, ratio),
        expected_failures=float(own.expected.sum()) + of_others,
        judgement=PairJudgement.TOO_LITTLE,
        alternatives=before.alternatives if before else (),
    )


def _unsuspected(known: Evidence, before: MismatchEntry | None, own: OwnPair, learnt: _Learnt) -> PairJudgement:
    """Not worse only where failures themselves exclude twice the rate, those of the bundle or the tenant's own."""
    if learnt.likely_high >= HARMFUL_RATIO:
        return PairJudgement.TOO_LITTLE
    own_high = _quantile(_mass(_log_likelihood(own, 0.0, known.lease_shape)), 0.975)
    settled = own_high < HARMFUL_RATIO or (before is not None and before.judgement is PairJudgement.NOT_WORSE)
    return PairJudgement.NOT_WORSE if settled else PairJudgement.TOO_LITTLE


_SUSPICIOUS = (PairJudgement.WORSE, PairJudgement.SUSPECTED)
