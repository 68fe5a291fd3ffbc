"""Health of nodes as NVSentinel, Kubernetes and node-problem-detector tell it, read as outages."""

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.json_format import MessageToJson

from provider_server.fleet.health_events import outages_told
from provider_server.fleet.outage_files import UnusableOutages, read_outages, read_starts
from tests import needs
from tests.support.kubernetes_schema import PUBLISHED

START = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR = START.timestamp() / 3600


def time(hours: float) -> str:
    return (START + timedelta(hours=hours)).isoformat().replace("+00:00", "Z")


# ---- NVSentinel ------------------------------------------------------------------------------------------------------

# Names and numbers of fields of `HealthEvent` that are used here, from NVIDIA/NVSentinel 264bfab8,
# data-models/protobufs/health_event.proto.
FIELDS = {
    "agent": (2, "STRING"),
    "componentClass": (3, "STRING"),
    "checkName": (4, "STRING"),
    "isFatal": (5, "BOOL"),
    "isHealthy": (6, "BOOL"),
    "generatedTimestamp": (12, "MESSAGE"),
    "nodeName": (13, "STRING"),
}


def a_health_event_kind() -> Any:
    """The message, as the protobuf library makes it of these fields."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(name="health_event.proto", package="datamodels", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.message_type.add(name="HealthEvent")
    for name, (number, type_name) in FIELDS.items():
        field = kind.field.add(name=name, number=number, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
        field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{type_name}")
        if type_name == "MESSAGE":
            field.type_name = ".google.protobuf.Timestamp"
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("datamodels.HealthEvent"))


HealthEvent = a_health_event_kind()


def an_event(hours: float, *, healthy: bool = False, fatal: bool = True, **fields: str) -> str:
    """An event in protobuf's own JSON, on one line."""
    told = {"nodeName": "n1", "checkName": "GpuXidError", "componentClass": "GPU", "agent": "syslog", **fields}
    event = HealthEvent(isHealthy=healthy, isFatal=fatal and not healthy, **told)
    event.generatedTimestamp.FromDatetime(START + timedelta(hours=hours))
    return MessageToJson(event, indent=None)


def shown(*lines: str) -> list[tuple[str, float, float | None, str]]:
    told = outages_told("\n".join(lines).encode(), [])
    return [(node, start - HOUR, None if end is None else end - HOUR, kind) for node, start, end, kind in told]


def test_a_fatal_event_begins_an_outage_and_a_healthy_one_ends_it() -> None:
    assert shown(an_event(1.0), an_event(3.5, healthy=True)) == [("n1", 1.0, 3.5, "GPU/GpuXidError")]
    assert shown(an_event(1.0)) == [("n1", 1.0, None, "GPU/GpuXidError")]


def test_what_is_told_again_while_it_lasts_is_one_outage_of_its_check() -> None:
    other = an_event(2.0, checkName="GpuNvlinkWatch")
    lines = an_event(2.5), an_event(1.0), other, an_event(4.0, healthy=True), an_event(6.0)
    assert shown(*lines) == [
        ("n1", 1.0, 4.0, "GPU/GpuXidError"),
        ("n1", 2.0, None, "GPU/GpuNvlinkWatch"),
        ("n1", 6.0, None, "GPU/GpuXidError"),
    ]


def test_what_is_not_fatal_and_what_we_said_ourselves_is_left_out() -> None:
    assert shown(an_event(1.0, fatal=False), an_event(2.0, agent="pharoah"), an_event(3.0, healthy=True)) == []


def test_events_come_alone_or_together() -> None:
    together = json.dumps(
        {"version": 1, "events": [json.loads(an_event(1.0)), json.loads(an_event(2.0, nodeName="n2"))]}
    )
    assert [(node, start) for node, start, _end, _kind in shown(together)] == [("n1", 1.0), ("n2", 2.0)]


def test_a_line_that_is_cut_is_told_by_its_number_and_the_others_count(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(f"{an_event(1.0)}\r\n\r\n{an_event(2.0)[:40]}\r\n{an_event(3.0, nodeName='n2')}\r\n")
    read = read_outages(file)
    assert [row[0] for row in read.rows.rows()] == ["n1", "n2"]
    assert any(told.startswith("line 3: ") for told in read.left_out)
    file.write_text("{")
    with pytest.raises(UnusableOutages):
        read_outages(file)


def as_stored(event: str, hours: float) -> dict[str, Any]:
    """As MongoDB keeps it: names in small letters, and seconds since 1970."""
    keys = {name.lower(): value for name, value in json.loads(event).items()}
    seconds = int((HOUR + hours) * 3600)
    stored = {**keys, "generatedtimestamp": {"seconds": seconds, "nanos": 0}}
    return {"_id": "1", "createdAt": {"$date": time(hours)}, "healthevent": stored, "healtheventstatus": {}}


def as_cloud_event(event: str) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "cluster", "type": "health-event", "data": json.loads(event)}


