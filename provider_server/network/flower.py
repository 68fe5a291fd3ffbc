"""Every name of Flower's that the provider uses. An upgrade of Flower begins here: CONTRIBUTING.md."""

from flwr.app import ConfigRecord, Context, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import (
    ISOLATION_MODE_PROCESS,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    TRANSPORT_TYPE_GRPC_RERE,
    ErrorCode,
    Status,
    SubStatus,
)
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Message as MessageProto, ObjectTree
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    SYSTEM_MESSAGE_TYPE,
    TaskType,
)
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.date import now
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufClientInterceptor
from flwr.supercore.routers.runtime.tracing import RuntimeTracingMiddleware
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app
from flwr.superlink.routers.control.middlewares import (
    ControlAuthenticationMiddleware,
    ControlEventLogMiddleware,
    ControlLicenseMiddleware,
    ControlSensitiveResponseMiddleware,
)
from flwr.superlink.routers.fleet.middlewares import FleetEventLogMiddleware

__all__ = [
    "FLEET_HTTP_PUBLIC_KEY_HEADER",
    "FLEET_HTTP_SIGNATURE_HEADER",
    "ISOLATION_MODE_PROCESS",
    "SYSTEM_MESSAGE_TYPE",
    "SYSTEM_TIME_TOLERANCE",
    "TIMESTAMP_HEADER",
    "TIMESTAMP_TOLERANCE",
    "TRANSPORT_TYPE_GRPC_RERE",
    "AcquireTaskRequest",
    "ConfigRecord",
    "ConfirmMessageReceivedRequest",
    "Context",
    "ControlAuthenticationMiddleware",
    "ControlEventLogMiddleware",
    "ControlHttpClient",
    "ControlLicenseMiddleware",
    "ControlSensitiveResponseMiddleware",
    "Error",
    "ErrorCode",
    "Fab",
    "FleetEventLogMiddleware",
    "Grid",
    "HeartbeatSender",
    "HttpGrid",
    "ListNodesRequest",
    "Message",
    "MessageProto",
    "Metadata",
    "NoOpControlAuthnPlugin",
    "ObjectPullError",
    "ObjectTree",
    "ObjectUnavailableError",
    "ProtobufClient",
    "ProtobufClientInterceptor",
    "PullAppMessagesRequest",
    "PullTaskInputRequest",
    "PushMessagesRequest",
    "PushTaskOutputRequest",
    "RecordDict",
    "RegisterNodeRequest",
    "RuntimeHttpClient",
    "RuntimeTokenHttpInterceptor",
    "RuntimeTracingMiddleware",
    "RuntimeVersionHttpInterceptor",
    "SendTaskHeartbeatRequest",
    "ServerApp",
    "StartRunRequest",
    "Status",
    "StopRunRequest",
    "SubStatus",
    "SuperLinkLifespan",
    "SuperLinkLifespanConfig",
    "TaskIdentity",
    "TaskType",
    "UnregisterNodeRequest",
    "build_fab_from_files",
    "bytes_to_public_key",
    "context_from_proto",
    "create_app",
    "fab_to_proto",
    "inflate_object_from_contents",
    "iterate_object_tree",
    "make_message",
    "make_pull_object_fn_protobuf",
    "now",
    "run_from_proto",
    "verify_signature",
]
