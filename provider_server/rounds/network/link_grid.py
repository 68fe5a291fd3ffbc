"""The grid of one run at a SuperLink: puts questions, and takes answers without waiting for anybody's upload.

A node that is killed, or means harm, may announce an answer and upload it never, or only in part. Flower's own grid
waits for the rest, for minutes, and gives nobody's answer meanwhile. This one looks again with a later pull, ever less
often, since each look fetches what is there. An answer that is lost for good, or cannot be read, is an error of its
node's alone.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import httpx

from federation.transport.flower_wire import RUNTIME, UNREADABLE, call, message_object, object_ids, pack, seal, unpack
from provider_server.rounds.network.flower import (
    MESSAGE_UNAVAILABLE,
    SUPERLINK_NODE,
    ConfigRecord,
    Message,
    RecordDict,
    message_pb2,
    node_pb2,
    runtime_pb2,
)

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
NODE = node_pb2.Node(node_id=SUPERLINK_NODE)


class _Lost(Exception):
    """An answer that was announced is there no longer."""


@dataclass(slots=True)
class _Announced:
    """An answer that a node has begun to upload, and when to look for all of it."""

    tree: message_pb2.ObjectTree
    look_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S

    def put_off(self) -> None:
        """Some of it is missing."""
        self.look_s, self.pause_s = time.monotonic() + self.pause_s, min(2 * self.pause_s, LONGEST_PAUSE_S)


class LinkGrid:
    """`grid_tenants.Grid` over a client of the Runtime API that has a task's token."""

    def __init__(self, client: httpx.Client, run_id: int) -> None:
        self._client = client
        self._run_id = run_id
        self._announced: dict[str, _Announced] = {}

    def get_node_ids(self) -> Iterable[int]:
        """All nodes that are connected."""
        asked = runtime_pb2.GetNodesRequest()
        told = call(self._client, RUNTIME + "get-nodes", asked, runtime_pb2.GetNodesResponse)
        return [node.node_id for node in told.nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Puts these questions; their ids, in this order, empty for an unknown node. A content of many goes once."""
        asked = runtime_pb2.PushAppMessagesRequest()
        contents: dict[int, message_pb2.ObjectTree] = {}
        objects: dict[str, bytes] = {}
        questions = list(messages)
        for question in questions:
            if id(question.content) not in contents:
                tree = contents[id(question.content)] = message_pb2.ObjectTree()
                objects |= pack(question.content, tree)
            tree = asked.message_object_trees.add(children=[contents[id(question.content)]])
            sealed = seal(question, asked.messages_list.add(), tree)
            objects[tree.object_id] = sealed
        told = call(self._client, RUNTIME + "push-messages", asked, runtime_pb2.PushAppMessagesResponse)
        self._upload(objects, told.objects_to_push, told.session_id)
        return list(told.message_ids)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """The answers to these messages that are there; each once."""
        wanted = list(message_ids)
        unheard = [message_id for message_id in wanted if message_id not in self._announced]
        if unheard:
            asked = runtime_pb2.PullAppMessagesRequest(message_ids=unheard)
            told = call(self._client, RUNTIME + "pull-messages", asked, runtime_pb2.PullAppMessagesResponse)
            for header, tree in zip(told.messages_list, told.message_object_trees, strict=True):
                self._announced[header.metadata.reply_to_message_id] = _Announced(tree)
        for message_id in wanted:
            announced = self._announced.get(message_id)
            if announced is None or time.monotonic() < announced.look_s:
                continue
            if (answer := self._uploaded(message_id, announced)) is not None:
                del self._announced[message_id]
                yield answer

    def _uploaded(self, message_id: str, announced: _Announced) -> Message | None:
        """The answer to a message, or an error if there will be none; None while some of it is missing."""
        try:
            objects = {object_id: self._download(object_id) for object_id in object_ids(announced.tree)}
            if not all(objects.values()):
                announced.put_off()
                return None
            self._confirm(announced.tree.object_id)
            answer: Message = unpack(announced.tree.object_id, objects, (Message, RecordDict, ConfigRecord))
        except (_Lost, *UNREADABLE) as error:
            return _lost(message_id, type(error).__name__)
        return answer

    def _upload(self, objects: dict[str, bytes], missing: Iterable[str], session_id: str) -> None:
        for object_id in missing:
            asked = message_pb2.PushObjectRequest(
                node=NODE,
                run_id=self._run_id,
                object_id=object_id,
                object_content=objects[object_id],
                session_id=session_id,
            )
            if not call(self._client, RUNTIME + "push-object", asked, message_pb2.PushObjectResponse).stored:
                logger.warning("the SuperLink does not keep a part of a question: whoever it is for will be late")

    def _download(self, object_id: str) -> bytes:
        """An object; empty while it is not there yet."""
        asked = message_pb2.PullObjectRequest(node=NODE, run_id=self._run_id, object_id=object_id)
        told = call(self._client, RUNTIME + "pull-object", asked, message_pb2.PullObjectResponse)
        if not told.object_found:
            raise _Lost
        return told.object_content if told.object_available else b""

    def _confirm(self, object_id: str) -> None:
        asked = message_pb2.ConfirmMessageReceivedRequest(node=NODE, run_id=self._run_id, message_object_id=object_id)
        call(self._client, RUNTIME + "confirm-message-received", asked, message_pb2.ConfirmMessageReceivedResponse)


def _lost(message_id: str, why: str) -> Message:
    """As Flower's own grid tells of an answer that is there no longer."""
    header = message_pb2.Message()
    header.metadata.reply_to_message_id, header.metadata.message_type = message_id, "query"
    header.error.code, header.error.reason = MESSAGE_UNAVAILABLE, why
    return Message.inflate(message_object(header))
