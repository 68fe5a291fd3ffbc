"""Rules of what may differ between two snapshots, in ten terms: relational checks of a change.

A file of rules is TOML, a table `[[rule]]` for each. All terms of a rule must hold together.

| term | holds if |
|---|---|
| `only = ["nccl", "driver"]` | nothing but these changed |
| `same = ["operator"]` | none of these changed |
| `but = ["aten::mm"]` | with `same`: except these |
| `changed = ["firmware"]` | each of these changed, on every node that the rule is about |
| `newer = ["nccl"]`, `older = ["nccl"]` | each of these is a newer, an older version than before |
| `within = ["nccl in [2.21, 2.23)", "driver >= 535"]` | each is now in its range |
| `alike = ["driver"]` | now the same on all nodes that the rule is about |
| `at_most = 4` | no more nodes differ; of a run: no more features |
| `where = {rack = "3"}` | only nodes of which this is so, before or after; with `only`, nothing else changed |

A name is that of a feature or of its kind (`nccl`, `version`, `operator`); with a star at its end it is the beginning
of one (`aten::*`). The idea is from relational network verification (Xu and others, "Relational Network Verification",
SIGCOMM 2024), where changes are held to a specification of what they may do.

A rule about what a snapshot does not tell is neither kept nor broken: it is unknown, and so is one about a name that is
nowhere, which is most often a misspelt one. Not promised: that what nobody recorded did not change.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Annotated

import msgspec

from crypto.errors import PharoahError
from federation.protocol.snapshots import THING, Difference, Snapshot, differences, kind_of, matches, short_name, untold
from federation.protocol.toml_tables import convert, loads
from federation.protocol.version_ranges import parse

Names = tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=200)], ...]
_SHOWN = 3  # things of a line


class BadRules(PharoahError):
    """A file of rules that cannot be read, or a rule that says nothing."""

    default_hint = "correct it; docs/causes.md has every term"


class RuleVerdict(StrEnum):
    """Whether a rule holds; `UNKNOWN` where what it is about is not told."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNKNOWN = "unknown"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule; `name` is for people. The other fields are the ten terms, see the module."""

    name: str = ""
    only: Names | None = None
    same: Names = ()
    but: Names = ()
    changed: Names = ()
    newer: Names = ()
    older: Names = ()
    within: Names = ()
    alike: Names = ()
    at_most: Annotated[int, msgspec.Meta(ge=0)] | None = None
    where: dict[str, str] = {}

    def __post_init__(self) -> None:
        lists = (self.same, self.changed, self.newer, self.older, self.within, self.alike)
        if self.only is None and self.at_most is None and not any(lists):
            raise ValueError("says nothing: it needs a term besides name, but and where")
        if self.but and not self.same:
            raise ValueError("has but without same")
        if wrong := next((text for text in self.within if parse(text) is None), None):
            raise ValueError(f"within: {wrong!r} is no range, such as 'nccl in [2.21, 2.23)' or 'driver >= 535'")


@dataclass(frozen=True)
class Judged:
    """A rule's verdict: `against` are the differences that break it, `why` says it in words, or why it is unknown."""

    rule: str
    verdict: RuleVerdict
    why: tuple[str, ...] = ()
    against: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """The verdicts of all rules over two snapshots, and the gravest of them; `untold` are kinds that one lacks."""

    before: str
    after: str
    verdict: RuleVerdict
    rules: tuple[Judged, ...]
    untold: Mapping[str, str]

    def lines(self) -> Iterator[str]:
        """For people: the verdict, then each rule with its reasons."""
        yield f"{self.before} → {self.after}: {self.verdict}"
        for one in self.rules:
            yield f"  {one.verdict:7} {one.rule}"
            yield from (f"    {text}" for text in one.why)


def read_rules(text: str, where: object) -> tuple[Rule, ...]:
    """The rules of a TOML file; BadRules names the file, the rule and what to do."""
    table = loads(text, where, BadRules)
    if strange := table.keys() - {"rule"}:
        raise BadRules(f"{where}: unknown key {min(strange)!r}", hint="each rule is a table [[rule]]")
    found = table.get("rule", [])
    if not isinstance(found, list) or not found:
        raise BadRules(f"{where}: no rule", hint="each rule is a table [[rule]]")
    return tuple(_rule(row, f"{where}: rule {number}") for number, row in enumerate(found, 1))


