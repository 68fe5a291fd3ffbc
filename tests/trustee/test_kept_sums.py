"""Sums of masks that a trustee keeps for later weeks: they spare work, change no answer, and show nothing on disk."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest

from crypto.ids import RoundId
from crypto.masking import MaskKey, MaskStream, Words, words_to_bytes
from federation.protocol.plan import HOURS_PER_WEEK
from federation.runtime.sqlite import Connection
from tests.support.changing import replace
from tests.support.factories import Cast, a_plan
from tests.trustee.test_trustee import a_call, an_unmasking, masks_of, three_weeks, unmasked
from trustee import kept_sums
from trustee.kept_sums import KeptSums


@contextmanager
def database(cast: Cast) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(cast.root / "trustee-3.db", isolation_level=None)) as connection:
        yield connection


def rounds_with_kept_sums(cast: Cast) -> dict[bytes, int]:
    with database(cast) as connection:
        return dict(connection.execute("SELECT round_id, count(*) FROM kept_sums GROUP BY round_id"))


def test_a_later_week_makes_its_own_masks_and_none_of_the_weeks_before(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    weeks, trustee = three_weeks(), cast.trustee()
    for plan, request, _ in weeks[:2]:
        unmasked(trustee, request, plan)
    made: list[RoundId] = []
    add_mask = MaskKey.add_mask

    def noting(key: MaskKey, total: Words, stream: MaskStream) -> None:
        made.append(stream.round_id)
        add_mask(key, total, stream)

    monkeypatch.setattr(MaskKey, "add_mask", noting)
    plan, request, groups = weeks[2]
    unmasked(trustee, request, plan)
    assert made == [plan.round_id] * sum(map(len, groups))


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM kept_sums",
        "DELETE FROM kept_sums WHERE round_id = (SELECT round_id FROM opened WHERE number = 1)",
        "DELETE FROM kept_sums WHERE part = 0",
        "DELETE FROM kept_sums WHERE part = 1",
        "UPDATE kept_sums SET sealed = x'00'",
        "UPDATE kept_sums SET sealed = x''",
        "UPDATE kept_sums SET sealed = (SELECT sealed FROM kept_sums ORDER BY rowid LIMIT 1)",
        "UPDATE kept_sums SET sealed = CAST(substr(sealed, 1, 12) || zeroblob(9) AS BLOB)",
    ],
    ids=[
        "all gone",
        "one week gone",
        "the first group gone",
        "the last group gone",
        "cut short",
        "empty",
        "another's place",
        "overwritten",
    ],
)
def test_sums_that_are_lost_or_damaged_are_made_again(cast: Cast, harm: str) -> None:
    weeks = three_weeks()
    shares = [unmasked(cast.trustee(), request, plan) for plan, request, _ in weeks]
    before = rounds_with_kept_sums(cast)
    assert sorted(before.values()) == [1, 2, 2]
    with database(cast) as connection:
        connection.execute(harm)
    again = cast.trustee()
    assert [again.unmask(a_call(request, plan)) for plan, request, _ in reversed(weeks)] == shares[::-1]
    assert rounds_with_kept_sums(cast) == before


def test_no_sum_lies_open_in_the_database_and_another_key_opens_none(cast: Cast) -> None:
    (plan, request, groups), *_ = three_weeks()
    unmasked(cast.trustee(), request, plan)
    words = masks_of(3, plan, groups[0])[: plan.cells]
    files = b"".join(file.read_bytes() for file in cast.root.glob("trustee-3.db*"))
    assert bytes(plan.round_id) in files
    assert not any(bytes(word) in files for word in words.astype("<u8").view("V8").tolist())
    assert words_to_bytes(words)[:64] not in files
    with closing(Connection(str(cast.root / "trustee-3.db"))) as connection:
        stranger = KeptSums(connection, MaskKey.generate(os.urandom), os.urandom)
        assert stranger.total(plan.round_id, (), lambda: [np.zeros(1, np.uint64)]).tolist() == [0]


def test_the_same_sum_is_sealed_differently_each_time() -> None:
    with closing(Connection(":memory:")) as connection:
        connection.executescript("CREATE TABLE endorsed (round_id BLOB PRIMARY KEY, series BLOB);" + kept_sums.SCHEMA)
        kept, seen = KeptSums(connection, MaskKey(bytes(32)), os.urandom), set[bytes]()
        for _ in range(3):
            kept.keep(RoundId(bytes(16)), [np.arange(5, dtype=np.uint64)])
            seen.update(sealed for (sealed,) in connection.execute("SELECT sealed FROM kept_sums"))
        assert len(seen) == 3
        assert kept.total(RoundId(bytes(16)), (), list).tolist() == [0, 1, 2, 3, 4]


def test_the_next_series_erases_what_is_kept_of_the_last_and_a_round_alone_keeps_nothing(cast: Cast) -> None:
    weeks, trustee = three_weeks(), cast.trustee()
    for plan, request, _ in weeks:
        unmasked(trustee, request, plan)
    alone = a_plan(9)
    unmasked(trustee, an_unmasking(alone), alone)
    assert set(rounds_with_kept_sums(cast)) == {bytes(plan.round_id) for plan, _, _ in weeks}
    window = HOURS_PER_WEEK * 3, HOURS_PER_WEEK * 4
    next_one = a_plan(4, window=window, horizon=4, cohort_minimum=2, noise_shares=1)
    next_one = replace(next_one, series=replace(next_one.series, name=RoundId(b"n" * 16)))
    unmasked(trustee, an_unmasking(next_one), next_one)
    assert set(rounds_with_kept_sums(cast)) == {bytes(next_one.round_id)}
