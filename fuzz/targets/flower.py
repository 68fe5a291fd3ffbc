"""What comes over Flower's wire: the objects of a message."""

from collections.abc import Iterator
from contextlib import suppress

from crypto.errors import DecodeError
from federation.protocol.queries import BLOB, RECORD, unwrap, wrap
from federation.transport.flower_wire import UNREADABLE, message_object, pack, unpack
from fuzz.targets.target import require, target
from tenant_client.rounds.network.flower import ConfigRecord, Error, Message, RecordDict, message_pb2

LENGTH_BYTES = 3


class InOrder(dict[str, bytes]):
    """Objects under whatever id they are asked for: mutated bytes would never have the hash that another names."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def __missing__(self, object_id: str) -> bytes:
        length = LENGTH_BYTES + int.from_bytes(self._left[:LENGTH_BYTES], "big")
        self[object_id], self._left = self._left[LENGTH_BYTES:length], self._left[length:]
        return self[object_id]


def replies() -> Iterator[bytes]:
    """One with content, one with two records, one with an error."""
    for content in (RecordDict({RECORD: ConfigRecord({BLOB: wrap(b"answer")})}), RecordDict({"a": ConfigRecord()})):
        tree, header = message_pb2.ObjectTree(), message_pb2.Message()
        header.metadata.message_type = "query.bundle"
        below = pack(content, tree)
        parts = [message_object(header, tree.object_id), *reversed(below.values())]
        yield b"".join(len(part).to_bytes(LENGTH_BYTES, "big") + part for part in parts)
    header = message_pb2.Message()
    header.error.code, header.error.reason = 7, "no"
    yield len(message_object(header)).to_bytes(LENGTH_BYTES, "big") + message_object(header)


@target("flower", "any objects are a message of one record or an error, or UNREADABLE", replies)
def check_flower(data: bytes) -> None:
    """A message that was read is read to its end: the blob in it, or a DecodeError."""
    with suppress(*UNREADABLE):
        message = unpack("root", InOrder(data), (Message, RecordDict, ConfigRecord))
        require("a message", holds=isinstance(message, Message))
        require("content or an error", holds=message.has_content() != message.has_error())
        if message.has_error():
            require("an error", holds=isinstance(message.error, Error))
            return
        with suppress(DecodeError):
            require("bytes", holds=isinstance(unwrap(message.content)[1], bytes))