def test_events_are_read_out_of_cloud_events_and_as_they_are_stored() -> None:
    pair = an_event(1.0), an_event(3.5, healthy=True)
    expected = [("n1", 1.0, 3.5, "GPU/GpuXidError")]
    clouded = [json.dumps(as_cloud_event(one)) for one in pair]
    stored = [as_stored(one, hours) for one, hours in zip(pair, (1.0, 3.5), strict=True)]
    assert shown(*clouded) == expected
    assert shown(f"[{','.join(clouded)}]") == expected
    assert shown(*map(json.dumps, stored)) == expected
    assert shown(json.dumps(stored)) == expected
    of_changes = {"operationType": "insert", "fullDocument": stored[0]}
    assert shown(json.dumps(of_changes)) == [("n1", 1.0, None, "GPU/GpuXidError")]
    snake = json.dumps({"node_name": "n1", "check_name": "c", "generated_timestamp": time(1.0), "is_fatal": True})
    assert shown(snake) == [("n1", 1.0, None, "c")]
    (row,) = read_outages(Path(__file__).parent / "kubernetes" / "nvsentinel_cloudevent.json").rows.rows()
    assert (row[0], row[3]) == ("node-3", "GPU/XID_ERROR_48")


# ---- Kubernetes ------------------------------------------------------------------------------------------------------


def a_node(name: str, **conditions: tuple[str, float]) -> dict[str, Any]:
    """A node with conditions: status, and hours after `START` of its last transition."""
    told = [
        {"type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": time(hours)}
        for kind, (status, hours) in conditions.items()
    ]
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"conditions": told}}


def test_conditions_that_tell_of_hardware_are_outages() -> None:
    broken = a_node("n1", Ready=("True", 0.0), DiskBadBlock=("True", 2.0), KubeletUnhealthy=("True", 3.0))
    away = a_node("n2", Ready=("Unknown", 1.0), KernelDeadlock=("False", 0.0))
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": [broken, away]}, indent=4)
    assert shown(listed) == [("n2", 1.0, None, "lost"), ("n1", 2.0, None, "disk")]
    assert shown(json.dumps(broken), json.dumps({"type": "MODIFIED", "object": away})) == shown(listed)


def test_a_node_that_came_back_ends_its_outage() -> None:
    lines = [json.dumps(a_node("n1", Ready=(status, hours))) for status, hours in (("False", 1.0), ("True", 2.0))]
    assert shown(*lines, lines[0]) == [("n1", 1.0, 2.0, "lost")]


def test_the_published_schema_takes_such_a_node() -> None:
    needs.package("kubernetes_validate").validate(a_node("n1", Ready=("False", 1.0)), PUBLISHED, strict=True)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_files_of_health_are_read_as_outages(tmp_path: Path) -> None:
    file = tmp_path / "health.jsonl"
    file.write_text(an_event(1.25) + "\n" + an_event(3.5, healthy=True) + "\n")
    assert read_starts(file) == ([("n1", int(HOUR) + 1)], ())
    assert read_outages(file).rows.select("node", "kind").rows() == [("n1", "GPU/GpuXidError")]
    file.write_bytes(gzip.compress(json.dumps(a_node("n1", Ready=("True", 0.0))).encode()))
    assert read_starts(file) == ([], ())
    with pytest.raises(UnusableOutages, match="no outages"):
        read_outages(file)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"kind": "Node"}',
        '{"nodeName": "n1"}',
        '{"nodeName": 1, "checkName": "c", "generatedTimestamp": "2026-01-01T00:00:00Z"}',
        '{"nodeName": "n1", "checkName": "c", "generatedTimestamp": "today"}',
        '{"items": [1]}',
        '{"nodeName": "n1", "checkName": "c", "generatedTimestamp": "2026-01-01T00:00:00Z"}\n{',
    ],
)
def test_what_is_no_health_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "health.json").write_text(content)
    with pytest.raises(UnusableOutages, match=r"health\.json"):
        read_starts(tmp_path / "health.json")


def test_an_event_without_a_time_of_its_own_has_that_of_its_wrapping_and_a_broken_one_is_told() -> None:
    bare = {name: value for name, value in json.loads(an_event(0.0)).items() if name != "generatedTimestamp"}
    stored = {"createdAt": {"$date": time(1.0)}, "healthevent": bare}
    clouded = {"specversion": "1.0", "time": time(2.0), "data": {**bare, "nodeName": "n2"}}
    left_out: list[str] = []
    rows = outages_told("\n".join(map(json.dumps, (stored, bare, clouded))).encode(), left_out)
    assert [(node, start - HOUR) for node, start, _end, _kind in rows] == [("n1", 1.0), ("n2", 2.0)]
    assert left_out == ["event 2: Object missing required field `generatedtimestamp`"]
