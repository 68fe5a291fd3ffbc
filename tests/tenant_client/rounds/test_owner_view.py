"""The owner's view: every byte of what leaves has a meaning beside it, and what is shown is what left."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from crypto.codec import decode, digest, encode
from crypto.errors import BadSignature, DecodeError
from crypto.masking import MaskKey
from crypto.signing import Signed, SigningKey, open_signed_by
from federation.protocol.directory import Member, next_entry
from federation.protocol.plan import Plan
from federation.protocol.round_messages import Contribution, DirectoryUpdate, Ownership, Receipt, opened_contribution
from simulation.run.federation import Federation
from tenant_client.program.cli import app
from tenant_client.rounds.disclosure import owner_view
from tenant_client.rounds.disclosure.message_layout import layout
from tenant_client.rounds.home import create, open_tenant, pin
from tenant_client.rounds.tenant import Tenant
from tests.support import calling, schemas
from tests.support.endorsing import ended, shown
from tests.support.factories import Cast, InsecureSilence, a_failure, a_plan, a_unit, header_of, keys, signed
from tests.system.test_week import LEASES, a_federation, happen, in_process


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
    message = federation.tenants[0].outbox.sent(plan_of(federation).round_id)
    assert message is not None
    return message


call = partial(calling.call, app)


def test_the_parts_of_a_message_cover_every_byte_once(played: Federation) -> None:
    message, parts = message_of(played), layout(message_of(played), plan_of(played))
    assert parts[0].offset == 0
    assert all(one.offset + one.length == other.offset for one, other in pairwise(parts))
    assert parts[-1].offset + parts[-1].length == len(message)


def test_each_part_is_where_it_is_said_to_be(played: Federation) -> None:
    message = message_of(played)
    sent = decode(Contribution, message)
    header = header_of(message)
    found = {part.field: message[part.offset : part.offset + part.length] for part in layout(message, plan_of(played))}
    assert found["tenant"] == header.tenant == played.tenants[0].id
    assert found["round"] == header.round_id
    assert found["plan"] == header.plan
    assert found["nonce"] == header.nonce
    assert found["digest"] == header.cells == digest(sent.cells)
    assert found["signature"] == decode(Signed, sent.header).signature
    assert found["start"] == bytes([header.start_hour])
    cells = b"".join(data for field, data in found.items() if field.startswith("cells"))
    assert cells == sent.cells


def test_the_signature_that_is_shown_covers_all_that_precedes_the_cells_and_their_digest(played: Federation) -> None:
    """So an owner who trusts the digest has to look at nothing else."""
    message = message_of(played)
    parts = {part.field: part for part in layout(message, plan_of(played))}
    begins = parts["digest"].offset + parts["digest"].length
    verify_key = played.provider.directory.verify_key
    assert opened_contribution(message, verify_key)[0].tenant == played.tenants[0].id
    for at in (parts["round"].offset, parts["plan"].offset, parts["nonce"].offset, begins - 1, len(message) - 1):
        changed = bytearray(message)
        changed[at] ^= 1
        with pytest.raises(BadSignature):
            opened_contribution(bytes(changed), verify_key)


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


# ---- windows that count again --------------------------------------------------------------------------------------


FIRST, SECOND, THIRD = (a_plan(1 + at, window=(168 * at, 168 * at + 168), members=5) for at in range(3))


@pytest.fixture
def left_out(cast: Cast) -> Tenant:
    """Has a lease that failed in each of three windows, answered the first, and was not counted in it."""
    tenant = cast.tenant(sampler=InsecureSilence())
    unit = a_unit(1)
    tenant.journal.add([unit], [a_failure(unit, at_h) for at_h in (84.0, 252.0, 420.0)])
    tenant.contribute(signed(FIRST))
    tenant.end(shown(ended(FIRST, (1, 2, 3))))
    return tenant


def test_layers_of_noise_are_described_byte_by_byte_after_the_cells(left_out: Tenant) -> None:
    message = left_out.outbox.sent(FIRST.round_id)
    assert message is not None
    assert FIRST.shares.layers > 0
    parts = layout(message, FIRST)
    assert parts[0].offset == 0
    assert all(one.offset + one.length == other.offset for one, other in pairwise(parts))
    assert parts[-1].offset + parts[-1].length == len(message)
    names = [marginal.name for marginal in FIRST.marginals]
    vectors = ["cells", *(f"noise layer {layer}" for layer in range(1, FIRST.shares.layers + 1))]
    words = [part for part in parts if part.field.startswith(("cells of", "noise layer"))]
    assert [part.field for part in words] == [f"{vector} of {name}" for vector in vectors for name in names]
    sent = decode(Contribution, message)
    assert b"".join(message[part.offset : part.offset + part.length] for part in words) == sent.cells
    for part in words:
        assert ("count + noise + masks" in part.meaning) == part.field.startswith("cells")


def test_a_preview_of_several_windows_has_the_form_of_what_is_sent_afterwards(left_out: Tenant) -> None:
    view = owner_view.preview(left_out, SECOND)
    message = left_out.contribute(signed(SECOND))
    assert view.layout == layout(message, SECOND)
    assert view.message_bytes == len(message)
    assert view == owner_view.preview(left_out, SECOND)
    vectors = {part.field.partition(" of ")[0]: part.offset for part in reversed(view.layout)}
    assert all(vectors["cells"] <= cell.offset < vectors["noise layer 1"] for cell in view.counts)


def test_a_preview_says_from_which_hour_it_counts_and_what_a_long_lease_pays(left_out: Tenant) -> None:
    both = owner_view.preview(left_out, SECOND)
    assert (both.counts_from_hour, both.window_hours) == (0, (168, 336))
    assert both.whole_job_epsilon == pytest.approx(2 * both.epsilon)
    assert sum(cell.count for cell in both.counts if cell.marginal == "pairs") == 2
    alone = owner_view.preview(left_out, THIRD)  # of the second window no set is there
    assert (alone.counts_from_hour, alone.whole_job_epsilon) == (336, alone.epsilon)
    left_out.contribute(signed(SECOND))
    assert owner_view.preview(left_out, SECOND) == both
    assert [row.counts_from_hour for row in owner_view.sent(left_out).contributions] == [0, 0]


def test_the_verbs_say_when_windows_count_again_and_what_was_given_back(tmp_path: Path) -> None:
    home = tmp_path / "home"
    member = create(home, os.urandom, 0.0)
    pin(home, [keys().founding, keys().provider.sign(next_entry(keys().directory, joined=[member]))])
    (home / "policy.toml").write_text("owners_minimum = 3\ncohort_minimum = 3\ncolluding_share = 0.3\n")
    (tmp_path / "plan").write_bytes(signed(SECOND))
    told = call("privacy", "preview", "--home", str(home), "--plan", str(tmp_path / "plan"))
    assert "counts from" not in told.stdout
    assert "each count + noise + masks mod 2^64" in told.stdout
    with closing(open_tenant(home, (), os.urandom, InsecureSilence())) as tenant:
        tenant.contribute(signed(a_plan()))
        tenant.end(shown(ended(a_plan(), (1, 2, 3))))
    told = call("privacy", "preview", "--home", str(home), "--plan", str(tmp_path / "plan"))
    assert "counts from 1970-01-01 on: windows that were not counted before are included;" in told.stdout
    assert "a job that ran in all of them pays epsilon 2.000" in told.stdout
    told = call("privacy", "budget", "--home", str(home))
    assert "limit per job and window: epsilon 1 at delta 1e-08" in told.stdout
    assert (
        "1970-01-01 to 1970-01-08  0 rounds  spent 0.000  left 1.000  (1 round given back: not opened)" in told.stdout
    )


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
    assert [(row.epoch, row.trustee, row.elements) for row in view.evaluations] == [(0, 1, 4), (0, 2, 4), (0, 3, 4)]
    assert [(row.entry, row.head) for row in view.receipts] == [(0, str(played.provider.directory.head))]


def test_sent_lists_the_very_tokens_that_the_tenant_signed_to_own(played: Federation) -> None:
    tenant, provider = played.tenants[0], played.provider
    kept = [open_signed_by(Ownership, one, provider.directory.verify_key) for one in provider.store.ownerships(0)]
    (said,) = (one for one in kept if one.tenant == tenant.id)
    (shown,) = owner_view.sent(tenant).ownerships
    assert shown.epoch == said.epoch
    assert shown.tokens == tuple(map(str, said.tokens))
    assert len(shown.tokens) == 5  # three rungs and two contexts


def test_a_receipt_is_listed_for_every_entry_that_is_pinned(cast: Cast) -> None:
    tenant = cast.tenant()
    joining = Member.of(SigningKey(bytes(32)), MaskKey(bytes(32)), 0)
    entry = keys().provider.sign(next_entry(keys().directory, joined=[joining]))
    receipts = [tenant.follow(encode(DirectoryUpdate(entries))) for entries in ((), (entry,))]
    heads = [str(decode(Receipt, receipt).held) for receipt in receipts]
    assert [(row.entry, row.head) for row in owner_view.sent(tenant).receipts] == list(enumerate(heads))


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
    told = call("privacy", "sent", "--home", str(home), "--round", round_id, "--json")
    shown = schemas.held("pharoah-tenant privacy sent --round", told.stdout)
    assert bytes.fromhex("".join(part["hex"] for part in shown["parts"])) == message_of(played)


def test_the_verbs_print_for_people_too(home: Path) -> None:
    told = call("privacy", "sent", "--home", str(home))
    assert told.exit_code == 0
    assert "contribution" in told.stdout
    assert "epoch 0: 4 blinded elements to trustee 3" in told.stdout
    assert "epoch 0: signed ownership of 5 tokens: " in told.stdout
    assert "directory entry 0: receipt with the pinned digest " in told.stdout
    assert "each received bundle or list of rounds that are over: a receipt with its digest" in told.stdout
    assert "signature: your signature" in call("privacy", "preview", "--home", str(home)).stdout


def test_a_round_that_was_not_answered_is_unknown(home: Path) -> None:
    told = call("privacy", "sent", "--home", str(home), "--round", "00" * 16)
    assert told.exit_code == 3
    assert "was not answered" in told.stderr


def test_a_plan_that_cannot_be_read_is_an_error(home: Path, tmp_path: Path) -> None:
    told = call("privacy", "preview", "--home", str(home), "--plan", str(tmp_path / "no-such-plan"))
    assert told.exit_code == 2
    assert f": {tmp_path / 'no-such-plan'}" in told.stderr
    assert "hint: pass a signed plan" in told.stderr
    assert call("privacy", "preview", "--home", str(home), "--plan", str(tmp_path)).exit_code == 2  # a folder


def test_where_nothing_left_the_verb_says_so(tmp_path: Path) -> None:
    federation = a_federation(tmp_path, 2)
    federation.close()
    assert call("privacy", "sent", "--home", str(tmp_path / "tenants" / "000")).exit_code == 3
