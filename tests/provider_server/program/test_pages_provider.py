"""The provider's page: what it shows is so, nobody sees it without the password, and everybody can use it."""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from typer.testing import CliRunner

from federation.base.key_files import HomeError
from federation.base.visible import json_text
from federation.protocol.bundle import PairJudgement, RuleEntry
from federation.protocol.plan import HOURS_PER_WEEK
from federation.protocol.privacy_cost import plan_loss
from federation.transport.certificates import make_certificate
from provider_server.fleet.analysis.contexts import Context
from provider_server.fleet.fabric import Cable, CableEnd, Fabric
from provider_server.fleet.hints.node_reports import NodeReport, keep as keep_reports
from provider_server.fleet.learning.votes import SuspectedPart
from provider_server.fleet.parts import FabricParts
from provider_server.program.cli import app
from provider_server.program.pages import serving, views
from provider_server.program.pages.app import STATIC
from provider_server.program.pages.fabric import NO_COUNT, SUSPECTED, PaceView, SpeedView, fabric
from provider_server.program.pages.findings import Event, days, filtered
from provider_server.program.pages.fleet import HAZARDS, shown as filtered_fleet
from provider_server.program.pages.hazards import UNKNOWN, band_labels
from provider_server.program.pages.html import renderer
from provider_server.program.pages.login import (
    ATTEMPTS,
    FILE,
    REFILL_S,
    Door,
    NoPassword,
    TooManyAttempts,
    WrongPassword,
    matches,
    set_password,
    verifier,
)
from provider_server.program.pages.serving import PageInTheClear, listening
from provider_server.program.pages.sessions import IDLE_S, LONGEST_S, MOST_SESSIONS, Sessions
from provider_server.program.pages.snapshot import Reader, Snapshot, Votes
from provider_server.program.pages.views import View
from provider_server.program.verbs.opening import opened
from provider_server.program.verbs.page import plans
from provider_server.rounds.context_names import described_as
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.readiness import Known
from provider_server.rounds.store.round_store import RoundState
from provider_server.rounds.store.store import Store
from simulation.run.play import settings_of
from tests.support import browsers
from tests.support.changing import replace
from tests.support.pages import ANSWERED, CONTEXTS, LOOKS, NODES, SCENARIO, TENANTS, WEEKS, Shown, built
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.xdist_group("pages")