def _rule(row: object, where: str) -> Rule:
    if not isinstance(row, dict):
        raise BadRules(f"{where}: must be a table", hint="write it as [[rule]]")
    name = row.get("name")
    return convert(row, Rule, f"{where} ({name})" if name and isinstance(name, str) else where, BadRules)


def judge(rules: Sequence[Rule], before: Snapshot, after: Snapshot) -> Judgement:
    """Every rule over what differs between two snapshots."""
    facts = _Facts(before, after, differences(before, after), untold(before, after))
    judged = tuple(_judged(rule, number, facts) for number, rule in enumerate(rules, 1))
    verdicts = {one.verdict for one in judged}
    gravest = next((one for one in (RuleVerdict.BROKEN, RuleVerdict.UNKNOWN) if one in verdicts), RuleVerdict.HOLDS)
    return Judgement(before.name, after.name, gravest, judged, facts.untold)


# ---- one rule ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Facts:
    """What rules are judged by, or the part of it that one rule is about."""

    before: Snapshot
    after: Snapshot
    found: tuple[Difference, ...]
    untold: Mapping[str, str]

    def about(self, where: Mapping[str, str]) -> "_Facts":
        """Only the things of which all of `where` is so, before or after."""
        both = (self.before, self.after)
        things = {thing for one in both for thing, own in one.things.items() if _fits(own, where)}
        before, after = (
            replace(one, things={thing: own for thing, own in one.things.items() if thing in things}) for one in both
        )
        return _Facts(before, after, tuple(one for one in self.found if one.thing in things), self.untold)

    def named(self, selectors: Sequence[str]) -> tuple[Difference, ...]:
        """The differences that a list of names means."""
        return tuple(one for one in self.found if _is_named(one, selectors))

    def states(self, selector: str, *, new: bool) -> Iterator[Difference]:
        """Each feature that a name means, as it was and is, changed or not; of `new` things too, if asked."""
        told = self.before.tells & self.after.tells
        for thing, now in self.after.things.items():
            if not new and thing not in self.before.things:
                continue
            was = self.before.things.get(thing, {})
            for feature in dict.fromkeys((*was, *now)):
                if kind_of(feature) in told and matches(selector, feature):
                    yield Difference(thing, feature, was.get(feature), now.get(feature))


def _fits(own: Mapping[str, str], where: Mapping[str, str]) -> bool:
    return all(
        any(matches(selector, feature) and _is_value(wanted, value) for feature, value in own.items())
        for selector, wanted in where.items()
    )


def _is_value(wanted: str, value: str) -> bool:
    return value.startswith(wanted[:-1]) if wanted.endswith("*") else value == wanted


def _is_named(one: Difference, selectors: Sequence[str]) -> bool:
    return any(matches(selector, one.feature) for selector in selectors)


def _judged(rule: Rule, number: int, facts: _Facts) -> Judged:
    scope = facts.about(rule.where) if rule.where else facts
    faults = [fault for term in _TERMS for fault in term(rule, facts, scope)]
    name = rule.name or f"rule {number}"
    if faults:
        against = dict.fromkeys(one for fault in faults for one in fault.against)
        return Judged(name, RuleVerdict.BROKEN, tuple(fault.why for fault in faults), tuple(against))
    unknown = tuple(_unknown(rule, facts, scope))
    return Judged(name, RuleVerdict.UNKNOWN if unknown else RuleVerdict.HOLDS, unknown)


def _unknown(rule: Rule, facts: _Facts, scope: _Facts) -> Iterator[str]:
    """Why a rule that nothing breaks does not hold either."""
    if rule.where and not (scope.before.things or scope.after.things):
        yield f"nothing is so: {', '.join(f'{name} = {value}' for name, value in rule.where.items())}"
        return
    if rule.only is not None or rule.at_most is not None or "*" in rule.same:
        allowed = (*(rule.only or ()), *rule.but)
        kinds = (kind for kind in facts.untold if not any(matches(one, kind) for one in allowed))
        yield from (f"{kind}: not told by {facts.untold[kind]}" for kind in kinds)
    told = facts.before.tells & facts.after.tells
    ranges = (one.name for text in rule.within if (one := parse(text)))
    for name in dict.fromkeys((*rule.same, *rule.changed, *rule.newer, *rule.older, *ranges, *rule.alike)):
        if name not in told and not any(scope.states(name, new=True)) and not scope.named([name]):
            lacking = next((facts.untold[kind] for kind in facts.untold if matches(name, kind)), "either")
            yield f"{name}: not told by {lacking}"


