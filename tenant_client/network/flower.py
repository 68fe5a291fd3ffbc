"""Every name of Flower's that the tenant uses. An upgrade of Flower begins here: CONTRIBUTING.md."""

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

__all__ = [
    "ActivateNodeRequest",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "DeactivateNodeRequest",
    "Error",
    "ErrorCode",
    "FleetHttpClient",
    "GetRunRequest",
    "Message",
    "Node",
    "NodeAuthHttpInterceptor",
    "ObjectPullError",
    "ObjectPushError",
    "ObjectTree",
    "PullMessagesRequest",
    "PushMessagesRequest",
    "RecordDict",
    "RuntimeVersionHttpInterceptor",
    "SendNodeHeartbeatRequest",
    "get_all_nested_objects",
    "get_object_tree",
    "make_confirm_message_received_fn_protobuf",
    "make_pull_object_fn_protobuf",
    "make_push_object_fn_protobuf",
    "message_from_proto",
    "message_to_proto",
    "no_object_id_recompute",
    "pull_and_inflate_object_from_tree",
    "push_objects",
    "remove_content_from_message",
]
