"""Flower's wire: protobuf over HTTP, objects named by their hash, and a signed time that tells which node speaks.

Both sides speak the wire themselves. Flower keeps it from version to version, so that old nodes work with new
SuperLinks; its Python classes move with every release. Nothing of `flwr` is imported here: the generated messages and
the record classes come as arguments from the one file of each side.

- A call is a POST of one message, and its answer another message. Redirects are not followed.
- An object is `<class> <ids of its children> <length>`, a zero byte and a body; its id is the SHA-256 of all of that.
- A question or an answer is one Message with one RecordDict with one ConfigRecord, or a Message with an error. `unpack`
  refuses any other shape, so what it does is linear in what was sent.
- A node signs the time, in the ISO format and with a zone, with its EC P-384 key: ECDSA over SHA-256.

Not promised: that a call is fresh. The signature covers the time and nothing else; TLS protects the rest.

    with httpx.Client(base_url=f"https://{address}", auth=SignedTime(key)) as client:
        node_id = call(client, FLEET + "activate-node", ActivateNodeRequest(...), ActivateNodeResponse).node_id
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import httpx
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from google.protobuf.message import DecodeError as ProtobufDecodeError, Message as ProtobufMessage

FLEET, CONTROL, RUNTIME = "/v1/fleet/", "/v1/control/", "/v1/runtime/"
PROTOBUF = {"content-type": "application/protobuf", "accept": "application/protobuf"}
PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIME_HEADER = "flwr-public-key", "flwr-signature", "flwr-timestamp"
TASK_TOKEN_HEADER = "flwr-task-token"  # noqa: S105  # a header's name
AHEAD_S, BEHIND_S = 5, 305  # how far a signed time may be from the SuperLink's own
# What bytes of others may raise; the last where JSON within JSON goes deep.
UNREADABLE = (ProtobufDecodeError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
METADATA = (
    *("run_id", "src_node_id", "dst_node_id", "src_task_id", "dst_task_id"),
    *("reply_to_message_id", "group_id", "message_type", "created_at", "ttl"),
)

M = TypeVar("M", bound=ProtobufMessage)


def call(client: httpx.Client, path: str, request: ProtobufMessage, answer: type[M]) -> M:
    """What the SuperLink answers; httpx.HTTPError where it gives none, or ProtobufDecodeError for one that is none."""
    response = client.post(path, content=request.SerializeToString(deterministic=True), headers=PROTOBUF)
    response.raise_for_status()
    return answer.FromString(response.content)


# ---- who speaks


class SignedTime(httpx.Auth):
    """Signs the time of each request with a node's key."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self._public_pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @staticmethod
    def now() -> datetime:
        """By this machine's clock."""
        return datetime.now(UTC)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """The request with its three headers."""
        stamp = self.now().isoformat()
        request.headers[PUBLIC_KEY_HEADER] = b64encode(self._public_pem).decode()
        request.headers[TIME_HEADER] = stamp
        request.headers[SIGNATURE_HEADER] = b64encode(self._key.sign(stamp.encode(), ec.ECDSA(SHA256()))).decode()
        yield request


def claimed_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The public key (PEM) in these headers, whoever sent them; empty without one."""
    return _decoded(headers, PUBLIC_KEY_HEADER)


def is_signed(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the key in these headers signed a time that is near enough. The same rule as Flower's."""
    stamp = headers.get(TIME_HEADER.encode(), b"")
    try:
        age_s = (datetime.now(UTC) - datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
        key = load_pem_public_key(claimed_key(headers))
    except (ValueError, TypeError):  # no key, no time, or one without a zone
        return False
    if not -AHEAD_S < age_s < BEHIND_S or not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(_decoded(headers, SIGNATURE_HEADER), stamp, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def _decoded(headers: Mapping[bytes, bytes], name: str) -> bytes:
    try:
        return b64decode(headers.get(name.encode(), b""), validate=True)
    except ValueError:
        return b""


# ---- objects


class Record(Protocol):
    """What is used of Flower's records."""

    @property
    def children(self) -> Mapping[str, Any] | None:
        """The records below this one."""

    def deflate(self) -> bytes:
        """The object of this record."""


def pack(record: Record, tree: Any) -> dict[str, bytes]:
    """The objects of a record by their ids, its own last; fills `tree`, an empty ObjectTree, with the ids."""
    objects: dict[str, bytes] = {}
    for child in (record.children or {}).values():
        objects |= pack(child, tree.children.add())
    deflated = record.deflate()
    tree.object_id = hashlib.sha256(deflated).hexdigest()
    return objects | {tree.object_id: deflated}


def seal(message: Any, header: Any, tree: Any, *, reply_to: str = "") -> bytes:
    """The object of a Flower message whose content is packed below `tree`; names both `tree` and `header` by its id.

    `header` is an empty protobuf Message, and is left as Flower announces one: without the content. `reply_to` is the
    id of the question.
    """
    known = {name: getattr(message.metadata, name) for name in METADATA}
    known |= {"reply_to_message_id": reply_to}
    for name, value in known.items():
        if value is not None:
            setattr(header.metadata, name, value)
    if message.has_error():
        header.error.code, header.error.reason = message.error.code, message.error.reason or ""
    sealed = message_object(header, ",".join(child.object_id for child in tree.children))
    tree.object_id = header.metadata.message_id = hashlib.sha256(sealed).hexdigest()
    if not message.has_error():
        header.content.SetInParent()
    return sealed


def message_object(header: Any, content_id: str = "") -> bytes:
    """The object of a message with this protobuf header, and content of that id."""
    body: bytes = header.SerializeToString(deterministic=True)
    return f"Message {content_id} {len(body)}".encode() + b"\0" + body


def object_ids(tree: Any) -> Iterator[str]:
    """All ids of an ObjectTree, children first."""
    for child in tree.children:
        yield from object_ids(child)
    yield tree.object_id


def unpack(object_id: str, objects: Mapping[str, bytes], classes: Sequence[Any]) -> Any:
    """The object of that id, of the first class; below it is at most one of the next, and so on. Else UNREADABLE."""
    kind, children, _ = objects[object_id].partition(b"\0")[0].decode("ascii").split(" ")
    if kind != classes[0].__name__ or "," in children:
        raise ValueError(f"not one {classes[0].__name__}")
    below = {children: unpack(children, objects, classes[1:])} if children else {}
    return classes[0].inflate(objects[object_id], below)
