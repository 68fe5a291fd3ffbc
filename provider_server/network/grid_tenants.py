"""The tenants over a Flower grid: put a question to all who are there, take the answers as they come.

For every `ask` each connected node gets one message, at once; each node
gives at most one answer, whatever is delivered twice, late or out of order; and each node that gave none is named in
`silences` with what is known of the cause. Of what a node says about its own failure only the name of an error class is
taken over, and only if it reads like one.

Not promised: that a node id is a tenant; the transport says which node answered, and who signed an answer is for its
reader to check. Nor that hostile nodes cost nothing: an answer that Flower cannot inflate takes those of the same pull
with it (tenants repeat the same bytes when asked again), and one that is announced and never uploaded holds its pull up
until Flower gives it up, about three minutes.

    tenants = GridTenants(grid, deadline_s=600.0)
    for answer in tenants.ask(Query.CONTRIBUTION, plan):
        ...
    late = [silence for silence in tenants.silences if silence.why is Why.LATE]
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, NewType

import httpx
from google.protobuf.message import DecodeError as ProtobufDecodeError

from crypto.errors import DecodeError
from federation.protocol.queries import BLOB, RECORD, Fault, Query, unwrap, wrap

if TYPE_CHECKING:  # Flower takes half a second to import, and the federated week needs only the protocol
    from provider_server.network.flower import Error, Grid, Message

logger = logging.getLogger(__name__)

NodeId = NewType("NodeId", int)
MessageId = NewType("MessageId", str)

PULL_AT_ONCE = 16  # answers in memory at a time, and lost at a time
DRAIN_S = 60.0  # how long after the deadline an answer that came in time stays fetchable
LONGEST_NAME = 64
UNREADABLE = (ProtobufDecodeError, ValueError, TypeError, LookupError, AttributeError, RecursionError)  # by inflating
FLOWER_ERRORS = {
    0: "UNKNOWN",
    1: "LOAD_CLIENT_APP_EXCEPTION",
    2: "CLIENT_APP_RAISED_EXCEPTION",
    3: "MESSAGE_UNAVAILABLE",
    4: "REPLY_MESSAGE_UNAVAILABLE",
    5: "NODE_UNAVAILABLE",
    6: "MOD_FAILED_PRECONDITION",
    7: "INVALID_FAB",
    8: "CLIENT_APP_CRASHED",
}


class Why(StrEnum):
    """Why a node contributed no answer."""

    UNSENT = "unsent"
    LATE = "late"
    FAILED = "failed"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Silence:
    """One node without an answer to one question; `detail` is the class of error that it or Flower reported."""

    verb: Query
    node_id: NodeId
    why: Why
    detail: str = ""


class GridTenants:
    """`provider_server.week.Tenants` over a Flower grid; needs a Flower task's identity, as every ServerApp has it."""

    def __init__(self, grid: "Grid", deadline_s: float, poll_s: float = 0.1) -> None:
        self._grid = grid
        self._deadline_s = deadline_s
        self._poll_s = poll_s
        self._silences: list[Silence] = []

    @property
    def silences(self) -> tuple[Silence, ...]:
        """Everything left out so far, in the order in which it became known; complete once the answers are consumed."""
        return tuple(self._silences)

    def ask(self, query: Query, payload: bytes) -> Iterator[bytes]:
        """Sends before it returns, and the deadline runs from then; what was there in time is yielded even after it."""
        end_s = time.monotonic() + self._deadline_s
        return self._answers(query, self._send(query, payload), end_s)

    def _send(self, verb: Query, payload: bytes) -> dict[MessageId, NodeId]:
        node_ids = [NodeId(node_id) for node_id in sorted(self._grid.get_node_ids())]
        questions = _questions(verb, payload, node_ids, ttl_s=self._deadline_s + DRAIN_S)
        sent = [MessageId(message_id or "") for message_id in self._grid.push_messages(questions)]
        sent = sent if len(sent) == len(node_ids) else [MessageId("")] * len(node_ids)
        for message_id, node_id in zip(sent, node_ids, strict=True):
            if not message_id:
                self._leave_out(Silence(verb, node_id, Why.UNSENT))
        return {message_id: node_id for message_id, node_id in zip(sent, node_ids, strict=True) if message_id}

    def _answers(self, verb: Query, waiting: dict[MessageId, NodeId], end_s: float) -> Iterator[bytes]:
        while waiting:
            before = len(waiting)
            for reply in self._arrived(list(waiting)):
                if (node_id := waiting.pop(MessageId(reply.metadata.reply_to_message_id), None)) is not None:
                    yield from self._opened(verb, node_id, reply)
            if len(waiting) < before:
                continue
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(self._poll_s, left_s))
        for node_id in waiting.values():
            self._leave_out(Silence(verb, node_id, Why.LATE))

    def _arrived(self, message_ids: list[MessageId]) -> Iterator["Message"]:
        todo = iter(message_ids)
        while some := list(islice(todo, PULL_AT_ONCE)):
            yield from self._pull(some)

    def _pull(self, message_ids: list[MessageId]) -> list["Message"]:
        try:
            return list(self._grid.pull_messages(message_ids))
        except UNREADABLE as error:  # the SuperLink has dropped the whole pull by now
            logger.warning("answers that Flower cannot read: %s", type(error).__name__)
        except httpx.HTTPStatusError as error:
            if not error.response.is_server_error:
                raise
            logger.warning("answers that Flower cannot give now: %s", error.response.status_code)
        return []

    def _opened(self, verb: Query, node_id: NodeId, reply: "Message") -> Iterator[bytes]:
        if reply.has_error():
            self._leave_out(Silence(verb, node_id, Why.FAILED, _name(reply.error)))
            return
        try:
            blob = unwrap(reply.content)
        except DecodeError as error:
            self._leave_out(Silence(verb, node_id, Why.MALFORMED, type(error).__name__))
            return
        yield blob

    def _leave_out(self, silence: Silence) -> None:
        self._silences.append(silence)
        logger.warning("node %d has no answer to %s: %s %s", silence.node_id, silence.verb, silence.why, silence.detail)


def _questions(verb: Query, payload: bytes, node_ids: list[NodeId], *, ttl_s: float) -> list["Message"]:
    from provider_server.network.flower import ConfigRecord, Message, RecordDict

    content = RecordDict({RECORD: ConfigRecord({BLOB: wrap(payload)})})  # one object for all: Flower stores it once
    return [Message(content, node_id, f"query.{verb}", ttl=ttl_s, group_id=verb.value) for node_id in node_ids]


def _name(error: "Error") -> str:
    """The class name inside an error reply; any other text could carry anything into a log."""
    if error.code < Fault.OTHER:
        return FLOWER_ERRORS.get(error.code, f"code {error.code}")
    reason = error.reason or ""
    named = reason.isascii() and reason.isidentifier() and len(reason) <= LONGEST_NAME
    return reason if named else "unnamed"
