"""What earlier releases wrote is read, and what they refused is refused, by the vectors of each that is still read.

A message that changes its shape fails here until it says what its shape was before (`crypto.codec`).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from crypto.codec import Message, decode, digest, encode, first_field
from crypto.errors import DecodeError
from crypto.signing import SigningKey, name_of, open_signed
from federation.protocol.versions import OLDEST, PROTOCOL
from tests.support.specimens import HASHED_AS_WRITTEN, MESSAGES
from tests.vectors.messages import FILE, is_earlier

FOLDER = Path(__file__).parents[1] / "vectors"
KINDS: dict[str, type[Any]] = {kind.LABEL: kind for kind in MESSAGES}
NOW: dict[str, type[Any]] = {label.rpartition("/")[0]: kind for label, kind in KINDS.items() if not is_earlier(kind)}
FILES = {path.parent.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*/messages.json"))}
VECTORS = [
    pytest.param(name, file["protocol"], label, vector, id=f"{name} {label}")
    for name, file in FILES.items()
    for label, vector in file["messages"].items()
]


def test_each_version_that_is_read_has_vectors() -> None:
    assert {file["protocol"] for file in FILES.values()} >= set(range(OLDEST, PROTOCOL + 1)), (
        "make the vectors of a new protocol with tests/vectors/generate.py, and keep those of the one before"
    )
    assert {label for label, kind in KINDS.items() if not is_earlier(kind)} == set(
        json.loads((FOLDER / FILE).read_text())["messages"]
    )


def kind_of(release: str, label: str) -> type[Any]:
    kind = NOW.get(label.rpartition("/")[0])
    assert kind is not None, f"release {release} sends {label}, which nothing reads any more: keep it until none does"
    return kind


@pytest.mark.parametrize(("release", "protocol", "label", "vector"), VECTORS)
def test_what_a_release_writes_is_read(release: str, protocol: int, label: str, vector: dict[str, Any]) -> None:
    kind, data = kind_of(release, label), bytes.fromhex(vector["good"])
    changed = (
        f"release {release} writes {label} in another shape than {kind.__name__} has now. Give {kind.__name__} a new"
        f" label, keep its shape before as a struct with the label {label!r}, and set `SINCE, EARLIER` to the protocol"
        " that comes next and to that struct (crypto/codec.py). Only before that release is out, remove its folder of"
        " vectors and run tests/vectors/generate.py"
    )
    try:
        message = decode(kind, data)
    except DecodeError as error:
        pytest.fail(f"{changed}: {error.what}")
    assert encode(message, protocol) == data, changed
    assert first_field(kind, data) == getattr(message, kind.__struct_fields__[0])
    assert decode(kind, encode(message)) == message


@pytest.mark.parametrize(("release", "protocol", "label", "vector"), VECTORS)
def test_what_a_release_refuses_is_refused(release: str, protocol: int, label: str, vector: dict[str, Any]) -> None:
    kind, good = kind_of(release, label), bytes.fromhex(vector["good"])
    for comment, at, cut, put in vector["spoilt"]:
        bad = good[:at] + bytes.fromhex(put) + good[at + cut :]
        if comment == "a newer label" and label != kind.LABEL:
            continue  # that is ours now
        with pytest.raises(DecodeError) as refused:
            decode(kind, bad)
        assert ("from newer software" in refused.value.what) == (comment == "a newer label"), comment


@pytest.mark.parametrize("family", HASHED_AS_WRITTEN)
def test_what_is_hashed_as_it_is_written_is_never_lifted(family: str) -> None:
    why = HASHED_AS_WRITTEN[family]
    assert NOW[family].EARLIER is None, f"{why}: make it another message, with a name of its own"


# ---- a message that changed ------------------------------------------------------------------------------------------


class Note1(Message, frozen=True, tag="test/note/1"):
    """As release 1 said it."""

    sender: int
    text: str


class Note2(Message, frozen=True, tag="test/note/2"):
    """As release 2 says it."""

    SINCE, EARLIER = 2, Note1
    sender: int
    text: str
    loud: bool = False

    def __post_init__(self) -> None:
        if self.text == "?":
            raise ValueError("a note says something")


class Note(Message, frozen=True, tag="test/note/3"):
    """As it is said now, under another name."""

    SINCE, EARLIER = 3, Note2
    sender: int
    words: tuple[str, ...]
    loud: bool = False

    @classmethod
    def lifted(cls, earlier: Any) -> "Note":
        """In words."""
        return cls(earlier.sender, tuple(earlier.text.split()), earlier.loud)

    def lowered(self) -> Note2:
        """In one text."""
        return Note2(self.sender, " ".join(self.words), self.loud)


def test_a_changed_message_is_read_in_every_shape_and_written_in_the_one_that_is_asked_for() -> None:
    note = Note(7, ("well", "met"))
    assert decode(Note, encode(Note1(7, "well met"))) == note
    assert decode(Note, encode(Note2(7, "well met"))) == note
    assert [encode(note, protocol) for protocol in (1, 2, 3, 4)] == [
        encode(Note1(7, "well met")),
        encode(Note2(7, "well met")),
        encode(note),
        encode(note),
    ]
    assert first_field(Note, encode(Note1(7, "well met"))) == 7
    with pytest.raises(DecodeError, match="a note says something"):
        decode(Note, encode(Note1(7, "?")))
    for old in (encode(Note1(7, "well met")), encode(Note2(7, "well met"))):
        for bad in (old[:-1], old + b"\0", b"\xdc\0" + bytes([old[0] & 15]) + old[1:]):
            with pytest.raises(DecodeError, match="not a valid Note"):
                decode(Note, bad)
    with pytest.raises(DecodeError, match="test/note/4, from newer software"):
        decode(Note, encode(note).replace(b"note/3", b"note/4"))


def test_a_signature_and_a_name_are_of_the_bytes_that_came() -> None:
    key = SigningKey(bytes(32))
    signed = key.sign(Note(7, ("well", "met")), 1)
    assert open_signed(Note, signed, key.public) == Note(7, ("well", "met"))
    assert name_of(signed) == digest(encode(Note1(7, "well met")))
