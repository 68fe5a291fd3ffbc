"""A cloud provider's own report of a faulty host, as JSON, from the evidence of an attempt, for its user to send. Pure.

| provider | request | source |
|---|---|---|
| gcp | Compute Engine v1 `instances.reportHostAsFaulty` | InstancesReportHostAsFaultyRequest, client 3.28.0 |
| azure | PUT of a `Microsoft.Impact/workloadImpacts` | Guest Health Reporting (preview), API 2025-01-01-preview |
| aws | EC2 `ReportInstanceStatus` | API 2016-11-15; its `Description` is deprecated, and what `other` refers to |

A report has only fields that these documents name, and of the evidence only what the provider needs: the error code's
line from "Xid" on without process and program, the node, the device and the time. Never code, a command or a loss. What
nobody here knows is a placeholder in braces, named in `fill_in`. NotHardware where the evidence does not speak of
hardware: a code that is more probably the program's, or a reason that names no device.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from crypto.errors import PharoahError
from federation.protocol.xid_codes import XID_LINE, name_of

LEAST = 0.5  # of the probability that an error code comes from hardware
SILENT = "silent_data_corruption"
_PROCESS = re.compile(r",? ?(?:pid|name)=[^,]*")
# Reasons that name a device or a host by themselves, with what each is called.
DEVICES: Mapping[str, str] = MappingProxyType(
    {
        "nvlink_error": "NVLink error",
        "ecc_error": "uncorrectable ECC error of GPU memory",
        "device_lost": "GPU lost",
        "node_failure": "node failure",
        SILENT: "silent data corruption: a replica computed another result from the same batch",
    }
)
_AZURE_CODES = {
    "48": "XID48DoubleBitECC",
    "64": "HpcRowRemapFailure",
    "74": "NvLink",
    "79": "XID79FallenOffBus",
    "94": "XID94ContainedECCError",
    "95": "XID95UncontainedECCError",
}
_AZURE_REASONS = {"nvlink_error": "NvLink", "device_lost": "HpcMissingGpu"}


class NotHardware(PharoahError):
    """The evidence of the attempt does not speak of hardware, so no report to a provider is made of it."""

    default_hint = "no report: see what is known with `pharoah-tenant show JOB --only explain`"


class Cloud(StrEnum):
    """Whose report."""

    GCP = "gcp"
    AZURE = "azure"
    AWS = "aws"


@dataclass(frozen=True)
class Fault:
    """What an attempt shows of hardware. `code` and `line` are those of a GPU's error code, "" without one."""

    reason: str
    began_s: float
    node: str = ""
    gpu: str = ""
    code: str = ""
    line: str = ""
    hardware_probability: float | None = None


@dataclass(frozen=True)
class ProviderReport:
    """A request: what to call, its body, and the placeholders to be filled in first, with what each stands for."""

    version: int
    cloud: Cloud
    call: str
    body: Mapping[str, Any]
    fill_in: Mapping[str, str]


def report_of(cloud: Cloud, fault: Fault) -> ProviderReport:
    """The provider's report; NotHardware where the evidence does not speak of hardware."""
    if fault.code and (fault.hardware_probability or 0.0) < LEAST:
        share = f"{fault.hardware_probability or 0.0:.0%}"
        raise NotHardware(f"{name_of(fault.code)} is hardware in {share} of such cases: no report is made of it")
    if not fault.code and fault.reason not in DEVICES:
        raise NotHardware(f"{fault.reason} names no device and no host: no report is made of it")
    return _CLOUDS[cloud](fault)


def _gcp(fault: Fault) -> ProviderReport:
    """`IMMEDIATE` is the only schedule that v1 takes: the VM is disrupted at once."""
    behavior = "UNRECOVERABLE_GPU_ERROR" if fault.code.isdigit() else "CHIP_ERROR"
    behavior = {SILENT: "SILENT_DATA_CORRUPTION", "node_failure": "BEHAVIOR_UNSPECIFIED"}.get(fault.reason, behavior)
    return ProviderReport(
        1,
        Cloud.GCP,
        "POST https://compute.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/{INSTANCE}"
        "/reportHostAsFaulty",
        {"disruptionSchedule": "IMMEDIATE", "faultReasons": [{"behavior": behavior, "description": _told(fault)}]},
        {"PROJECT": "your project", "ZONE": "the instance's zone", "INSTANCE": f"the instance that is {_node(fault)}"},
    )


def _azure(fault: Fault) -> ProviderReport:
    category = _AZURE_CODES.get(fault.code) or ("GpuXIDError" if fault.code.isdigit() else "")
    category = category or _AZURE_REASONS.get(fault.reason, "HpcGenericFailure")
    more = {"PhysicalHostName": "{PHYSICAL_HOST_NAME}"}
    if fault.code.isdigit():
        more |= {"Manufacturer": "Nvidia"}
    if fault.gpu:
        more |= {"Location": fault.gpu}
    return ProviderReport(
        1,
        Cloud.AZURE,
        "PUT https://management.azure.com/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Impact/workloadImpacts/{NAME}"
        "?api-version=2025-01-01-preview",
        {
            "properties": {
                "startDateTime": _time(fault.began_s),
                "impactCategory": f"Resource.Hpc.Unhealthy.{category}",
                "impactDescription": _told(fault),
                "impactedResourceId": "/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}/providers"
                "/Microsoft.Compute/virtualMachines/{VM}",
                "additionalProperties": more,
            }
        },
        {
            "SUBSCRIPTION": "your subscription, which Azure has allowed to report",
            "NAME": "a name of your choice for this report, used once",
            "RESOURCE_GROUP": "the VM's resource group",
            "VM": f"the virtual machine that is {_node(fault)}",
            "PHYSICAL_HOST_NAME": "from the VM's Hyper-V key-value pairs: read it before the VM is restarted",
        },
    )


def _aws(fault: Fault) -> ProviderReport:
    return ProviderReport(
        1,
        Cloud.AWS,
        "aws ec2 report-instance-status --cli-input-json file://REPORT",
        {
            "Instances": ["{INSTANCE_ID}"],
            "Status": "impaired",
            "ReasonCodes": ["unresponsive" if fault.reason == "node_failure" else "other"],
            "StartTime": _time(fault.began_s),
            "Description": _told(fault),
        },
        {"INSTANCE_ID": f"the id of the instance that is {_node(fault)}; it must be running"},
    )


_CLOUDS: Mapping[Cloud, Callable[[Fault], ProviderReport]] = MappingProxyType(
    {Cloud.GCP: _gcp, Cloud.AZURE: _azure, Cloud.AWS: _aws}
)


def _told(fault: Fault) -> str:
    xid = XID_LINE.search(fault.line)
    what = _PROCESS.sub("", xid[0]) if xid else name_of(fault.code) if fault.code else DEVICES[fault.reason]
    where = ", ".join(filter(None, (fault.node and f"node {fault.node}", fault.gpu and f"GPU {fault.gpu}")))
    return f"{what}; {f'{where}; ' if where else ''}{_time(fault.began_s)}"


def _node(fault: Fault) -> str:
    return f"node {fault.node}" if fault.node else "the node at fault, which the evidence does not name"


def _time(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