ROOT = Path(__file__).resolve().parents[3]
PASSWORD = "correct horse battery"
NAMES = list(LOOKS)  # in provider.toml; in telemetry they are "model …"
NOW = (WEEKS + 1) * HOURS_PER_WEEK + 24.0
PLANS = settings_of(SCENARIO)
PARTS = {
    "overview": {
        *("actions", "now", "overdue_hours", "pilot", "lacking", "next_due_hour", "tenants", "trustees", "suspects"),
        *("unpublished", "alarms", "rounds", "spent", "bundles", "events"),
    },
    "fleet": {
        *("number", "name", "description", "rate", "low", "high", "ratio"),
        *("nodes_by_level", "raised", "nodes", "nodes_left_out"),
    },
    "findings": {
        *("key", "workload", "context", "context_name", "judgement", "probability_worse", "risk_ratio"),
        *("low", "high", "expected_failures", "reason", "better_on", "history"),
    },
    "matrix": {"contexts", "rows", "workloads_left_out", "contexts_left_out"},
    "hazards": {"name", "panel", "context", "level", "bands"},
    "fabric": {"start_hour", "end_hour", "noise_sd", "suspects", "rails"},
    "speed": {"start_hour", "end_hour", "noise_sd", "contexts"},
    "plans": {
        *("hour", "nodes", "short", "tests", "budget", "hours"),
        *("spares", "mean_down", "availability", "repair_hours", "reliability", "calibration"),
    },
    "rules": {"conditions", "ratio", "ratio_low", "ratio_high", "failures"},
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    made = built(tmp_path_factory.getbasetemp() / "pages")
    set_password(made.provider, PASSWORD, bytes(16))
    keep_reports(made.provider, REPORTS)
    return made


@pytest.fixture(scope="module")
def site(shown: Shown) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(serving, "view", lambda seen, *_, **more: looked_at(seen, NOW, 24, PLANS, more["plans"]))
        with listening(shown.provider, None, "127.0.0.1", 0, lambda: NOW, lambda now_h: advice(shown)) as address:
            yield address.rstrip("/")


def snapshot(home: Path) -> Snapshot:
    with closing(Store(home / "provider.db", create=False)) as store:
        return Reader(home, store).snapshot()


@pytest.fixture(scope="module")
def seen(shown: Shown) -> Snapshot:
    return snapshot(shown.provider)


@pytest.fixture(scope="module")
def told(seen: Snapshot, shown: Shown) -> View:
    return looked_at(seen, NOW, 24, PLANS, advice(shown))


REPORTS = [
    NodeReport(
        f"gpu-{node:02d}", int(NOW), node % 3, node != 5, "memory" if node % 3 else "", 1, "A100", 0.5 + node / 9
    )
    for node in range(12)
]
FABRIC = FabricParts.of(
    Fabric.of(
        [
            Cable(CableEnd(f"gpu-{node}", f"mlx5_{rail}"), CableEnd(f"leaf-{node // 6}-{rail}", f"{node}"), rail)
            for node in range(18)
            for rail in (0, 1)
        ],
        [f"gpu-{node}" for node in range(18)],
    )
)


def suspicions(seen: Snapshot) -> Votes:
    """Of three units on two rails a leaf that is named, a spine that is not, and parts without a count."""
    named = SuspectedPart(0, "leaf-1-0", 84.4, 12.1, 1e-9, is_named=True, noise_sd=6.6, jobs=41)
    return Votes(
        FABRIC, seen.releases[-1], (named, SuspectedPart(1, "", -3.6, 20.0, 0.6, is_named=False, noise_sd=6.6))
    )


def view(seen: Snapshot, hour: float, settle_hours: int, settings: PlanSettings, *rest: Any, **known: Any) -> View:
    """All pages at an hour, of a federation of whose next round nothing else is known."""
    window = (int(hour) - HOURS_PER_WEEK, int(hour))
    looked = Known(settings, seen.directory, {}, window, due_hour=hour, now_hour=hour, **known)
    return views.view(seen, looked, settle_hours, plans=rest[0] if rest else None)


def looked_at(seen: Snapshot, *rest: Any) -> View:
    """A view of a federation that has counted votes, and of contexts of which one is slow."""
    paces = (
        PaceView("<H100, hall 2>", 41.2, 90.0, 1e-4, named=True),
        PaceView("A100, hall 1", 3.0, 88.0, 0.4, named=False),
    )
    return replace(view(replace(seen, votes=suspicions(seen)), *rest), speed=SpeedView(0, 168, 4.0, paces))


def advice(shown: Shown) -> Any:
    return plans(shown.provider, None, NOW)


# ---- what it shows ---------------------------------------------------------------------------------------------------


def test_what_to_act_on_is_said_first_and_each_has_its_page(site: str, seen: Snapshot, told: View) -> None:
    actions = told.overview.actions
    assert actions[0].what == "The round of 1970-01-22 to 1970-01-29 waits for 4 tenants"
    worst, better = told.findings[0], told.findings[0].better_on[0]
    (pair,) = (one for one in actions if one.link == f"/findings/{worst.key}")
    assert worst.context_name in pair.what
    assert better in pair.do
    assert {one.link for one in actions} >= {"/fabric", "/plans", "/fleet?raised=yes"}
    assert "Jobs stall at leaf-1-0, rail 0; 41 jobs ran over it" in [one.what for one in actions]
    assert [one for one in seen.alarms if one.ratio < 1.0]
    assert not any(re.search(r"fewer|\b0\.", one.what) for one in actions)  # better than predicted: nobody need act
    with visitor(site) as client:
        log_in(client)
        for one in actions:
            path, _, anchor = one.link.partition("#")
            answer = client.get(path or "/")
            assert answer.status_code == 200
            assert not anchor or f'id="{anchor}"' in answer.text
        assert "is like that" not in client.get("/fleet?raised=yes").text


def test_what_the_next_round_lacks_and_suspects_are_acts_and_calm_is_none(seen: Snapshot) -> None:
    few = replace(PLANS, cohort_minimum=TENANTS + 2, owners_minimum=TENANTS + 2)
    member = seen.directory.members[0].tenant
    acts = view(replace(seen, suspects=frozenset({member})), NOW, 24, few).overview.actions
    said = " ".join(one.what for one in acts)
    assert f"lacks tenants enrolled for cohort_minimum: {TENANTS} of {TENANTS + 2}" in said
    assert "1 tenant may have sent false counts" in said
    empty = replace(seen, rounds=(), releases=(), bundles=(), alarms=(), kept=None, places={})
    none = view(empty, NOW, 24, replace(PLANS, owners_minimum=3))
    assert not any("/findings" in one.link or "/fleet" in one.link for one in none.overview.actions)


def test_a_group_that_fails_twice_as_often_is_an_act_and_its_nodes_are_not_raised(seen: Snapshot) -> None:
    assert seen.kept is not None
    first, *others = seen.kept.contexts.contexts
    bad = replace(first, failures_per_1000_node_hours=50.0)
    contexts = replace(seen.kept.contexts, contexts=(bad, *others))
    kept = replace(seen.kept, contexts=contexts, levels=dict.fromkeys(seen.kept.levels, 0))
    shown = view(replace(seen, kept=kept, bundles=(), operators={}), NOW, 24, PLANS)
    (act,) = (one for one in shown.overview.actions if one.link.startswith("/fleet"))
    assert act.link == f"/fleet#group-{first.number}"
    assert NAMES[0] in act.what
    assert sum(group.raised for group in shown.fleet) == 0


def test_a_fleet_is_searched_and_only_raised_nodes_are_shown_where_asked(told: View) -> None:
    nodes = {node.name: node for group in told.fleet for node in group.nodes}
    raised = {name for name, node in nodes.items() if node.raised}
    assert raised
    assert all(nodes[name].level > 0 for name in raised)
    filtered_ = filtered_fleet(told.fleet, "", raised=True)
    assert {node.name for group in filtered_ for node in group.nodes} == raised
    assert [node.name for group in filtered_fleet(told.fleet, " GPU-17", raised=False) for node in group.nodes] == [
        "gpu-17"
    ]
    (group,) = filtered_fleet(told.fleet, "h200", raised=False)
    assert len(group.nodes) == NODES
    assert filtered_fleet(told.fleet, "no such node", raised=False) == ()


def test_of_a_thousand_nodes_those_that_are_raised_are_seen_and_the_others_folded(seen: Snapshot) -> None:
    assert seen.kept is not None
    names = [f"node-{n}" for n in range(1000)]
    first = replace(seen.kept.contexts.contexts[0], nodes=tuple(names))
    kept = replace(seen.kept, contexts=replace(seen.kept.contexts, contexts=(first,)), levels={"node-7": 1})
    shown = view(replace(seen, kept=kept), NOW, 24, PLANS)
    page = renderer()("fleet", view=shown, groups=shown.fleet, text="", raised="", at="/fleet", csrf="x")
    folded = page.index("<details>")
    assert page.index("<b>node-7</b>") < folded < page.index("<b>node-8</b>")
    assert "999 nodes not raised" in page


def test_nodes_that_no_group_has_are_on_the_map_too(seen: Snapshot) -> None:
    stranger = NodeReport("new-1", int(NOW), 0, is_heard=True, suspicion="")
    shown = view(replace(seen, reports=(*seen.reports, stranger)), NOW, 24, PLANS)
    assert [node.name for node in shown.fleet[-1].nodes] == ["new-1"]
    assert shown.fleet[-1].number == 0


def test_plans_and_fleet_have_the_same_nodes_before_the_first_hour_of_telemetry(shown: Shown, tmp_path: Path) -> None:
    home = shutil.copytree(shown.provider, tmp_path / "provider")
    (home / "nodes.json").unlink()
    made, snap = plans(home, None, NOW), snapshot(home)
    assert made is not None
    on_map = {node.name for group in view(snap, NOW, 24, PLANS).fleet for node in group.nodes}
    assert {one.node for one in made.nodes} == on_map
    assert len(on_map) == CONTEXTS * NODES


def test_one_release_is_no_chart(seen: Snapshot, told: View) -> None:
    page = renderer()
    given: dict[str, Any] = {"at": "/", "csrf": "x"}
    assert page("overview", view=told, **given).count("<figure>") == 3
    one = replace(seen, rounds=seen.rounds[:1], releases=seen.releases[:1], bundles=seen.bundles[:1], operators={})
    assert "<figure>" not in page("overview", view=view(one, NOW, 24, PLANS), **given)


def test_rounds_are_those_of_the_store_and_the_late_are_named(seen: Snapshot, told: View, shown: Shown) -> None:
    overview = told.overview
    assert [one.state for one in overview.rounds] == ["collecting", *["released"] * WEEKS]
    assert [one.contributors for one in overview.rounds] == [None, *[TENANTS] * WEEKS]
    assert overview.now is not None
    assert set(overview.now.late_tenants) == {tenant[:12] for tenant in shown.late}
    assert (overview.now.answered, overview.now.tenants) == (ANSWERED, TENANTS)
    assert overview.now.late_trustees == ()
    plan = seen.releases[0].plan
    assert [one.epsilon for one in overview.spent] == [plan_loss(plan).at(plan.delta)] * (WEEKS + 1)


def test_of_trustees_those_are_late_that_have_not_answered(seen: Snapshot) -> None:
    *before, last = seen.rounds
    asked = sorted(trustee.index for trustee in last.plan.trustees)
    endorsing = replace(last, state=RoundState.ENDORSING, trustees_answered=frozenset(asked[:1]))
    now = view(replace(seen, rounds=(*before, endorsing)), NOW, 24, PLANS).overview.now
    assert now is not None
    assert (now.late_trustees, now.late_tenants) == (tuple(asked[1:]), ())


def test_a_release_is_overdue_once_its_week_has_settled(seen: Snapshot) -> None:
    due = (WEEKS + 1) * HOURS_PER_WEEK + 24
    assert [view(seen, hour, 24, PLANS).overview.overdue_hours for hour in (due - 1, due, due + 5)] == [0, 0, 5]


def more_said(seen: Snapshot) -> Snapshot:
    """With what only larger federations learn: software that fails wherever it runs."""
    rules = (RuleEntry(("framework 2.<b>", "NCCL 2.20"), 3.0, 2.0, 4.5, 31.0),)
    *before, newest = seen.bundles
    return replace(seen, bundles=(*before, replace(newest, rules=rules)))


def test_software_that_fails_everywhere_is_shown_as_the_bundle_has_them(seen: Snapshot) -> None:
    more = view(more_said(seen), NOW, 24, PLANS)
    page = renderer()
    given = {"view": more, "csrf": "x", "shown": (), "judgement": "", "text": "", "judgements": ()}
    given |= {"order": "", "orders": ()}
    assert "framework 2.&lt;b&gt;, NCCL 2.20" in page("findings", at="/findings", **given)


def test_a_release_that_no_bundle_has_is_said(seen: Snapshot, told: View) -> None:
    assert not told.overview.unpublished
    assert view(replace(seen, bundles=seen.bundles[:-1]), NOW, 24, PLANS).overview.unpublished
    assert view(replace(seen, bundles=(), alarms=()), NOW, 24, PLANS).overview.unpublished


def test_findings_are_those_of_the_newest_bundle(seen: Snapshot, told: View) -> None:
    newest = seen.bundles[-1]
    assert len(told.findings) == len(newest.mismatches) == len({one.key for one in told.findings})
    by_key = {f"{one.workload}-{one.context}": one for one in newest.mismatches}
    for finding in told.findings:
        entry = by_key[finding.key]
        assert (finding.risk_ratio, finding.low, finding.high) == (
            entry.risk_ratio,
            entry.risk_ratio_low,
            entry.risk_ratio_high,
        )
        assert f"{entry.risk_ratio:.1f} times" in finding.reason
    first = told.findings[0]
    assert (first.judgement, first.tone) == (PairJudgement.WORSE, "worse")
    assert [past.bundle for past in first.history] == list(range(1, WEEKS))
    assert first.context_name in NAMES


def test_every_finding_has_its_cell_and_no_other(told: View) -> None:
    cells = [cell for _, row in told.matrix.rows for cell in row if cell]
    assert sorted(cell.key for cell in cells) == sorted(one.key for one in told.findings)
    assert [name for _, name in told.matrix.contexts] == NAMES
    for workload, row in told.matrix.rows:
        assert all(cell is None or cell.workload == workload for cell in row)
        assert all(
            cell is None or cell.context == token for cell, (token, _) in zip(row, told.matrix.contexts, strict=True)
        )
    assert told.matrix.rows[0][0] == told.findings[0].workload


def test_changes_between_bundles_are_events_with_their_finding(seen: Snapshot, told: View) -> None:
    new = [event for event in told.overview.events if event.kind == "new"]
    assert told.findings[0].key in {event.finding for event in new}
    cleared = tuple(replace(one, judgement=PairJudgement.NOT_WORSE) for one in seen.bundles[-1].mismatches)
    later = replace(seen.bundles[-1], number=9, until_hour=900, mismatches=cleared)
    events = view(replace(seen, bundles=(*seen.bundles, later)), NOW, 24, PLANS).overview.events
    assert {(event.kind, event.hour) for event in events} >= {("gone", 900)}
    hours = [event.hour for event in events]
    assert hours == sorted(hours, reverse=True)


def test_alarms_have_names_and_not_whole_tokens(seen: Snapshot, told: View) -> None:
    assert len(told.overview.alarms) == len(seen.alarms) > 0
    assert not re.search(r"[0-9a-f]{16}", " ".join(told.overview.alarms))


def test_filters_take_away_what_does_not_fit(told: View) -> None:
    worse = filtered(told.findings, "worse", "")
    assert {one.judgement for one in worse} == {"worse"}
    assert 0 < len(worse) < len(told.findings)
    assert {one.context_name for one in filtered(told.findings, "", " h100 ")} == {"H100, hall 2"}
    assert filtered(told.findings, "", worse[0].workload[:8].upper())
    assert filtered(told.findings, "", "nothing has this") == ()


def test_findings_are_sorted_as_asked_and_none_is_lost(told: View) -> None:
    by_ratio = filtered(told.findings, "", "", "times as often")
    assert [one.risk_ratio for one in by_ratio] == sorted((one.risk_ratio for one in told.findings), reverse=True)
    by_context = filtered(told.findings, "", "", "hardware group")
    assert [one.context_name for one in by_context] == sorted(one.context_name for one in told.findings)
    assert set(by_ratio) == set(by_context) == set(filtered(told.findings, "", "", "no such order"))


def test_events_of_one_hour_and_kind_are_one_row() -> None:
    events = [Event(336, "new", "one", "a"), Event(336, "new", "other", "b"), Event(168, "new", "third", "c")]
    assert [(day.hour, len(day.events)) for day in days(events)] == [(336, 2), (168, 1)]


def test_contexts_that_are_told_in_the_same_words_have_their_numbers() -> None:
    looks = {2: "H100: 5 nodes", 7: "A100: 6 nodes"}
    contexts = [Context(number, look, (), 1.0, 0.5, 2.0) for number, look in looks.items()]
    assert described_as(contexts) == {2: "H100", 7: "A100"}
    twice = described_as([*contexts, replace(contexts[0], number=9)])
    assert twice == {2: "H100 (group 2)", 7: "A100", 9: "H100 (group 9)"}


@pytest.mark.parametrize(("high", "known"), [(100.0, True), (100.5, False)])
def test_a_hazard_with_too_wide_an_interval_is_not_known_yet(seen: Snapshot, *, high: float, known: bool) -> None:
    bundle = seen.bundles[-1]
    token = bundle.hazards[0].context_level
    entries = [
        replace(one, rate=10.0, rate_low=1.0, rate_high=high) if one.context_level == token else one
        for one in bundle.hazards
    ]
    given = view(replace(seen, bundles=(replace(bundle, hazards=tuple(entries)),)), NOW, 24, PLANS)
    place = seen.places[str(token)]
    (curve,) = (one for one in given.hazards if (one.context, one.level) == (place.context, place.level))
    assert {band.known for band in curve.bands} == {known}
    (context,) = (one for one in given.fleet if one.number == place.context)
    assert {node.hazard == UNKNOWN for node in context.nodes if node.level == place.level} == {not known}


def test_hazards_have_their_contexts_levels_and_ages(seen: Snapshot, told: View) -> None:
    assert sum(len(curve.bands) for curve in told.hazards) == len(seen.bundles[-1].hazards)
    assert {(curve.panel, curve.context) for curve in told.hazards} == set(zip(NAMES, range(1, 5), strict=True))
    assert {band.label for curve in told.hazards for band in curve.bands} <= {"0–8 h", "8–48 h", "from 2 d"}
    assert band_labels((0.0, 100.0)) == ("0–100 h",)


def test_nodes_have_the_hazard_of_their_context_and_level(seen: Snapshot, told: View) -> None:
    nodes = [node for context in told.fleet for node in context.nodes]
    assert len(nodes) == CONTEXTS * NODES
    assert {node.hazard for node in nodes} <= set(HAZARDS)
    assert seen.kept is not None
    assert all(node.level == seen.kept.levels[node.name] for node in nodes)
    rates: dict[tuple[int | None, int | None], list[float]] = {
        (curve.context, curve.level): [band.rate for band in curve.bands] for curve in told.hazards
    }
    ratios = {(c.number, node.level): node.ratio for c in told.fleet for node in c.nodes}
    means = {place: sum(of) / len(of) for place, of in rates.items()}
    scale = {round((ratios[number, level] or 0.0) / means[number, level], 9) for number, level in ratios}
    assert len(scale) == 1  # all against the same node
    for context in told.fleet:
        known = [node.ratio or 0.0 for node in context.nodes]
        assert known == sorted(known, reverse=True)


def test_the_fabric_has_every_leaf_with_its_nodes_and_what_votes_say_of_it(told: View) -> None:
    shown = told.fabric
    assert shown is not None
    leaves = {leaf.switch: leaf for rail in shown.rails for leaf in rail.leaves}
    assert set(leaves) == {f"leaf-{unit}-{rail}" for unit in range(3) for rail in (0, 1)}
    assert (leaves["leaf-1-0"].standing, leaves["leaf-1-1"].standing) == (SUSPECTED, NO_COUNT)
    assert leaves["leaf-1-0"].nodes == ("gpu-6", "gpu-7", "gpu-8", "gpu-9")
    assert leaves["leaf-1-0"].nodes_left_out == 2
    assert [(rail.spines.votes, rail.spines.switch) for rail in shown.rails] == [(None, ""), (-3.6, "")]
    page = renderer()("fabric", view=told, at="/fabric", csrf="x")
    assert "84 ± 12 votes" in page
    assert "&lt;H100, hall 2&gt;" in page


def test_before_a_release_with_votes_the_fabric_is_there_and_says_nothing(seen: Snapshot) -> None:
    assert Votes.of(None, bytes(32), seen.releases, lambda start, end: ()) is None
    shown = fabric(Votes.of(FABRIC, bytes(32), seen.releases, lambda start, end: ()))
    assert shown is not None
    assert (shown.end_hour, shown.suspects) == (None, ())
    assert {leaf.standing for rail in shown.rails for leaf in rail.leaves} == {NO_COUNT}


def test_plans_are_those_of_the_verbs(shown: Shown, told: View) -> None:
    at = ["--home", str(shown.provider), "--json"]
    risks = json.loads(CliRunner().invoke(app, ["nodes", "risk", *at]).stdout)["rows"]
    rows = [row for row in risks if row["hours"] == 24]
    tests = json.loads(CliRunner().invoke(app, ["nodes", "probes", *at]).stdout)
    assert told.plans is not None
    assert [(one.node, one.jobs, one.bucket, one.reason) for one in told.plans.nodes] == [
        (row["node"], row["jobs"], row["bucket"], row["reason"]) for row in rows
    ]
    assert [one.probabilities[1] for one in told.plans.nodes] == pytest.approx(
        [row["probability"] for row in rows], rel=1e-3
    )
    assert [(one.node, one.test) for one in told.plans.tests] == [(row["node"], row["test"]) for row in tests]
    assert told.plans.short == sum(row["jobs"] == "short" for row in rows) == 2
    assert told.plans.spares >= 1


def test_before_anything_happened_every_page_has_something_to_say(seen: Snapshot) -> None:
    empty = replace(seen, rounds=(), releases=(), bundles=(), alarms=(), suspects=frozenset(), kept=None, places={})
    new = view(empty, NOW, 24, PLANS)
    assert (new.overview.now, new.overview.overdue_hours, new.fleet, new.findings) == (None, 0, (), ())
    assert (new.fabric, new.speed, new.plans) == (None, None, None)
    page = renderer()
    assert "votes_share" in page("fabric", view=new, at="/fabric", csrf="x")
    assert "nodes watch" in page("plans", view=new, at="/plans", csrf="x")
    before_rounds = view(replace(empty, kept=seen.kept), NOW, 24, PLANS)
    assert {node.hazard for context in before_rounds.fleet for node in context.nodes} > {"usual"}


def test_neither_contributions_nor_the_signing_key_are_read(shown: Shown, tmp_path: Path, told: View) -> None:
    home = shutil.copytree(shown.provider, tmp_path / "provider")
    (home / "signing.key").unlink()
    with closing(sqlite3.connect(home / "provider.db", isolation_level=None)) as database:
        changed = database.execute("UPDATE contributions SET message = x'00'").rowcount
    assert changed == ANSWERED
    assert looked_at(snapshot(home), NOW, 24, PLANS, advice(shown)) == told


def test_a_home_without_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "context.key").write_bytes(bytes(32))
    with closing(Store(tmp_path / "provider.db")) as store, pytest.raises(HomeError, match="no directory"):
        Reader(tmp_path, store)


