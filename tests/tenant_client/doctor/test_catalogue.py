"""A catalogue in a file: what was written is read, and nothing else is."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from crypto.codec import encode
from federation.base.catalogue_file import CatalogueError, read_catalogue, write_catalogue
from federation.protocol.bundle import Catalogue, CatalogueEntry
from tenant_client.doctor.workload.descriptor import own_sketch, sketch
from tests.support.factories import a_descriptor, keys

NAMES = ("llama", "bert", "ünï 火")
ENTRIES = tuple(CatalogueEntry(name, own_sketch(a_descriptor(name)).to_bytes()) for name in NAMES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "benchmarks.catalogue"


def refused(path: Path) -> str:
    with pytest.raises(CatalogueError) as failure:
        read_catalogue(path)
    assert failure.value.what.endswith(f": {path}")
    return failure.value.diagnostics()


def test_entries_come_back_in_order_of_their_names(path: Path) -> None:
    write_catalogue(path, ENTRIES)
    found = read_catalogue(path)
    assert [entry.name for entry in found] == ["bert", "llama", "ünï 火"]
    assert set(found) == set(ENTRIES)


def test_equal_catalogues_are_equal_bytes(path: Path) -> None:
    write_catalogue(path, ENTRIES)
    before = path.read_bytes()
    write_catalogue(path, ENTRIES[::-1])
    assert path.read_bytes() == before


def test_a_catalogue_may_be_empty(path: Path) -> None:
    write_catalogue(path, ())
    assert read_catalogue(path) == ()


def test_a_name_stands_once_and_in_its_order() -> None:
    one, other = (CatalogueEntry(name, sketch([b"x"]).to_bytes()) for name in ("a", "b"))
    assert Catalogue((one, other)).entries == (one, other)
    for entries in ((other, one), (one, one)):
        with pytest.raises(ValueError, match="sorted"):
            Catalogue(entries)


def test_what_is_no_catalogue_is_refused_with_a_hint(path: Path) -> None:
    assert "hint: write one with `pharoah-tenant workload catalogue`" in refused(path)
    path.write_bytes(keys().founding)
    refused(path)
    refused(path.parent)


def test_a_catalogue_that_is_cut_off_or_longer_is_refused(path: Path) -> None:
    write_catalogue(path, ENTRIES)
    whole = path.read_bytes()
    for data in (b"", whole[:-1], whole[: len(whole) // 2], whole + b"\0"):
        path.write_bytes(data)
        refused(path)


def test_a_name_that_was_damaged_out_of_order_is_refused(path: Path) -> None:
    write_catalogue(path, ENTRIES)
    path.write_bytes(path.read_bytes().replace(b"bert", b"zert"))
    assert "sorted" in refused(path)


@given(data=st.binary(max_size=60), headed=st.booleans())
def test_any_bytes_give_entries_or_a_catalogue_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, *, headed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.catalogue"
    whole = encode(Catalogue(()))
    path.write_bytes(whole[:-1] + data if headed else data)
    if path.read_bytes() == whole:
        assert read_catalogue(path) == ()
    else:
        refused(path)


def test_where_it_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="No such file") as failure:
        write_catalogue(tmp_path / "missing" / "x", ENTRIES)
    assert "hint: pass a writable file" in failure.value.diagnostics()
