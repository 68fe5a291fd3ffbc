"""A Flower grid inside one process: the same ServerApp and ClientApps, without sockets, processes or Ray.

A node handles a message when its reply is pulled, one after the other, so a thousand tenants need the memory of one
pull. Content is copied on the way out and on the way back: no app can change what another one holds. Each node keeps
its own `Context`, as it would in a run. What a ClientApp raises stops the simulation, as `ClientAppFailed`.

Two kinds of faults can be injected: nodes in `silent` are connected and never answer; `deliver` transforms the replies
of one pull, so it can repeat, reorder, delay or damage them.

Not promised: parallel speed (handlers are Python and share its lock), time to live, or two grids at once in two
threads: Flower keeps the identity of a task once per process.

    LocalGrid({1001: client_app(answer)}).start(server_app(run, wanted=1))
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from itertools import count

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run

from provider_server.rounds.network.flower_app import task_identity

RUN_ID = 1
SERVER_NODE_ID = 1
TASK_ID = 1

Deliver = Callable[[list[Message]], Iterable[Message]]


class ClientAppFailed(RuntimeError):
    """A ClientApp raised, which one of Pharoah never does."""


def local_task() -> AbstractContextManager[None]:
    """The identity of a task in this process, while one of these grids is used outside of `start`."""
    return task_identity(RUN_ID, SERVER_NODE_ID, TASK_ID)


class LocalGrid(Grid):
    """Calls the ClientApp of each node id directly."""

    def __init__(self, apps: Mapping[int, ClientApp], *, silent: Collection[int] = (), deliver: Deliver = list) -> None:
        self._apps = dict(sorted(apps.items()))
        self._silent = frozenset(silent)
        self._deliver = deliver
        self._contexts = {node_id: _context(node_id) for node_id in self._apps}
        self._pushed: dict[str, Message] = {}
        self._numbers = count(1)
        self._run = Run.create_empty(RUN_ID)

    def start(self, app: ServerApp) -> None:
        """Runs a whole ServerApp against these nodes."""
        with local_task():
            app(self, _context(SERVER_NODE_ID))

    def set_run(self, run: Run) -> None:
        """Flower announces the run that this grid serves."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that this grid serves: an empty one, if none was announced."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Flower's old way to make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes in ascending order, silent ones too."""
        return list(self._apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Takes copies; the ids by which to pull come in the order of the messages."""
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages; a message is handled when it is first pulled, and never again."""
        ready = [message_id for message_id in message_ids if self._answers(message_id)]
        return list(self._deliver([self._reply(self._pushed.pop(message_id)) for message_id in ready]))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """All replies there will ever be, at once."""
        del timeout  # nothing here takes time
        return self.pull_messages(self.push_messages(messages))

    def _push(self, message: Message) -> str:
        """The new id of the message, or nothing when its node is unknown: a SuperLink does the same."""
        if message.metadata.dst_node_id not in self._apps:
            return ""
        copy = deepcopy(message)
        message_id = self._number(copy)
        self._pushed[message_id] = copy
        return message_id

    def _answers(self, message_id: str) -> bool:
        message = self._pushed.get(message_id)
        return message is not None and message.metadata.dst_node_id not in self._silent

    def _reply(self, message: Message) -> Message:
        reply = deepcopy(self._handled(message, message.metadata.dst_node_id))
        self._number(reply)
        return reply

    def _handled(self, message: Message, node_id: int) -> Message:
        try:
            return self._apps[node_id](message, self._contexts[node_id])
        except Exception as error:  # apart from what a grid may raise over bad replies, which a caller may survive
            raise ClientAppFailed(f"the ClientApp of node {node_id} raised {error!r}") from error

    def _number(self, message: Message) -> str:
        """Flower has no public way to name a message: its grids write the id as this does."""
        message_id = f"local-{next(self._numbers)}"
        vars(message.metadata)["_message_id"] = message_id
        return message_id


def _context(node_id: int) -> Context:
    return Context(run_id=RUN_ID, node_id=node_id, node_config={}, state=RecordDict(), run_config={})
