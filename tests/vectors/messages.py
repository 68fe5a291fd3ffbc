"""What a release writes of every kind of message, and what it refuses: vectors that later releases are held to.

`generate.py` writes those of the newest protocol, into a folder of the release that brings it, and only where there is
none: they are never written again. A folder goes with the shapes that it holds (`federation.protocol.versions`).
"""

import json
from typing import Any

import msgpack

from crypto.codec import Message, encode
from federation.protocol.versions import PROTOCOL, RELEASES
from tests.support.specimens import MESSAGES, specimen, tree_of

FILE = f"{RELEASES[PROTOCOL]}/messages.json"
Spoilt = tuple[str, int, int, str]


def messages() -> str:
    """A message of each kind, with ways to spoil it, each on a line of a JSON file."""
    kinds: list[Any] = sorted((kind for kind in MESSAGES if not is_earlier(kind)), key=lambda kind: str(kind.LABEL))
    about = "a message of each kind in hexadecimal; to spoil it, replace so many bytes at a position by others"
    vectors = ({"good": encode(specimen(kind)).hex(), "spoilt": _spoilt(kind)} for kind in kinds)
    rows = (f'"{kind.LABEL}": {json.dumps(vector)}' for kind, vector in zip(kinds, vectors, strict=True))
    head = json.dumps({"about": about, "protocol": PROTOCOL})[:-1]
    return head + ', "messages": {\n' + ",\n".join(rows) + "\n}}\n"


def is_earlier(kind: type[Message]) -> bool:
    """Whether it is the shape of another before it changed."""
    return any(other.EARLIER is kind for other in MESSAGES)


def _spoilt(kind: Any) -> list[Spoilt]:
    good = encode(specimen(kind))
    _, first, *_ = tree_of(specimen(kind))
    fields, head = len(tree_of(specimen(kind))), 1 if good[0] < 0xA0 else 3
    number, at = kind.LABEL.rpartition("/")[2], head + len(msgpack.packb(kind.LABEL))
    return [
        ("a byte less", len(good) - 1, 1, ""),
        ("a byte more", len(good), 0, "00"),
        ("a field is announced that is not there", 0, head, msgpack.packb([None] * (fields + 1))[:head].hex()),
        ("the last field is not announced", 0, head, msgpack.packb([None] * (fields - 1))[:head].hex()),
        ("a longer header than needed", 0, head, f"dd{fields:08x}"),
        ("a label of another family", head + 2, 1, b"q".hex()),
        ("a newer label", at - len(number), len(number), str(int(number) + 1).encode().hex()),
        ("the first field is a map", at, len(msgpack.packb(first)), "80"),
    ]