# ---- the terms -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fault:
    """One reason against a rule, with the differences that show it."""

    why: str
    against: tuple[Difference, ...]


def _only(rule: Rule, facts: _Facts, scope: _Facts) -> Iterator[_Fault]:
    if rule.only is not None:
        allowed = set(scope.named(rule.only))
        yield from _faults(one for one in facts.found if one not in allowed)


def _same(rule: Rule, _facts: _Facts, scope: _Facts) -> Iterator[_Fault]:
    yield from _faults(one for one in scope.named(rule.same) if not _is_named(one, rule.but))


def _changed(rule: Rule, _facts: _Facts, scope: _Facts) -> Iterator[_Fault]:
    for selector in rule.changed:
        yield from _faults(one for one in scope.states(selector, new=False) if one.before == one.after)


def _newer(rule: Rule, _facts: _Facts, scope: _Facts) -> Iterator[_Fault]:
    for selector in rule.newer:
        yield from _faults(one for one in scope.states(selector, new=False) if one.direction <= 0)


def _older(rule: Rule, _facts: _Facts, scope: _Facts) -> Iterator[_Fault]:
    for selector in rule.older:
        yield from _faults(one for one in scope.states(selector, new=False) if one.direction >= 0)


def _within(rule: Rule, _facts: _Facts, scope: _Facts) -> Iterator[_Fault]:
    for wanted in filter(None, map(parse, rule.within)):
        outside = (one for one in scope.states(wanted.name, new=True) if not (one.after and wanted.holds(one.after)))
        yield from _faults(outside, partial(_not_within, str(wanted)))


def _not_within(wanted: str, one: Difference) -> str:
    return f"{short_name(one.feature)} {one.after or 'none'}: not {wanted}"


def _alike(rule: Rule, _facts: _Facts, scope: _Facts) -> Iterator[_Fault]:
    for selector in rule.alike:
        by_feature: dict[str, list[Difference]] = defaultdict(list)
        for one in scope.states(selector, new=True):
            by_feature[one.feature].append(one)
        for feature, states in by_feature.items():
            values = Counter(one.after or "none" for one in states)
            if len(values) > 1:
                counts = ", ".join(f"{value} on {count}" for value, count in values.most_common(_SHOWN))
                rare = tuple(one for one in states if (one.after or "none") != values.most_common(1)[0][0])
                yield _Fault(f"{feature} is not alike: {counts}", rare)


def _at_most(rule: Rule, _facts: _Facts, scope: _Facts) -> Iterator[_Fault]:
    differing = {one.thing or one.feature for one in scope.found}
    if rule.at_most is not None and len(differing) > rule.at_most:
        what = "nodes" if scope.found[0].thing else "features"
        yield _Fault(f"{what} that changed: {len(differing)}, at most {rule.at_most} may", scope.found)


_Term = Callable[[Rule, _Facts, _Facts], Iterator[_Fault]]
_TERMS: Sequence[_Term] = (_only, _same, _changed, _newer, _older, _within, _alike, _at_most)


def _faults(
    found: Iterable[Difference], words_of: Callable[[Difference], str] = lambda one: one.words
) -> Iterator[_Fault]:
    """Differences as reasons: those that say the same of several things are one."""
    alike: dict[str, list[Difference]] = defaultdict(list)
    for one in found:
        alike[words_of(one)].append(one)
    for words, ones in alike.items():
        things = [one.thing for one in ones if one.thing and one.feature != THING]
        rest = f" and {len(things) - _SHOWN} more" if len(things) > _SHOWN else ""
        yield _Fault(f"{words} on {', '.join(things[:_SHOWN])}{rest}" if things else words, tuple(ones))
