"""The owner's view: every byte of what leaves has a meaning beside it, and what is shown is what left."""

import hashlib
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from crypto.codec import decode
from crypto.errors import DecodeError
from crypto.messages import Contribution
from crypto.plan import Plan
from crypto.signing import Signed
from simulation.federation import Federation
from tenant_client import owner_view
from tenant_client.cli import app
from tenant_client.layout import layout
from tests.test_week import LEASES, a_federation, happen, in_process


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    federation = a_federation(tmp_path_factory.mktemp("homes"), 4)
    happen(federation)
    in_process(federation)
    yield federation
    federation.close()


@pytest.fixture
def home(played: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(tmp_path_factory.getbasetemp().glob("homes*/tenants/000"))


def plan_of(federation: Federation) -> Plan:
    (plan,) = federation.tenants[0].plans()
    return plan


def message_of(federation: Federation) -> bytes:
    message = federation.tenants[0].sent(plan_of(federation).round_id)
    assert message is not None
    return message


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_the_parts_of_a_message_cover_every_byte_once(played: Federation) -> None:
    message, parts = message_of(played), layout(message_of(played), plan_of(played))
    assert parts[0].offset == 0
    assert all(one.offset + one.length == other.offset for one, other in pairwise(parts))
    assert parts[-1].offset + parts[-1].length == len(message)


def test_each_part_is_where_it_is_said_to_be(played: Federation) -> None:
    message = message_of(played)
    signed = decode(Signed, message)
    sent = decode(Contribution, signed.body)
    found = {part.field: message[part.offset : part.offset + part.length] for part in layout(message, plan_of(played))}
    assert found["tenant"] == played.tenants[0].id
    assert found["round"] == sent.round_id
    assert found["plan"] == sent.plan
    assert found["signature"] == signed.signature
    cells = b"".join(data for field, data in found.items() if field.startswith("cells"))
    assert cells == sent.cells


def test_what_is_no_contribution_has_no_layout(played: Federation) -> None:
    with pytest.raises(DecodeError):
        layout(b"something else", plan_of(played))


def test_a_preview_has_the_form_of_what_is_sent_afterwards(tmp_path: Path) -> None:
    federation = a_federation(tmp_path, 4)
    happen(federation)
    in_process(federation)
    answered, fresh = federation.tenants[0], plan_of(federation)
    view = owner_view.preview(answered, fresh)
    never_asked = a_federation(tmp_path / "other", 4).tenants[0]
    assert owner_view.preview(never_asked, fresh).layout == view.layout
    assert view.message_bytes == len(message_of(federation))
    federation.close()


def test_a_previewed_cell_is_the_one_that_carries_the_count(tmp_path: Path) -> None:
    """Without noise, taking the masks off leaves the count at the very offset that the preview names."""
    federation = a_federation(tmp_path, 4, silent=True)
    happen(federation)
    release, _ = in_process(federation)
    view = owner_view.preview(federation.tenants[0], release.plan)
    starts = {part.field: part.offset for part in view.layout}
    assert view.counts
    for cell in view.counts:
        table = release.table(cell.marginal)
        levels = {dimension.name: dimension.levels for dimension in table.dimensions}
        place = tuple(levels[name].index(level) for name, level in cell.cell)
        assert cell.offset == starts[f"cells of {cell.marginal}"] + 8 * int(np.ravel_multi_index(place, table.shape))
        assert table.events[place] >= cell.count
    federation.close()


def test_sent_lists_what_left_and_nothing_that_did_not(played: Federation) -> None:
    view = owner_view.sent(played.tenants[0])
    (contribution,) = view.contributions
    assert contribution.sha256 == hashlib.sha256(message_of(played)).hexdigest()
    assert contribution.message_bytes == len(message_of(played))
    assert len(view.registrations) == LEASES
    assert {row.archetype for row in view.registrations} == {view.registrations[0].archetype}
    assert [(row.epoch, row.trustee, row.elements) for row in view.evaluations] == [(0, 1, 20), (0, 2, 20), (0, 3, 20)]


def test_leases_that_the_provider_never_asked_about_are_not_listed(tmp_path: Path) -> None:
    federation = a_federation(tmp_path, 4)
    happen(federation)
    tenant = federation.tenants[0]
    assert owner_view.sent(tenant).registrations == ()
    in_process(federation)
    assert len(owner_view.sent(tenant).registrations) == LEASES
    federation.close()


def test_the_bytes_that_are_shown_are_the_bytes_that_left(played: Federation, home: Path) -> None:
    round_id = str(plan_of(played).round_id)
    shown = json.loads(call("sent", "--home", str(home), "--round", round_id, "--json").stdout)
    assert bytes.fromhex("".join(part["hex"] for part in shown["parts"])) == message_of(played)


def test_the_verbs_print_for_people_too(home: Path) -> None:
    told = call("sent", "--home", str(home))
    assert told.exit_code == 0
    assert "contribution" in told.stdout
    assert "epoch 0: trustee 3 was sent 20 blinded elements" in told.stdout
    assert "signature: yours" in call("preview", "--home", str(home)).stdout


def test_a_round_that_was_not_answered_is_unknown(home: Path) -> None:
    told = call("sent", "--home", str(home), "--round", "00" * 16)
    assert told.exit_code == 3
    assert "was not answered" in told.stderr


@pytest.mark.parametrize("name", ["no-such-plan", ""])
def test_a_plan_that_cannot_be_read_is_an_error(home: Path, tmp_path: Path, name: str) -> None:
    told = call("preview", "--home", str(home), "--plan", str(tmp_path / name))
    assert told.exit_code == 2
    assert f"error: {tmp_path / name}: " in told.stderr
    assert "hint: name a signed plan" in told.stderr


def test_where_nothing_left_the_verb_says_so(tmp_path: Path) -> None:
    federation = a_federation(tmp_path, 2)
    federation.close()
    assert call("sent", "--home", str(tmp_path / "tenants" / "000")).exit_code == 3
