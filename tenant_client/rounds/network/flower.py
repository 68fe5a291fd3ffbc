"""Every name of Flower's that the tenant uses, and what is assumed of each. An upgrade of Flower begins here.

| module | name | what is assumed |
|---|---|---|
| `flwr.app` | Message, RecordDict, ConfigRecord | documented; beside that `children`, `deflate` and `inflate`, and that a record's object is its class, the ids of its children, its length, a zero byte and a body |
| `flwr.app` | Context, Error | documented |
| `flwr.clientapp` | ClientApp | documented; calling it with a message and a context gives the reply |
| `flwr.proto` | fleet_pb2, heartbeat_pb2, message_pb2, node_pb2, run_pb2 | the wire; tests/system/test_flower.py lists the fields that are used |

The wire itself is in `federation.transport.flower_wire`; what is copied by value, there and below, is compared with
Flower's own by tests/system/test_flower.py.
"""  # noqa: E501  # a table

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2, node_pb2, run_pb2

__all__ = [
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Error",
    "Message",
    "RecordDict",
    "fleet_pb2",
    "heartbeat_pb2",
    "message_pb2",
    "node_pb2",
    "run_pb2",
]

INVALID_FAB = 7  # an error's code: this node does not run that bundle
