"""Protobuf messages from tables of their fields, for published formats of a few messages: no generated code.

>>> Point = messages("demo.v1", {"Point": [("x", 1, "int32"), ("names", 2, "*string")]})["Point"]
>>> Point(x=3, names=["a"]).SerializeToString().hex()
'0803120161'
"""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

Field = tuple[str, int, str]  # name, number, type; "*" before the type: repeated
_TYPES = {"bool": 8, "string": 9, "uint32": 13, "int32": 5, "enum": 14}  # numbers of FieldDescriptorProto.Type
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3
_FOREIGN = {"Timestamp": ".google.protobuf.Timestamp"}


def messages(
    package: str, fields: Mapping[str, Sequence[Field]], enums: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, Any]:
    """The class of each message. A type is a scalar, `Timestamp`, or a message or enum of these tables."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.tables", package=package, syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    for enum, values in (enums or {}).items():
        named = file.enum_type.add(name=enum)
        for value, number in values.items():
            named.value.add(name=value, number=number)
    for message, listed in fields.items():
        made = file.message_type.add(name=message)
        for name, number, kind in listed:
            bare = kind.removeprefix("*")
            field = made.field.add(name=name, number=number, label=_REPEATED if kind != bare else _OPTIONAL)
            field.type = _TYPES.get(bare, _TYPES["enum"] if bare in (enums or {}) else _MESSAGE)  # type: ignore[assignment]
            if bare not in _TYPES:
                field.type_name = _FOREIGN.get(bare, f".{package}.{bare}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in fields}
