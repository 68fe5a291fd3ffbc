"""Rules of what may differ: each term in both directions, and what nobody told is neither kept nor broken."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from federation.protocol.change_rules import BadRules, Judgement, Rule, RuleVerdict, judge, read_rules
from federation.protocol.snapshots import Snapshot, differences

HOLDS, BROKEN, UNKNOWN = RuleVerdict


def a_run(name: str, *, lacks: frozenset[str] = frozenset(), **own: str) -> Snapshot:
    features = {f"version:{library}": version for library, version in own.items() if library != "operator"}
    if "operator" in own:
        features["operator:aten::mm"] = own["operator"]
    return Snapshot(name, {"": features}, frozenset({"version", "operator"}) - lacks, lacks)


def a_fleet(name: str, **nodes: str) -> Snapshot:
    """Nodes by name as `rack driver firmware`."""
    columns = ("rack", "driver", "firmware")
    things = {node: {"node": node, **dict(zip(columns, text.split(), strict=True))} for node, text in nodes.items()}
    return Snapshot(name, things, frozenset({"node", *columns}))


OLD = a_run("old", nccl="2.20.5", driver="535.1", torch="2.3", operator="9 9")
NEW = a_run("new", nccl="2.21.5", driver="535.1", torch="2.3", operator="9 9")
MONDAY = a_fleet("monday", n1="r3 535.1 28.39", n2="r3 535.1 28.39", n3="r4 535.1 28.39")
FLASHED = a_fleet("today", n1="r3 535.1 28.40", n2="r3 535.1 28.40", n3="r4 535.1 28.39")


def verdict(before: Snapshot, after: Snapshot, **terms: Any) -> RuleVerdict:
    return judge([Rule(**terms)], before, after).verdict


def why(before: Snapshot, after: Snapshot, **terms: Any) -> tuple[str, ...]:
    return judge([Rule(**terms)], before, after).rules[0].why


@pytest.mark.parametrize(
    ("terms", "wanted"),
    [
        ({"only": ("nccl",)}, HOLDS),
        ({"only": ("version",)}, HOLDS),
        ({"only": ("version:nccl",)}, HOLDS),
        ({"only": ("driver", "torch")}, BROKEN),
        ({"only": ()}, BROKEN),
        ({"same": ("operator", "torch")}, HOLDS),
        ({"same": ("nccl",)}, BROKEN),
        ({"same": ("*",), "but": ("nccl",)}, HOLDS),
        ({"same": ("*",), "but": ("torch",)}, BROKEN),
        ({"changed": ("nccl",)}, HOLDS),
        ({"changed": ("torch",)}, BROKEN),
        ({"newer": ("nccl",)}, HOLDS),
        ({"newer": ("torch",)}, BROKEN),
        ({"older": ("nccl",)}, BROKEN),
        ({"within": ("nccl in [2.21, 2.22)",)}, HOLDS),
        ({"within": ("nccl in [2.21, 2.22)", "driver >= 550")}, BROKEN),
        ({"at_most": 1}, HOLDS),
        ({"at_most": 0}, BROKEN),
        ({"same": ("ncl",)}, UNKNOWN),
        ({"within": ("ncl >= 2",)}, UNKNOWN),
        ({"only": ("nc*",)}, HOLDS),
        ({"same": ("aten::*",)}, HOLDS),
        ({"only": ("aten::*",)}, BROKEN),
    ],
)
def test_each_term_of_two_runs(terms: dict[str, Any], wanted: RuleVerdict) -> None:
    assert verdict(OLD, NEW, **terms) is wanted


def test_the_way_back_is_older_and_not_newer() -> None:
    assert verdict(NEW, OLD, older=("nccl",)) is HOLDS
    assert verdict(NEW, OLD, newer=("nccl",)) is BROKEN
    assert verdict(a_run("a", nccl="2.9.1"), a_run("b", nccl="2.10.0"), newer=("nccl",)) is HOLDS


@pytest.mark.parametrize(
    ("terms", "wanted"),
    [
        ({"only": ("firmware",), "where": {"rack": "r3"}}, HOLDS),
        ({"only": ("firmware",), "where": {"rack": "r4"}}, BROKEN),
        ({"only": ("firmware",), "where": {"node": "n*"}}, HOLDS),
        ({"changed": ("firmware",), "where": {"rack": "r3"}}, HOLDS),
        ({"changed": ("firmware",)}, BROKEN),
        ({"same": ("firmware",), "where": {"rack": "r4"}}, HOLDS),
        ({"same": ("*",), "where": {"rack": "r3"}}, BROKEN),
        ({"newer": ("firmware",), "where": {"rack": "r3"}}, HOLDS),
        ({"alike": ("driver",)}, HOLDS),
        ({"alike": ("firmware",)}, BROKEN),
        ({"alike": ("firmware",), "where": {"rack": "r3"}}, HOLDS),
        ({"at_most": 2}, HOLDS),
        ({"at_most": 1}, BROKEN),
        ({"same": ("driver",), "where": {"rack": "r9"}}, UNKNOWN),
    ],
)
def test_each_term_of_two_fleets(terms: dict[str, Any], wanted: RuleVerdict) -> None:
    assert verdict(MONDAY, FLASHED, **terms) is wanted


def test_only_the_firmware_of_a_rack_is_broken_by_a_driver_there_and_by_firmware_elsewhere() -> None:
    terms = {"only": ("firmware",), "where": {"rack": "r3"}}
    beside = a_fleet("today", n1="r3 550.2 28.40", n2="r3 535.1 28.40", n3="r4 535.1 28.40")
    assert why(MONDAY, beside, **terms) == ("driver 535.1 → 550.2 on n1", "firmware 28.39 → 28.40 on n3")


def test_a_node_that_came_or_went_is_one_change() -> None:
    grown = a_fleet("today", n1="r3 535.1 28.39", n2="r3 535.1 28.39", n4="r4 550.2 28.40")
    assert [str(one) for one in differences(MONDAY, grown)] == ["n3: node n3 is gone", "n4: node n4 is new"]
    assert verdict(MONDAY, grown, only=("node",)) is HOLDS
    assert verdict(MONDAY, grown, only=("driver", "firmware")) is BROKEN
    assert verdict(MONDAY, grown, alike=("driver",)) is BROKEN


def test_many_nodes_that_changed_alike_are_one_line() -> None:
    was, now = (a_fleet(v, **{f"n{number}": f"r1 {v} 28" for number in range(9)}) for v in ("535.1", "550.2"))
    assert why(was, now, only=()) == ("driver 535.1 → 550.2 on n0, n1, n2 and 6 more",)
    assert len(judge([Rule(only=())], was, now).rules[0].against) == 9


def test_what_one_does_not_tell_is_unknown_and_not_kept() -> None:
    untold = a_run("new", lacks=frozenset({"operator"}), nccl="2.20.5", driver="535.1", torch="2.3")
    assert verdict(OLD, untold, only=("nccl",)) is UNKNOWN
    assert verdict(OLD, untold, only=("nccl", "operator")) is HOLDS
    assert verdict(OLD, untold, same=("operator",)) is UNKNOWN
    assert why(OLD, untold, same=("operator",)) == ("operator: not told by new",)
    both = judge([Rule(only=("nccl",))], untold, untold)
    assert (both.verdict, both.untold) == (UNKNOWN, {"operator": "new"})
    assert verdict(untold, NEW, only=("driver",)) is BROKEN  # what is told breaks it already


def test_a_version_that_went_is_neither_newer_nor_within() -> None:
    gone = a_run("new", driver="535.1", torch="2.3", operator="9 9")
    for terms in ({"newer": ("nccl",)}, {"within": ("nccl < 3",)}, {"same": ("nccl",)}):
        assert verdict(OLD, gone, **terms) is BROKEN
    assert verdict(OLD, gone, changed=("nccl",)) is HOLDS


def test_the_gravest_verdict_counts() -> None:
    holds, broken, unknown = Rule(only=("nccl",)), Rule(same=("nccl",)), Rule(same=("ncl",))
    found: list[Judgement] = [judge(some, OLD, NEW) for some in ([holds], [holds, unknown], [unknown, broken, holds])]
    assert [one.verdict for one in found] == [HOLDS, UNKNOWN, BROKEN]


FILE = """
[[rule]]
name = "the upgrade"
only = ["nccl", "driver"]
newer = ["nccl"]

