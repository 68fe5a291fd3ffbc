"""Every name of Flower's that the provider uses, and what is assumed of each. An upgrade of Flower begins here.

| module | name | what is assumed |
|---|---|---|
| `flwr.app` | Message, RecordDict, ConfigRecord | documented; beside that `children`, `deflate` and `inflate`, and that a record's object is its class, the ids of its children, its length, a zero byte and a body |
| `flwr.app` | Context, Error | documented |
| `flwr.serverapp` | ServerApp | documented; calling it calls its main function with the grid that it is given, whatever class that has |
| `flwr.proto` | control_pb2, fab_pb2, fleet_pb2, message_pb2, node_pb2, runtime_pb2 | the wire; tests/system/test_flower.py lists the fields that are used |
| `flwr.supercore.task_identity` | TaskIdentity | a new Message takes run, node and task from `_run_id`, `_node_id` and `_task_id` of this class |
| `flwr.superlink.auth_plugin` | NoOpControlAuthnPlugin | takes no arguments, and lets everybody use the Control API |
| `flwr.superlink.main` | create_app | `create_app(settings, lifespan)` reads nine attributes of its settings, makes the lifespan of them and starts nothing; `state.linkstate_factory.state()` of its app knows `get_node_id_by_public_key`, `deactivate_node` and `get_run_info`; `user_middleware` are its layers |

The wire itself is in `federation.transport.flower_wire`; numbers, words and layouts of Flower's that are copied by
value, there and below, are compared with Flower's own by tests/system/test_flower.py.
"""  # noqa: E501  # a table

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.proto import control_pb2, fab_pb2, fleet_pb2, message_pb2, node_pb2, runtime_pb2
from flwr.serverapp import ServerApp
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.main import create_app

__all__ = [
    "ConfigRecord",
    "Context",
    "Error",
    "Message",
    "NoOpControlAuthnPlugin",
    "RecordDict",
    "ServerApp",
    "TaskIdentity",
    "control_pb2",
    "create_app",
    "fab_pb2",
    "fleet_pb2",
    "message_pb2",
    "node_pb2",
    "runtime_pb2",
]

SUPERLINK_NODE = 1  # the SuperLink's own node id
MESSAGE_UNAVAILABLE = 3  # an error's code
SERVER_APP = "flwr-serverapp"  # a type of tasks
COMPLETED, FAILED = "completed", "failed"  # how a task ends
UNFINISHED = ("pending", "starting", "running")  # runs
# Layers of Flower's app that do nothing for nodes; one that a version lacks is no matter.
IDLE_LAYERS = frozenset(
    {
        "ControlAuthenticationMiddleware",
        "ControlEventLogMiddleware",
        "ControlLicenseMiddleware",
        "ControlSensitiveResponseMiddleware",
        "FleetEventLogMiddleware",
        "RuntimeTracingMiddleware",
    }
)