def test_parts_have_stable_keys(seen: Snapshot, shown: Shown) -> None:
    fields = json.loads(json_text(looked_at(more_said(seen), NOW, 24, PLANS, advice(shown))))
    assert set(fields) == set(PARTS)
    for part, keys in PARTS.items():
        assert set(fields[part][0] if isinstance(fields[part], list) else fields[part]) == keys


def test_the_vendored_charts_are_those_that_are_written_down() -> None:
    written = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() in written
    (version,) = re.findall(r"\(v(\d+\.\d+\.\d+)\)", (STATIC / "uPlot.iife.min.js").read_text(encoding="utf-8"))
    assert f"uPlot {version}" in (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert "MIT" in (STATIC / "uPlot.LICENSE").read_text(encoding="utf-8")


# ---- who may see it --------------------------------------------------------------------------------------------------


def test_a_password_is_kept_as_a_verifier_for_its_owner_alone(tmp_path: Path) -> None:
    set_password(tmp_path, PASSWORD, bytes(16))
    set_password(tmp_path, PASSWORD + "!", bytes(range(16)))
    file = tmp_path / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert PASSWORD.encode() not in file.read_bytes()
    assert matches(file.read_bytes(), PASSWORD + "!")
    assert not matches(file.read_bytes(), PASSWORD)
    assert verifier(PASSWORD, bytes(16)) != verifier(PASSWORD, bytes(range(16)))
    with pytest.raises(NoPassword, match="too short"):
        set_password(tmp_path, "x" * 11, bytes(16))
    for damaged in (b"", b"scrypt$1$2", b"bcrypt$1$1$1$00$00", b"scrypt$3$8$1$00$00", b"\xff"):
        with pytest.raises(NoPassword, match="damaged"):
            matches(damaged, PASSWORD)


class Clock:
    """Time as a test wants it."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def door(clock: Clock, tmp_path: Path) -> Iterator[Door]:
    numbers = iter(range(1, 1000))
    line = verifier(PASSWORD, bytes(16))
    with closing(Sessions(tmp_path / "sessions")) as sessions:
        yield Door(lambda: line, sessions, lambda size: next(numbers).to_bytes(size, "big"), clock)


def test_wrong_passwords_cost_time_and_the_right_one_too_late_as_well(door: Door, clock: Clock) -> None:
    for _ in range(ATTEMPTS):
        with pytest.raises(WrongPassword):
            door.enter("192.0.2.1", "wrong")
    with pytest.raises(TooManyAttempts):
        door.enter("192.0.2.1", PASSWORD)
    assert door.enter("192.0.2.2", PASSWORD)  # another address
    clock.now_s += REFILL_S - 1
    with pytest.raises(TooManyAttempts):
        door.enter("192.0.2.1", PASSWORD)
    clock.now_s += 1
    assert door.is_in(door.enter("192.0.2.1", PASSWORD))


def test_sessions_end_when_nobody_is_there_and_in_the_end(door: Door, clock: Clock) -> None:
    idle, busy = door.enter("a", PASSWORD), door.enter("b", PASSWORD)
    assert idle != busy
    clock.now_s = IDLE_S + 1
    assert not door.is_in(idle)
    busy = door.enter("b", PASSWORD)
    began_s = clock.now_s
    while clock.now_s + IDLE_S / 2 <= began_s + LONGEST_S:
        clock.now_s += IDLE_S / 2
        assert door.is_in(busy)
    clock.now_s = began_s + LONGEST_S + 1
    assert not door.is_in(busy)
    left = door.enter("c", PASSWORD)
    door.leave(left)
    assert not door.is_in(left)


def test_a_new_password_ends_all_sessions(tmp_path: Path) -> None:
    lines = [verifier(PASSWORD, bytes(16))]
    with closing(Sessions(tmp_path / "sessions")) as sessions:
        door = Door(lambda: lines[0], sessions, lambda size: bytes(size), lambda: 0.0)
        name = door.enter("a", PASSWORD)
        assert door.is_in(name)
        lines[0] = verifier("another password", bytes(16))
        assert not door.is_in(name)


def test_a_session_is_one_at_each_process_and_the_file_names_none(clock: Clock, tmp_path: Path) -> None:
    line = verifier(PASSWORD, bytes(16))
    with closing(Sessions(tmp_path / FILE)) as own, closing(Sessions(tmp_path / FILE)) as others:
        door, other = (Door(lambda: line, sessions, os.urandom, clock) for sessions in (own, others))
        name, gone = door.enter("a", PASSWORD), door.enter("b", PASSWORD)
        assert other.is_in(name)
        assert other.is_form_of(name, door.form_token(name))
        clock.now_s = IDLE_S - 1
        assert other.is_in(name)  # seen there
        clock.now_s = IDLE_S + 1
        assert door.is_in(name)
        assert not other.is_in(gone)
        other.leave(name)
        assert not door.is_in(name)
        name = door.enter("a", PASSWORD)
        written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert name.encode() not in written
        assert bytes.fromhex(name) not in written
        assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
        clock.now_s -= 1  # set back before the session: nobody can say how old it is
        assert not door.is_in(name)


def test_the_oldest_sessions_make_way(tmp_path: Path) -> None:
    with closing(Sessions(tmp_path / "sessions")) as sessions:
        for number in range(MOST_SESSIONS + 2):
            sessions.begin(str(number), b"", float(number))
        found = [sessions.is_open(str(number), b"", 100.0) for number in range(MOST_SESSIONS + 2)]
        assert found == [False] * 2 + [True] * MOST_SESSIONS


def test_a_form_belongs_to_one_cookie_of_one_password(door: Door, clock: Clock, tmp_path: Path) -> None:
    one, other = door.new_name(), door.new_name()
    assert door.is_form_of(one, door.form_token(one))
    assert not door.is_form_of(one, door.form_token(other))
    assert not door.is_form_of("", door.form_token(""))
    with closing(Sessions(tmp_path / "sessions")) as sessions:
        changed = Door(lambda: b"", sessions, lambda size: bytes(size), clock)
        assert not changed.is_form_of(one, door.form_token(one))


@contextmanager
def visitor(site: str, **more: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site, trust_env=False, timeout=PATIENCE_S, **more) as client:
        yield client


def csrf(text: str) -> str:
    (token,) = re.findall(r'name="csrf" value="([0-9a-f]{64})"', text)
    return str(token)


def log_in(client: httpx.Client, password: str = PASSWORD) -> httpx.Response:
    form = {"csrf": csrf(client.get("/login").text), "password": password}
    return client.post("/login", data=form)


PATHS = (
    "/",
    "/fleet",
    "/fabric",
    "/plans",
    "/mismatches",
    "/hazards",
    "/findings",
    "/findings/x",
    "/logout",
    "/nothing",
)


def test_without_a_session_there_is_only_the_door(site: str) -> None:
    with visitor(site) as client:
        for path in PATHS:
            answer = client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        for part in (*PARTS, "findings/x", "nothing"):
            answer = client.get(f"/api/{part}")
            assert (answer.status_code, answer.json()["error"]) == (401, "NotLoggedIn")
        client.cookies.set("pharoah-provider", "0" * 64)
        assert client.get("/").status_code == 303


def test_the_password_opens_and_leaving_closes(site: str) -> None:
    with visitor(site) as client:
        before = client.get("/login").cookies["pharoah-provider"]
        answer = log_in(client)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "secure" not in cookie
        name = client.cookies["pharoah-provider"]
        assert name != before
        page = client.get("/")
        assert page.status_code == 200
        assert client.post("/logout", data={"csrf": "0" * 64}).status_code == 403
        assert client.get("/").status_code == 200
        assert client.post("/logout", data={"csrf": csrf(page.text)}).status_code == 303
        client.cookies.set("pharoah-provider", name)
        assert client.get("/").status_code == 303


def test_forms_of_others_and_wrong_passwords_do_not_open(site: str) -> None:
    with visitor(site) as client:
        wrong = log_in(client, "wrong password")
        assert wrong.status_code == 403
        assert "Wrong password" in wrong.text
        foreign = client.post("/login", data={"csrf": "0" * 64, "password": PASSWORD})
        assert foreign.status_code == 403
        assert "not from here" in foreign.text
        assert client.post("/login", content=b"x" * 5000).status_code == 413
        assert client.get("/").status_code == 303
        assert log_in(client).status_code == 303


@pytest.mark.parametrize("path", ["/login", "/", "/api/overview", "/static/charts.js", "/static/nothing"])
def test_every_answer_keeps_the_browser_in_its_place(site: str, path: str) -> None:
    with visitor(site) as client:
        headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "strict-transport-security" not in headers


@pytest.mark.parametrize(("host", "status"), [("evil.example", 421), ("127.0.0.1.evil.example", 421), ("", 421)])
def test_another_name_for_this_machine_is_not_served(site: str, host: str, status: int) -> None:
    with visitor(site) as client:
        assert client.get("/login", headers={"host": host}).status_code == status
        for own in ("localhost:9", "[::1]:1", "127.0.0.1"):
            assert client.get("/login", headers={"host": own}).status_code == 200


def test_what_is_not_there_is_said_in_the_form_that_was_asked_for(site: str) -> None:
    with visitor(site) as client:
        log_in(client)
        page, answer = client.get("/findings/nothing"), client.get("/api/nothing")
        assert (page.status_code, answer.status_code) == (404, 404)
        assert "no such finding" in page.text
        assert "overview" in answer.json()["what"]


def test_json_has_what_the_page_has(site: str, told: View) -> None:
    with visitor(site) as client:
        log_in(client)
        for part in PARTS:
            assert client.get(f"/api/{part}").json() == json.loads(json_text(asdict(told)[part]))
        first = told.findings[0]
        assert client.get(f"/api/findings/{first.key}").json()["reason"] == first.reason


def test_names_from_telemetry_are_text_and_never_markup(shown: Shown, tmp_path: Path) -> None:
    home = shutil.copytree(shown.provider, tmp_path / "provider")
    state = (home / "contexts.json").read_text()
    (home / "contexts.json").write_text(state.replace("gpu-03", "<script>alert(1)</script>"))
    with listening(home, None, "127.0.0.1", 0) as address, visitor(address) as client:
        log_in(client)
        text = client.get("/fleet").text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_the_page_follows_the_store(shown: Shown, tmp_path: Path) -> None:
    home = shutil.copytree(shown.provider, tmp_path / "provider")
    with listening(home, None, "127.0.0.1", 0) as address, visitor(address) as client:
        log_in(client)
        assert "waits for 4 tenants" in client.get("/").text
        with opened(home, None) as store:
            kept = store.rounds.rounds()[-1]
            store.rounds.move(kept.round_id, kept.state, RoundState.REFUSED)
        assert "waits for 4 tenants" not in client.get("/").text
        (home / "contexts.json").write_text("{")
        damaged = client.get("/fleet")
        assert damaged.status_code == 503
        assert "contexts.json" in damaged.text
        assert client.get("/api/fleet").json()["hint"]


def test_other_machines_get_it_over_tls_or_not_at_all(shown: Shown, tmp_path: Path) -> None:
    home = shutil.copytree(shown.provider, tmp_path / "provider")
    for name in ("tls.pem", "tls.key"):
        (home / name).unlink()
    with pytest.raises(PageInTheClear, match="reachable from other machines"), listening(home, None, "0.0.0.0", 0):  # noqa: S104
        pass
    made = make_certificate(["127.0.0.1"], datetime.now(UTC))
    (home / "tls.pem").write_bytes(made.certificate_pem)
    (home / "tls.key").write_bytes(made.key_pem)
    with listening(home, None, "0.0.0.0", 0) as address:  # noqa: S104
        assert address.startswith("https://")
        here = address.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        with visitor(here, verify=_trusting(home / "tls.pem")) as client:
            answer = log_in(client)
            assert "secure" in answer.headers["set-cookie"].lower()
            assert "__Host-" in answer.headers["set-cookie"]
            assert client.get("/").status_code == 200
            assert "strict-transport-security" in answer.headers


def _trusting(certificate: Path) -> Any:
    import ssl

    return ssl.create_default_context(cafile=str(certificate))


def test_the_verb_sets_a_password_and_refuses_to_serve_without(shown: Shown, tmp_path: Path) -> None:
    home = shutil.copytree(shown.provider, tmp_path / "provider")
    (home / FILE).unlink()
    bare = CliRunner().invoke(app, ["page", "--home", str(home)])
    assert bare.exit_code == 2
    assert "pharoah-provider page password" in bare.stderr
    done = CliRunner().invoke(app, ["page", "password", "--home", str(home)], input=f"{PASSWORD}\n")
    assert done.exit_code == 0, done.stderr
    assert matches((home / FILE).read_bytes(), PASSWORD)
    assert PASSWORD not in done.output


@pytest.mark.nightly
def test_the_verb_serves_until_it_is_told_to_end(shown: Shown) -> None:
    command = [sys.executable, "-m", "provider_server", "page", "--home", str(shown.provider), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stderr is not None
        (address,) = re.findall(r"http://127.0.0.1:\d+", running.stderr.readline())
        with visitor(address) as client:
            assert log_in(client).status_code == 303
            assert client.get("/api/overview").status_code == 200
        running.terminate()
        assert running.wait(PATIENCE_S) == 0


# ---- in a browser ----------------------------------------------------------------------------------------------------

PAGES = (
    "/",
    "/fleet",
    "/fabric",
    "/plans",
    "/mismatches",
    "/hazards",
    "/findings",
    "/findings?text=nothing",
    "finding",
)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with browsers.chromium() as started:
        yield started


@contextmanager
def logged_in(
    browser: "Browser",
    site: str,
    *,
    width: int = browsers.WIDE,
    scheme: browsers.Scheme = "light",
    scripts: bool = True,
) -> Iterator[browsers.Watched]:
    with browsers.watched(
        browser, site.removeprefix("http://"), width=width, scheme=scheme, scripts=scripts
    ) as watched:
        page = watched.page
        page.goto(f"{site}/login")
        page.fill("#password", PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{site}/")
        yield watched


@pytest.mark.parametrize(("scheme", "width"), browsers.SCHEMES_AND_WIDTHS)
def test_every_page_is_whole_for_everybody(
    browser: "Browser", site: str, told: View, scheme: browsers.Scheme, width: int
) -> None:
    with logged_in(browser, site, width=width, scheme=scheme) as watched:
        page = watched.page
        for path in PAGES:
            page.goto(site + (f"/findings/{told.findings[0].key}" if path == "finding" else path))
            page.wait_for_load_state("networkidle")
            assert page.locator("h1").count() == 1
            assert browsers.overflow(page) <= 0, path
            assert browsers.barriers(page) == [], path
        page.goto(f"{site}/login")
        assert browsers.barriers(page) == []
        assert (watched.errors, watched.elsewhere) == ([], [])


def test_the_measures_of_the_test_above_can_fail(browser: "Browser", site: str) -> None:
    with logged_in(browser, site) as watched:
        page = watched.page
        page.set_content('<html><body><img src="/static/icon.svg" width="3000"></body></html>')
        assert any(barrier.startswith("image-alt") for barrier in browsers.barriers(page))
        assert browsers.overflow(page) > 0
        page.evaluate("fetch('http://192.0.2.1/').catch(() => console.error('stopped'))")
        page.wait_for_timeout(200)
        assert watched.errors
        page.goto("about:blank")  # where no policy of ours holds
        page.evaluate("fetch('http://192.0.2.1/').catch(() => 0)")
        assert watched.elsewhere == ["http://192.0.2.1/"]


def test_charts_are_drawn_from_the_figures_and_are_as_wide_as_the_data(
    browser: "Browser", site: str, told: View
) -> None:
    inked = """canvas => { const d = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
               return d.some(value => value > 0); }"""
    bands = [band for curve in told.hazards for band in curve.bands if band.known]
    with logged_in(browser, site) as watched:
        page = watched.page
        for path, charts in (("/", 3), ("/hazards", CONTEXTS)):
            page.goto(site + path)
            page.wait_for_selector("html[data-charts=drawn]")
            canvases = page.locator(".chart canvas")
            assert canvases.count() == charts
            assert all(canvases.nth(place).evaluate(inked) for place in range(charts))
        low, high = page.evaluate("[drawn[0].scales.y.min, drawn[0].scales.y.max]")
        assert low == pytest.approx(min(band.low for band in bands) / 1.1)
        assert high == pytest.approx(max(band.high for band in bands) * 1.1)
        page.goto(site)
        page.wait_for_selector("html[data-charts=drawn]")
        weeks = page.evaluate("(drawn[0].scales.x.max - drawn[0].scales.x.min) / 604800")
        assert weeks == pytest.approx((WEEKS - 1) * 1.08)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_verdicts_differ_by_more_than_their_hue(browser: "Browser", site: str, scheme: browsers.Scheme) -> None:
    look = """name => { const one = document.body.appendChild(document.createElement('td')); one.className = name;
              const { backgroundColor, backgroundImage, boxShadow } = getComputedStyle(one);
              return [backgroundColor, backgroundImage != 'none', boxShadow != 'none']; }"""
    with logged_in(browser, site, scheme=scheme) as watched:
        page = watched.page
        page.goto(f"{site}/mismatches")
        worse, confounded, suspected = (page.evaluate(look, name) for name in ("worse", "confounded", "suspected"))
        nothing = "rgba(0, 0, 0, 0)"
        assert worse[0] != nothing
        assert (worse[1:], confounded[1:], suspected) == ([False, False], [True, False], [nothing, False, True])
        assert page.locator("td.worse").first.inner_text().startswith("▲")
        assert [text[0] for text in page.locator(".legend li").all_inner_texts()[:3]] == ["▲", "◆", "△"]


def test_the_first_screen_of_the_overview_is_what_to_act_on(browser: "Browser", site: str, told: View) -> None:
    for width, height in ((1280, 800), (390, 844)):
        with logged_in(browser, site, width=width) as watched:
            page = watched.page
            page.set_viewport_size({"width": width, "height": height})
            assert page.locator("h1").inner_text() == f"{len(told.overview.actions)} things to act on"
            items = page.locator(".actions a")
            assert items.count() == len(told.overview.actions)
            boxes = [items.nth(place).bounding_box() for place in range(3)]
            assert all(box and box["y"] + box["height"] < height for box in boxes)


def test_nodes_are_searched_by_a_form_without_scripts(browser: "Browser", site: str) -> None:
    with logged_in(browser, site, scripts=False) as watched:
        page = watched.page
        page.goto(f"{site}/fleet")
        page.get_by_label("Node or hardware group").fill("gpu-17")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**text=gpu-17*")
        assert page.locator(".nodes b").all_inner_texts() == ["gpu-17"]
        page.goto(f"{site}/fleet")
        page.get_by_label("only raised").check()
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**raised=yes*")
        assert (
            page.locator(".nodes li").count()
            == page.get_by_text("wear level", exact=False).locator("xpath=self::li").count()
        )


@pytest.mark.nightly
def test_without_scripts_the_figures_are_in_tables(browser: "Browser", site: str, told: View) -> None:
    with logged_in(browser, site, scripts=False) as watched:
        page = watched.page
        page.goto(f"{site}/hazards")
        rows = page.locator("table").first.locator("tbody tr")
        assert rows.count() == sum(len(curve.bands) for curve in told.hazards)
        assert rows.first.is_visible()
        assert not page.locator(".chart").first.is_visible()


@pytest.mark.nightly
def test_a_finding_is_reached_and_left_by_keyboard_alone(browser: "Browser", site: str, told: View) -> None:
    with logged_in(browser, site, width=400) as watched:
        page = watched.page
        at = "document.activeElement.getAttribute('href') || ''"
        for wanted in ("/mismatches", f"/findings/{told.findings[0].key}"):
            for _ in range(60):
                page.keyboard.press("Tab")
                if page.evaluate(at) == wanted:
                    break
            assert page.evaluate(at) == wanted
            if wanted != "/mismatches":
                assert page.locator("a:focus .tip").is_visible()  # the reason, before one goes there
                assert told.findings[0].reason in page.locator("a:focus .tip").inner_text()
            page.keyboard.press("Enter")
            page.wait_for_url(site + wanted)
        assert "worse" in page.locator("h1").inner_text()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"


@pytest.mark.nightly
def test_findings_are_filtered_by_a_form(browser: "Browser", site: str, told: View) -> None:
    with logged_in(browser, site) as watched:
        page = watched.page
        page.goto(f"{site}/findings")
        assert page.locator("tbody tr").count() == len(told.findings)
        page.get_by_label("Judgement").select_option("worse")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**judgement=worse**")  # and until all of it is there
        worse = filtered(told.findings, "worse", "")
        assert page.locator("tbody tr").count() == len(worse)
        page.locator("tbody a").first.click()
        assert page.url == f"{site}/findings/{worse[0].key}"


def test_a_wrong_password_is_said_and_logging_out_shows_the_door(browser: "Browser", site: str) -> None:
    with browsers.watched(browser, site.removeprefix("http://")) as watched:
        page = watched.page
        page.goto(site)
        page.fill("#password", "wrong password")
        page.keyboard.press("Enter")
        assert page.get_by_role("alert").inner_text().startswith("Wrong password")
    with logged_in(browser, site) as watched:
        page = watched.page
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(f"{site}/login")
        page.goto(f"{site}/fleet")
        assert page.url == f"{site}/login"