[[rule]]
same = ["*"]
but = ["version"]
"""


def test_a_file_of_rules_is_read_and_judged() -> None:
    found = judge(read_rules(FILE, "rules.toml"), OLD, NEW)
    assert [(one.rule, one.verdict) for one in found.rules] == [("the upgrade", HOLDS), ("rule 2", HOLDS)]
    lines = [*judge(read_rules(FILE, "rules.toml"), NEW, OLD).lines()]
    assert lines[:3] == ["new → old: broken", "  broken  the upgrade", "    nccl 2.21.5 → 2.20.5"]


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("[[rule]]\nonyl = ['nccl']", "rules.toml: rule 1: unknown key 'onyl'", "only, same, but"),
        (
            "[[rule]]\nsame = ['x']\n[[rule]]\nname = 'b'\nsame = 3",
            "rules.toml: rule 2 (b): same must be",
            "known keys",
        ),
        ("[[rule]]\nname = 'a'", "rules.toml: rule 1 (a): says nothing", "known keys"),
        ("[[rule]]\nbut = ['a']\nonly = ['b']", "has but without same", "known keys"),
        ("[[rule]]\nwithin = ['nccl ~ 2']", "'nccl ~ 2' is no range", "known keys"),
        ("[[rule]]\nat_most = -1", "rules.toml: rule 1: at_most", "known keys"),
        ("[rules]\nonly = ['a']", "unknown key 'rules'", "[[rule]]"),
        ("rule = ['a']", "rules.toml: rule 1: must be a table", "[[rule]]"),
        ("", "rules.toml: no rule", "[[rule]]"),
        ("[[rule", "rules.toml: not TOML", "write it as TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_place(text: str, said: str, hint: str) -> None:
    with pytest.raises(BadRules) as found:
        read_rules(text, "rules.toml")
    assert said in found.value.what
    assert hint in found.value.hint


states = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["1", "2", "3"]))


@given(states, states, st.sets(st.sampled_from(["a", "b", "c", "d"])))
def test_only_holds_where_all_that_differs_is_named_and_nowhere_else(
    was: dict[str, str], now: dict[str, str], names: set[str]
) -> None:
    one, other = (Snapshot(name, {"": own}, frozenset("abcd")) for name, own in (("was", was), ("now", now)))
    changed = {name for name in was.keys() | now.keys() if was.get(name) != now.get(name)}
    assert (verdict(one, other, only=tuple(sorted(names))) is HOLDS) == (changed <= names)
    assert (verdict(one, other, at_most=2) is HOLDS) == (len(changed) <= 2)
