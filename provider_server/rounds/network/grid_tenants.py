"""The tenants over a Flower grid: put a question to all who are there, take the answers as they come.

For every `ask` each connected node gets a message, at once. A node that goes meanwhile is waited for some seconds, and
whoever comes, or comes back, while answers are awaited is asked then: so a program that is killed and started again
answers in the same round. Each node gives at most one answer, whatever is delivered twice, late or out of order; and
each node that gave none is named in `silences` with what is known of the cause. Of what a node says about its own
failure only the name of an error class is taken over, and of a refused plan the rule, if it reads like that.

Each question says what all are known to read (`heard`), and each answer what its node speaks, which is noted there.

Not promised: that a node id is a tenant; the transport says which node answered, and who signed an answer is for its
reader to check.

    tenants = GridTenants(grid, deadline_s=600.0)
    for answer in tenants.ask(Query.CONTRIBUTION, plan):
        ...
    late = [silence for silence in tenants.silences if silence.why is Why.LATE]
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, NewType, Protocol

import httpx

from crypto.errors import DecodeError, VersionsApart
from federation.protocol.queries import BLOB, RECORD, Fault, Query, unwrap, wrap
from federation.protocol.refusals import Refused
from federation.protocol.versions import Heard, Hello
from federation.transport.flower_wire import UNREADABLE

if TYPE_CHECKING:  # Flower takes half a second to import, and the federated week needs only the protocol
    from provider_server.rounds.network.flower import Error, Message

logger = logging.getLogger(__name__)

NodeId = NewType("NodeId", int)
MessageId = NewType("MessageId", str)

PULL_AT_ONCE = 16  # answers in memory at a time, and lost at a time
RETURN_S = 10.0  # how long a node that has gone is waited for: a program starts again in less
LOOK_S = 1.0  # from one look at who is connected to the next
NODE_UNAVAILABLE = 5
DRAIN_S = 60.0  # how long after the deadline an answer that came in time stays fetchable
FLOWER_ERRORS = {
    0: "UNKNOWN",
    1: "LOAD_CLIENT_APP_EXCEPTION",
    2: "CLIENT_APP_RAISED_EXCEPTION",
    3: "MESSAGE_UNAVAILABLE",
    4: "REPLY_MESSAGE_UNAVAILABLE",
    NODE_UNAVAILABLE: "NODE_UNAVAILABLE",
    6: "MOD_FAILED_PRECONDITION",
    7: "INVALID_FAB",
    8: "CLIENT_APP_CRASHED",
}


class Grid(Protocol):
    """What is used of a Flower grid."""

    def get_node_ids(self) -> Iterable[int]:
        """All nodes that are connected."""

    def push_messages(self, messages: "Iterable[Message]") -> Iterable[str]:
        """Sends questions; their ids, in this order, empty for one that is not sent."""

    def pull_messages(self, message_ids: Iterable[str]) -> "Iterable[Message]":
        """The answers to these questions that are there."""


class Why(StrEnum):
    """Why a node contributed no answer."""

    UNSENT = "unsent"
    LATE = "late"
    FAILED = "failed"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Silence:
    """One node without an answer to one question; `detail` is the class of error that it or Flower reported.

    `refused` is what the node itself says of its refusal.
    """

    verb: Query
    node_id: NodeId
    why: Why
    detail: str = ""
    refused: Refused | None = field(default=None, compare=False)


@dataclass(slots=True)
class _Asked:
    """One question, to be answered until `end_s` of the monotonic clock. A node may have been asked more than once."""

    verb: Query
    payload: bytes
    end_s: float
    known: set[NodeId] = field(default_factory=set)  # who need not be asked (again)
    waiting: dict[MessageId, NodeId] = field(default_factory=dict)
    gone: dict[NodeId, float] = field(default_factory=dict)  # who is not connected now, since when

    def lose(self, node_id: NodeId) -> None:
        """The node is not connected any more."""
        self.gone.setdefault(node_id, time.monotonic())
        self.known.discard(node_id)

    def close(self, node_id: NodeId) -> None:
        """No other answer of the node is waited for."""
        self.known.add(node_id)
        self.gone.pop(node_id, None)
        self.waiting = {message_id: other for message_id, other in self.waiting.items() if other != node_id}


class GridTenants:
    """`provider_server.rounds.week.Tenants` over a Flower grid; needs a Flower task's identity."""

    def __init__(self, grid: Grid, deadline_s: float, poll_s: float = 0.1, heard: Heard | None = None) -> None:
        self._grid = grid
        self._heard = heard or Heard()
        self._deadline_s = deadline_s
        self._poll_s = poll_s
        self._silences: list[Silence] = []

    @property
    def silences(self) -> tuple[Silence, ...]:
        """Everything left out so far, in the order in which it became known; complete once the answers are consumed."""
        return tuple(self._silences)

    def ask(self, query: Query, payload: bytes) -> Iterator[bytes]:
        """Sends before it returns, and the deadline runs from then; what was there in time is yielded even after it."""
        asked = _Asked(query, payload, time.monotonic() + self._deadline_s)
        self._send(asked)
        return self._answers(asked)

    def _send(self, asked: _Asked) -> None:
        """Puts the question to all who are connected and have not been asked, or have gone since."""
        connected = [NodeId(node_id) for node_id in sorted(self._grid.get_node_ids())]
        for node_id in {*asked.waiting.values()} - {*connected}:
            asked.lose(node_id)
        node_ids = [node_id for node_id in connected if node_id not in asked.known]
        if not node_ids:
            return
        left_s = max(0.0, asked.end_s - time.monotonic())
        blob = wrap(asked.payload, Hello(self._heard.least))
        questions = _questions(asked.verb, blob, node_ids, ttl_s=left_s + DRAIN_S)
        sent = [MessageId(message_id or "") for message_id in self._grid.push_messages(questions)]
        sent = sent if len(sent) == len(node_ids) else [MessageId("")] * len(node_ids)
        for message_id, node_id in zip(sent, node_ids, strict=True):
            asked.known.add(node_id)
            asked.gone.pop(node_id, None)
            if message_id:
                asked.waiting[message_id] = node_id
            else:
                self._leave_out(Silence(asked.verb, node_id, Why.UNSENT))

    def _answers(self, asked: _Asked) -> Iterator[bytes]:
        look_s = time.monotonic() + LOOK_S
        while asked.waiting or asked.gone:
            is_idle = True
            for reply in self._arrived(list(asked.waiting)):
                if (node_id := asked.waiting.pop(MessageId(reply.metadata.reply_to_message_id), None)) is not None:
                    is_idle = False
                    yield from self._opened(asked, node_id, reply)
            now_s = time.monotonic()
            left_s = asked.end_s - now_s
            if is_idle and left_s <= 0:
                break
            self._give_up(asked, until_s=now_s - RETURN_S)
            if look_s <= now_s < asked.end_s:
                look_s = now_s + LOOK_S
                self._send(asked)
            if is_idle:
                time.sleep(min(self._poll_s, left_s))
        self._give_up(asked, until_s=math.inf)
        for node_id in dict.fromkeys(asked.waiting.values()):
            self._leave_out(Silence(asked.verb, node_id, Why.LATE))

    def _give_up(self, asked: _Asked, *, until_s: float) -> None:
        """Waits no longer for those who have gone before."""
        for node_id in [node_id for node_id, since_s in asked.gone.items() if since_s <= until_s]:
            asked.close(node_id)
            self._leave_out(Silence(asked.verb, node_id, Why.FAILED, FLOWER_ERRORS[NODE_UNAVAILABLE]))

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

    def _opened(self, asked: _Asked, node_id: NodeId, reply: "Message") -> Iterator[bytes]:
        if reply.has_error() and reply.error.code == NODE_UNAVAILABLE:
            asked.lose(node_id)
            return
        asked.close(node_id)
        if reply.has_error():
            refused = _refused(reply.error)
            detail = str(refused) if refused else _flower_error(reply.error)
            self._leave_out(Silence(asked.verb, node_id, Why.FAILED, detail, refused))
            return
        try:
            hello, blob = unwrap(reply.content)
            self._heard.note(node_id, hello.spoken_with("the tenant", "this provider"))
        except (DecodeError, VersionsApart) as error:
            self._leave_out(Silence(asked.verb, node_id, Why.MALFORMED, type(error).__name__))
            return
        yield blob

    def _leave_out(self, silence: Silence) -> None:
        self._silences.append(silence)
        logger.warning("node %d has no answer to %s: %s %s", silence.node_id, silence.verb, silence.why, silence.detail)


def _questions(verb: Query, blob: bytes, node_ids: list[NodeId], *, ttl_s: float) -> list["Message"]:
    from provider_server.rounds.network.flower import ConfigRecord, Message, RecordDict

    content = RecordDict({RECORD: ConfigRecord({BLOB: blob})})  # one object for all: Flower stores it once
    return [Message(content, node_id, f"query.{verb}", ttl=ttl_s, group_id=verb.value) for node_id in node_ids]


def _refused(error: "Error") -> Refused | None:
    """What a tenant says of its own error; any other text could carry anything into a log."""
    return Refused.read(error.reason or "") if error.code >= Fault.OTHER else None


def _flower_error(error: "Error") -> str:
    return "unnamed" if error.code >= Fault.OTHER else FLOWER_ERRORS.get(error.code, f"code {error.code}")
