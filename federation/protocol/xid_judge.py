"""Judges whether an error of a GPU (an Xid, or its like) comes from the hardware, the program, or the driver.

    what the code is known for, the line ─┐
    this job on other nodes ──────────────┤
    other jobs on this node ──────────────┼─ judge ─▶ CodeVerdict: three probabilities, why, and what would decide
    other jobs on other nodes ────────────┤
    what became of such errors before ────┘

Bayes' rule over three causes. Each predicts where else the error shows: faulty hardware under other jobs of this node,
a program's error in this job on other nodes, and a driver's everywhere at one rate. How often is not known, so each
rate has a beta law and the counts a beta-binomial likelihood, up to a factor that all three share. Pairs of job and
node are counted once, however often they met.

A code that follows another on the same GPU (`follows`) has the verdict of that one: of an error that explains it, else
of the first before it. Other GPUs with
the same error in one log are other hardware under the same job, unless the error spreads between GPUs.

Not promised: that assumed shares and laws hold for a fleet; that nodes differ in nothing but their hardware.

    >>> history = CodeHistory(job=Tally(3, 3), node=Tally(0, 5))
    >>> verdict = judge([CodeLine("NVRM: Xid (PCI:0000:3b:00): 31, MMU Fault")], history)[0]
    >>> verdict.cause, round(verdict.program, 2)
    ('program', 1.0)
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from federation.protocol.xid_codes import CAUSES, XID_LINE, Cause, code_of, known_codes, name_of, odds_of

DECIDED = 0.9
# Beta laws of the share of pairs that show the error: of a job with the bug, of a node with the fault, of a fleet with
# the driver's error, and of all that have none of these.
_BUG, _FAULT, _EVERYWHERE, _BACKGROUND = (1.0, 1.0), (1.0, 1.0), (1.0, 3.0), (1.0, 30.0)
_WORTH = 8.0  # outcomes that the assumed shares of the table are worth
_MOST_PEERS = 3


# ---- what is seen ----------------------------------------------------------------------------------------------------


class Tally(NamedTuple):
    """How many pairs of job and node showed the error, of those that ran."""

    failed: int = 0
    ran: int = 0


NONE = Tally()
ANY_OTHER = ""
Weights = tuple[float, float, float]  # of hardware, program, driver


@dataclass(frozen=True)
class CodeHistory:
    """Where else a code showed: this job on other nodes, other jobs on this node, other jobs elsewhere."""

    job: Tally = NONE
    node: Tally = NONE
    rest: Tally = NONE

    @classmethod
    def of(cls, pairs: Mapping[tuple[str, str], bool], job: str, node: str) -> "CodeHistory":
        """From pairs of (job, node) and whether the code showed in them; the pair in question counts nowhere."""
        job_elsewhere = [seen for (who, where), seen in pairs.items() if who == job and where != node]
        others_here = [seen for (who, where), seen in pairs.items() if who != job and where == node]
        rest = [seen for (who, where), seen in pairs.items() if who != job and where != node]
        return cls(*(Tally(sum(found), len(found)) for found in (job_elsewhere, others_here, rest)))


class CodeLine(NamedTuple):
    """A line with a code, and the GPU that it is about, "" where only the line may say."""

    text: str
    gpu: str = ""


@dataclass(frozen=True)
class CodeVerdict:
    """What a code comes from. `why` says what it rests on beyond the code, `test` what would decide, "" if decided.

    `seen` is what alone where else it showed says of hardware, program and driver: logarithms of likelihoods, whose
    greatest is 0.
    """

    code: str
    hardware: float
    program: float
    driver: float
    why: str
    test: str
    seen: Weights = (0.0, 0.0, 0.0)

    @property
    def cause(self) -> Cause:
        """The most probable."""
        return max(CAUSES, key=lambda cause: getattr(self, cause))

    def short(self, code_of_whom: str = "your code") -> str:
        """The most probable cause, in a few words."""
        word = {"hardware": "the hardware", "program": code_of_whom, "driver": "driver or firmware"}[self.cause]
        return f"{name_of(self.code)}: {word}, {min(0.99, getattr(self, self.cause)):.0%}"

    def sentence(self, code_of_whom: str = "your code") -> str:
        """For a person, in one line."""
        why = f" ({self.why})" if self.why else ""
        test = f"; would decide: {self.test}" if self.test else ""
        return f"{self.short(code_of_whom)}{why}{test}"


Outcomes = Mapping[str, Mapping[Cause, int]]
NOTHING: Outcomes = MappingProxyType({})


# ---- the verdicts ----------------------------------------------------------------------------------------------------


def judge(
    lines: Sequence[CodeLine], history: CodeHistory | Mapping[str, CodeHistory], outcomes: Outcomes = NOTHING
) -> list[CodeVerdict | None]:
    """A verdict for each line of one job on one node, None where it reports no known code.

    `history` is that of all codes, or of each, with those that were never seen under `ANY_OTHER`; `outcomes` is what
    became of such errors before, by code and cause.
    """
    found = [(code_of(line.text), _gpu(line), line.text) for line in lines]
    own = [
        _Found(code, gpu, _verdict(code, text, _with_peers(_of(history, code), code, gpu, found), outcomes))
        if code
        else None
        for code, gpu, text in found
    ]
    return [_explained(one, own) if one else None for one in own]


@dataclass(frozen=True)
class _Found:
    code: str
    gpu: str
    verdict: CodeVerdict


def _gpu(line: CodeLine) -> str:
    xid = XID_LINE.search(line.text)
    return xid[1] if xid else line.gpu


def _of(history: CodeHistory | Mapping[str, CodeHistory], code: str) -> CodeHistory:
    return history if isinstance(history, CodeHistory) else history.get(code, history.get(ANY_OTHER, CodeHistory()))


def _with_peers(history: CodeHistory, code: str, gpu: str, found: Iterable[tuple[str, str, str]]) -> CodeHistory:
    """With other GPUs of the same log that report the same code, as other hardware under the same job."""
    if known_codes()[code].spreads:
        return history
    peers = min(_MOST_PEERS, len({other for name, other, _ in found if name == code and other != gpu}))
    return CodeHistory(Tally(history.job.failed + peers, history.job.ran + peers), history.node, history.rest)


def _explained(one: _Found, others: Sequence[_Found | None]) -> CodeVerdict:
    """The verdict of what it follows on the same GPU: of an error that explains it, else of the first one before it."""
    known = known_codes()
    same = [other for other in others if other and other.gpu == one.gpu and other.code != one.code]
    explaining = [other for other in same if known[other.code].explains]
    place = next(place for place, other in enumerate(others) if other is one)
    before = [other for other in others[:place] if other in same and not known[other.code].cleans]
    first = max(explaining, key=lambda other: other.verdict.hardware, default=next(iter(before), None))
    if first is None or not known[one.code].follows:
        return one.verdict
    told = first.verdict
    why = f"it follows {name_of(first.code)} on the same GPU"
    return CodeVerdict(one.code, told.hardware, told.program, told.driver, why, told.test, told.seen)


def _verdict(code: str, text: str, history: CodeHistory, outcomes: Outcomes) -> CodeVerdict:
    prior = _prior(code, text, outcomes.get(code, {}))
    shares = _posterior(prior, history)
    test = "" if max(shares) >= DECIDED else known_codes()[code].test or _telling_test(prior, history)
    return CodeVerdict(code, *shares, _why(history), test, _seen(history))


def _prior(code: str, text: str, became: Mapping[Cause, int]) -> Weights:
    """Assumed shares, moved by what became of such errors before, times what the line says."""
    known, lines = known_codes()[code], list(odds_of(code, text))
    hardware, program, driver = (
        (_WORTH * getattr(known, cause) + became.get(cause, 0)) * math.prod(getattr(one, cause) for one in lines)
        for cause in CAUSES
    )
    return hardware, program, driver


def _posterior(prior: Weights, history: CodeHistory) -> Weights:
    hardware, program, driver = (share * math.exp(one) for share, one in zip(prior, _seen(history), strict=True))
    total = hardware + program + driver
    return hardware / total, program / total, driver / total


def _seen(history: CodeHistory) -> Weights:
    job, node, rest = history.job, history.node, history.rest
    hardware = _beta(_FAULT, node) + _beta(_BACKGROUND, job, rest)
    program = _beta(_BUG, job) + _beta(_BACKGROUND, node, rest)
    driver = _beta(_EVERYWHERE, job, node, rest)
    top = max(hardware, program, driver)
    return hardware - top, program - top, driver - top


def _beta(law: tuple[float, float], *tallies: Tally) -> float:
    """The logarithm of the likelihood of these tallies at one rate with this law."""
    failed, ran = sum(one.failed for one in tallies), sum(one.ran for one in tallies)
    a, b = law
    return _log_beta(a + failed, b + ran - failed) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


# ---- words and tests -------------------------------------------------------------------------------------------------

_TESTS = ("run this job on another node", "run another job on this node, or `confirm`")


def _telling_test(prior: Weights, history: CodeHistory) -> str:
    """Of one more run of this job elsewhere, and of another job here, the one after which less is left open."""
    return min(_TESTS, key=lambda test: _left_open(prior, history, test))


def _left_open(prior: Weights, history: CodeHistory, test: str) -> float:
    """The expected chance of a wrong verdict after the test."""
    now = _posterior(prior, history)
    after = [_posterior(prior, _after(history, test, failed)) for failed in (0, 1)]
    fails = _chance(now, history, test)
    return (1.0 - fails) * (1.0 - max(after[0])) + fails * (1.0 - max(after[1]))


def _after(history: CodeHistory, test: str, failed: int) -> CodeHistory:
    job, node = history.job, history.node
    if test == _TESTS[0]:
        return CodeHistory(Tally(job.failed + failed, job.ran + 1), node, history.rest)
    return CodeHistory(job, Tally(node.failed + failed, node.ran + 1), history.rest)


def _chance(shares: Weights, history: CodeHistory, test: str) -> float:
    """How probable it is that the test shows the error."""
    job, node, rest = history.job, history.node, history.rest
    is_job = test == _TESTS[0]
    rates = (
        _rate(_BACKGROUND, job, rest) if is_job else _rate(_FAULT, node),
        _rate(_BUG, job) if is_job else _rate(_BACKGROUND, node, rest),
        _rate(_EVERYWHERE, job, node, rest),
    )
    return math.fsum(share * rate for share, rate in zip(shares, rates, strict=True))


def _rate(law: tuple[float, float], *tallies: Tally) -> float:
    failed, ran = sum(one.failed for one in tallies), sum(one.ran for one in tallies)
    return (law[0] + failed) / (sum(law) + ran)


def _why(history: CodeHistory) -> str:
    job, node = history.job, history.node
    parts = []
    if job.ran:
        places = f"{job.ran} other node{'s' * (job.ran > 1)}"
        parts.append(f"this job clean on {places}" if not job.failed else f"the same on {_of_all(job)}{places}")
    if node.ran:
        jobs = f"{node.ran} other job{'s' * (node.ran > 1)}"
        parts.append(f"this node clean under {jobs}" if not node.failed else f"here under {_of_all(node)}{jobs} too")
    return "; ".join(parts)


def _of_all(tally: Tally) -> str:
    return f"{tally.failed} of " if tally.failed < tally.ran else ""
