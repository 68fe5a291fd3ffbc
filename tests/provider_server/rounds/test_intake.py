"""Events of leases: what is recorded, what is refused by its line, and who may send it over HTTP."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from crypto.errors import NotYours
from crypto.ids import LeaseId, TenantId
from federation.base.settings import BadSettings
from federation.protocol.service_messages import LeaseEnd, Outcome, Suspicion
from provider_server.fleet.learning.hardware import label_of
from provider_server.program.cli import app
from provider_server.rounds.intake.lease_events import BadLeases, decoded
from provider_server.rounds.intake.lines import LONGEST_LINE
from provider_server.rounds.intake.recorder import OPEN_H, LeaseRecorder
from provider_server.rounds.intake.webhook import LONGEST_BODY, listening
from provider_server.rounds.lease_book import HARDWARE
from provider_server.rounds.settings import Leases
from provider_server.rounds.store.hint_store import KEPT_H
from provider_server.rounds.store.store import Store
from tests.support import schemas
from tests.support.federations import WEEKS, Grounds, hold
from tests.support.hinting_provider import draft
from tests.support.leasing import NAME, Scene, at, founded as founded, scene as scene

OTHER = "0b" * 16


def test_a_lease_begins_changes_its_end_and_ends(scene: Scene) -> None:
    assert scene.told(scene.line("begin"))["begun"] == 1
    ((lease, nodes),) = scene.provider.store.placed(20.0)
    assert (lease.nodes, lease.start_h, lease.end_h, nodes) == (2, 10.0, 50.0, ("n1", "n2"))
    assert lease.labels == scene.provider.context_labels(10.0, label_of(4), 2)
    assert scene.told(scene.line("change", until=at(80.0)))["changed"] == 1
    assert scene.end_h() == 80.0
    assert scene.told(scene.line("end", at=at(30.5)))["ended"] == 1
    assert scene.end_h() == 30.5
    assert scene.provider.store.placed(31.0) == []


def test_without_a_planned_end_a_lease_runs_until_its_end_is_told(scene: Scene) -> None:
    scene.told(scene.line("begin", until=None))
    assert scene.end_h() == 10.0 + OPEN_H
    assert scene.told(scene.line("requeue", at=at(12.0)))["requeued"] == 1
    assert scene.end_h() == 12.0


def test_the_same_lines_again_change_nothing(scene: Scene) -> None:
    lines = [scene.line("begin"), scene.line("change", until=at(60.0)), scene.line("end", at=at(40.0))]
    scene.told(*lines[:2])
    assert scene.told(*lines[:2])["known"] == 2
    scene.told(lines[2])
    again = scene.told(lines[0], lines[2])
    assert (again["known"], again["refused"]) == (2, [])
    assert scene.end_h() == 40.0


@pytest.mark.parametrize(
    ("event", "keys", "why"),
    [
        ("begin", {"lease": OTHER, "tenant": "00" * 16}, "not enrolled"),
        ("begin", {"lease": OTHER, "node_names": ["n1", "n9"]}, "n9 has no context"),
        ("begin", {"lease": OTHER, "node_names": ["n1", "n1"]}, "named twice"),
        ("begin", {"lease": OTHER, "nodes": 2}, "give either"),
        ("begin", {"lease": OTHER, "node_names": []}, "give either"),
        ("begin", {"lease": OTHER, "until": at(10.0)}, "after at"),
        ("begin", {"lease": OTHER, "at": "1969-12-31T00:00:00Z"}, "before 1970"),
        ("begin", {"lease": OTHER, "at": "1970-01-01T10:00:00"}, "timezone"),
        ("begin", {"lease": OTHER, "outcome": "failed"}, "outcome"),
        ("begin", {"lease": "0A" * 16}, "regex"),
        ("begin", {"node_names": ["n1"]}, "began otherwise"),
        ("end", {"lease": OTHER, "at": at(20.0)}, "no lease of this name"),
        ("end", {"at": at(9.0)}, "before it began"),
        ("end", {}, "at"),
        ("change", {"until": at(9.0)}, "before it began"),
        ("stop", {"at": at(20.0)}, "stop"),
    ],
)
def test_a_bad_line_is_named_and_the_others_are_recorded(
    event: str, keys: dict[str, Any], why: str, scene: Scene
) -> None:
    taken = scene.told(scene.line("begin"), b"", scene.line(event, **keys), scene.line("change", until=at(60.0)))
    assert (taken["begun"], taken["changed"]) == (1, 1)
    ((refused),) = taken["refused"]
    assert refused["line"] == 3
    assert why in refused["error"]


@pytest.mark.parametrize("line", [b"{", b"[]", b"null", b'"begin"', b"\xff", b" " * 10 + b"x" * LONGEST_LINE])
def test_what_is_no_event_is_refused_and_nothing_else(line: bytes, scene: Scene) -> None:
    assert [one["line"] for one in scene.told(line)["refused"]] == [1]
    if len(line) < LONGEST_LINE:
        with pytest.raises(BadLeases):
            decoded(line)


def test_a_lease_that_ended_does_not_go_on(scene: Scene) -> None:
    scene.told(scene.line("begin"), scene.line("end", at=at(20.0)))
    late = scene.told(scene.line("change", until=at(60.0)), scene.line("end", at=at(25.0)))
    assert ["ended" in one["error"] for one in late["refused"]] == [True, True]
    assert scene.end_h() == 20.0


def ends(scene: Scene, number: int = 0) -> list[tuple[str, float, float | None]]:
    """What the tenant was told after this number: change, end, and the end that was planned before."""
    notices = scene.provider.store.hints.after(TenantId(bytes.fromhex(scene.tenant)), number)
    assert all(isinstance(one, LeaseEnd) and str(one.lease) == NAME for one in notices)
    numbers = [one.number for one in notices]
    assert numbers == sorted(set(numbers))
    return [(one.change.value, one.end_h, one.planned_h) for one in notices if isinstance(one, LeaseEnd)]


def test_the_tenant_is_told_of_each_end_once(scene: Scene) -> None:
    scene.told(scene.line("begin"))
    assert ends(scene) == []
    lines = [scene.line("change", until=at(80.0)), scene.line("end", at=at(30.5))]
    scene.told(lines[0], lines[0], lines[1])
    scene.told(lines[1])
    assert ends(scene) == [("moved", 80.0, 50.0), ("ended_early", 30.5, 80.0)]


@pytest.mark.parametrize(
    ("until", "event", "end", "told"),
    [
        (None, "end", 30.0, ("ended", 30.0, None)),
        (None, "requeue", 30.0, ("requeued", 30.0, None)),
        (at(50.0), "end", 50.0, ("ended", 50.0, 50.0)),
        (at(50.0), "requeue", 20.0, ("requeued", 20.0, 50.0)),
    ],
)
def test_an_end_is_early_only_before_a_planned_one(
    scene: Scene, until: str | None, event: str, end: float, told: tuple[str, float, float | None]
) -> None:
    scene.told(scene.line("begin", until=until), scene.line(event, at=at(end)))
    assert ends(scene) == [told]


def test_another_process_hears_of_an_end_and_nobody_else(scene: Scene) -> None:
    """The follower of a scheduler and the online service are two processes of one store."""
    heard: list[TenantId] = []
    with closing(Store(scene.home / "provider.db")) as other:
        other.hints.subscribe(heard.append)
        other.hints.look()
        scene.told(scene.line("begin"), scene.line("end", at=at(20.0)))
        other.hints.look()
        other.hints.look()
    assert heard == [TenantId(bytes.fromhex(scene.tenant))]


def test_ends_and_hints_are_numbered_together_and_an_end_is_no_hint(scene: Scene) -> None:
    tenant = TenantId(bytes.fromhex(scene.tenant))
    scene.told(scene.line("begin"), scene.line("change", until=at(60.0)))
    hint = draft(LeaseId(bytes.fromhex(NAME)), 1, scene.provider.now_h())
    scene.provider.store.hints.append([(tenant, hint)], None, b"1")
    scene.told(scene.line("end", at=at(40.0)))
    first, second, third = scene.provider.store.hints.after(tenant, 0)
    assert [type(one).__name__ for one in (first, second, third)] == ["LeaseEnd", "Hint", "LeaseEnd"]
    assert first.number < second.number < third.number
    about = LeaseId(bytes.fromhex(NAME)), Suspicion.MEMORY, True, 12.5
    scene.provider.store.hints.take_outcome(tenant, Outcome(b"", second.number, *about))
    with pytest.raises(NotYours):
        scene.provider.store.hints.take_outcome(tenant, Outcome(b"", first.number, *about))


def test_what_was_told_is_kept_for_thirteen_weeks(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for hour, line in ((1e5, scene.line("change", until=at(60.0))), (1e5 + KEPT_H + 1.0, scene.line("end", at=at(40)))):
        monkeypatch.setattr(scene.provider, "now_h", lambda hour=hour: hour)
        scene.told(scene.line("begin"), line)
    assert ends(scene) == [("ended_early", 40.0, 60.0)]


@pytest.mark.nightly
def test_hours_of_a_release_stay_counted(tmp_path: Path) -> None:
    grounds = Grounds.of_failures(tmp_path, 3)
    with grounds.opened(tmp_path) as federation:
        hold(federation, WEEKS[0])
        provider, tenant = federation.provider, str(federation.tenants[0].id)
        scene = Scene(tmp_path / "provider", provider, tenant)
        counted = {"node_names": None, "nodes": 2, "context": "rack 1"}
        begin = scene.line("begin", **counted, at=at(100.0), until=at(300.0))
        scene.told(begin, scene.line("end", at=at(120.0)))
        assert scene.end_h() == WEEKS[0][1]
        assert provider.store.note(HARDWARE) == {"rack 1": True}  # of a lease itself only the token is kept


# ---- the verb --------------------------------------------------------------------------------------------------------


def test_the_verb_reads_lines_and_names_bad_ones(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"\n".join([scene.line("begin"), b"{}", scene.line("end", at=at(40.0))]))
    result = CliRunner().invoke(app, ["leases", "events", str(file), "--home", str(scene.home), "--json"])
    assert result.exit_code == 2
    assert "events.jsonl, line 2:" in result.stderr
    (row,) = schemas.held("pharoah-provider leases events", result.stdout)
    assert (row["begun"], row["ended"], row["refused"]) == (1, 1, 1)
    words = ["leases", "events", "-", "--home", str(scene.home), "--json"]
    again = CliRunner().invoke(app, words, input=scene.line("begin") + b"\n")
    assert (again.exit_code, json.loads(again.stdout)[0]["known"]) == (0, 1)


# ---- the webhook -----------------------------------------------------------------------------------------------------

TOKEN = "a token of some length"


@pytest.fixture
def webhook(scene: Scene, tmp_path: Path) -> Iterator[str]:
    (tmp_path / "token").write_text(TOKEN + "\n")
    settings = Leases(listen="127.0.0.1:0", token_file=str(tmp_path / "token"))
    with listening(scene.home, LeaseRecorder(scene.provider, scene.home), settings) as address:
        yield f"http://{address}/pharoah/leases"


def post(url: str, body: bytes, token: str = TOKEN) -> httpx.Response:
    return httpx.post(url, content=body, headers={"Authorization": f"Bearer {token}"}, timeout=30)


def test_the_webhook_takes_good_lines_and_names_the_others(scene: Scene, webhook: str) -> None:
    answer = post(webhook, scene.line("begin") + b"\n" + scene.line("change", until=at(60.0)))
    assert (answer.status_code, answer.json()["begun"], answer.json()["changed"]) == (200, 1, 1)
    mixed = post(webhook, b"{}\n" + scene.line("end", at=at(40.0)))
    assert (mixed.status_code, mixed.json()["ended"]) == (422, 1)
    assert [one["line"] for one in mixed.json()["refused"]] == [1]
    assert scene.end_h() == 40.0


def test_the_webhook_refuses_strangers_and_long_bodies(scene: Scene, webhook: str) -> None:
    for token in ("-", "x", TOKEN + "x", TOKEN.upper()):
        assert post(webhook, scene.line("begin"), token).status_code == 401
    assert httpx.post(webhook, content=scene.line("begin")).status_code == 401
    assert post(webhook, b"\n" * (LONGEST_BODY + 1)).status_code == 413
    assert httpx.get(webhook).status_code == 405
    assert scene.provider.store.placed(20.0) == []


def test_a_token_that_is_gone_lets_nobody_in_and_is_read_again(scene: Scene, webhook: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("")
    for token in (TOKEN, "-"):
        assert post(webhook, scene.line("begin"), token).status_code == 503
    (tmp_path / "token").unlink()
    assert post(webhook, scene.line("begin")).status_code == 503
    (tmp_path / "token").write_text(TOKEN[::-1])
    assert post(webhook, scene.line("begin")).status_code == 401
    assert post(webhook, scene.line("begin"), TOKEN[::-1]).status_code == 200


@pytest.mark.parametrize("listen", ["8447", "localhost:", "localhost:x", "localhost:65536", "localhost:²"])
def test_the_webhook_needs_an_address_and_a_token(listen: str, scene: Scene, tmp_path: Path) -> None:
    recorder = LeaseRecorder(scene.provider, scene.home)
    (tmp_path / "short").write_text("x")
    settings = [Leases(listen=listen), Leases("127.0.0.1:0"), Leases("127.0.0.1:0", str(tmp_path / "short"))]
    for table in settings:
        with pytest.raises(BadSettings), listening(scene.home, recorder, table):
            pass
    with listening(scene.home, recorder, Leases()) as address:
        assert address == ""
