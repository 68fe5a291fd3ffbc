"""Tokens of this machine alone: equal for equal rungs under one key, and a key that only its owner can read."""

import hashlib
import hmac
import os
import stat
from pathlib import Path

import pytest
from msgspec.structs import astuple

from crypto.ids import Token
from tenant_client.doctor.workload.descriptor import rungs
from tenant_client.doctor.workload.local_tokens import KEY_BYTES, local_key, local_ladder
from tests.support.changing import replace
from tests.support.factories import a_descriptor

RUNGS = rungs(a_descriptor(), ())
KEY, OTHER_KEY = bytes(range(KEY_BYTES)), bytes(KEY_BYTES)


def test_each_rung_is_an_hmac_of_its_bytes_in_the_order_of_the_ladder() -> None:
    def expected(rung: bytes) -> bytes:
        return hmac.new(KEY, b"pharoah/local-token/1\0" + rung, hashlib.sha256).digest()[: Token.length]

    ladder = local_ladder(RUNGS, KEY)
    assert bytes(ladder.family) == expected(RUNGS.family)
    assert bytes(ladder.archetype) == expected(RUNGS.archetype)
    assert bytes(ladder.subarchetype) == expected(RUNGS.subarchetype)
    assert bytes(ladder.exact) == expected(RUNGS.exact)


def test_another_key_gives_other_tokens_throughout() -> None:
    one, other = (set(astuple(local_ladder(RUNGS, key))) for key in (KEY, OTHER_KEY))
    assert len(one) == len(other) == 4
    assert not one & other


def test_only_the_rungs_that_differ_get_other_tokens() -> None:
    newer = local_ladder(rungs(replace(a_descriptor(), versions=(("torch", "9"),)), ()), KEY)
    one = local_ladder(RUNGS, KEY)
    assert (one.family, one.archetype) == (newer.family, newer.archetype)
    assert one.subarchetype != newer.subarchetype
    assert one.exact != newer.exact


def test_a_home_makes_its_key_once_and_keeps_it(tmp_path: Path) -> None:
    home = tmp_path / "homes" / "tenant"
    key = local_key(home)
    assert len(key) == KEY_BYTES
    assert local_key(home) == key
    assert local_key(tmp_path / "another") != key


def test_the_key_is_for_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        local_key(tmp_path / "tenant")
    finally:
        os.umask(before)
    modes = [
        stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tenant", tmp_path / "tenant" / "local-tokens.key")
    ]
    assert modes == [0o700, 0o600]


def test_a_key_of_another_length_is_neither_used_nor_replaced(tmp_path: Path) -> None:
    path = tmp_path / "local-tokens.key"
    for length in (0, KEY_BYTES - 1, KEY_BYTES + 1):
        path.write_bytes(bytes(length))
        with pytest.raises(OSError, match=f"has {length} bytes, a key has 32; remove it"):
            local_key(tmp_path)
        assert path.stat().st_size == length


def test_where_no_key_can_be_kept_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            local_key(home)
