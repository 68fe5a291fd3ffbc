"""Flower's grid at a SuperLink, without its wait: an answer has arrived once all of it was uploaded.

A node that is killed, or means harm, may announce an answer and upload it never, or only in part. Flower's own grid
waits for the rest, for minutes, and gives nobody's answer meanwhile. This one looks again with a later pull, ever less
often, since each look fetches what is there. An answer that is lost for good, or cannot be read, is an error of its
node's alone.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from provider_server.network.flower import (
    SYSTEM_MESSAGE_TYPE,
    ConfirmMessageReceivedRequest,
    Error,
    ErrorCode,
    HttpGrid,
    Message,
    MessageProto,
    Metadata,
    ObjectPullError,
    ObjectTree,
    ObjectUnavailableError,
    PullAppMessagesRequest,
    RuntimeHttpClient,
    inflate_object_from_contents,
    iterate_object_tree,
    make_message,
    make_pull_object_fn_protobuf,
    now,
)
from provider_server.network.grid_tenants import UNREADABLE

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0


@dataclass(slots=True)
class _Announced:
    """An answer that a node has begun to upload, and when to look for all of it."""

    header: MessageProto
    tree: ObjectTree
    look_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S

    def put_off(self) -> None:
        """Some of it is missing."""
        self.look_s, self.pause_s = time.monotonic() + self.pause_s, min(2 * self.pause_s, LONGEST_PAUSE_S)


class LinkGrid(HttpGrid):
    """The grid of one run, over a client of its maker's: Flower's own would send this process a signal."""

    def __init__(self, at: str, token: str, client: RuntimeHttpClient) -> None:
        super().__init__(at, insecure=True, token=token)
        self._client = client
        self._announced: dict[str, _Announced] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """The answers to these messages that are there; each once."""
        wanted = list(message_ids)
        unheard = [message_id for message_id in wanted if message_id not in self._announced]
        if unheard:
            told = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=unheard))
            for header, tree in zip(told.messages_list, told.message_object_trees, strict=True):
                self._announced[header.metadata.reply_to_message_id] = _Announced(header, tree)
        for message_id in wanted:
            announced = self._announced.get(message_id)
            if announced is None or time.monotonic() < announced.look_s:
                continue
            if (answer := self._uploaded(message_id, announced)) is not None:
                del self._announced[message_id]
                yield answer

    def _uploaded(self, message_id: str, announced: _Announced) -> Message | None:
        """The answer to a message, or an error if there will be none; None while some of it is missing."""
        answer_id = announced.header.metadata.message_id
        pull = make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, self.run.run_id)
        try:
            contents = {part.object_id: pull(part.object_id) for part in iterate_object_tree(announced.tree)}
            self._runtime_client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=self.node, run_id=self.run.run_id, message_object_id=answer_id)
            )
            answer = inflate_object_from_contents(answer_id, contents)
        except ObjectUnavailableError:
            announced.put_off()
            return None
        except (ObjectPullError, *UNREADABLE) as error:
            return self._lost(message_id, type(error).__name__)
        return answer if isinstance(answer, Message) else self._lost(message_id, type(answer).__name__)

    def _lost(self, message_id: str, why: str) -> Message:
        """As Flower's own grid tells of an answer that is there no longer."""
        own = self.node.node_id
        metadata = Metadata(self.run.run_id, "", own, own, message_id, "", now().timestamp(), 0, SYSTEM_MESSAGE_TYPE)
        return make_message(metadata=metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, why))
