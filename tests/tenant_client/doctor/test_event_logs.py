"""Logs of events, composed after what their services write: which event tells, and that healthy logs tell none."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from federation.base.reading import CappedReader
from tenant_client.doctor.diagnosis.diagnose import Diagnosis, explain, gather
from tenant_client.doctor.diagnosis.lessons import Lessons
from tenant_client.doctor.sources import event_logs
from tenant_client.doctor.sources.evidence import Evidence, NoFault, Role


def read(text: str) -> list[Evidence | NoFault]:
    return list(event_logs.read(CappedReader(io.BytesIO(text.encode()), "log", 1 << 26)))


def sel(*events: str) -> str:
    return "".join(f" {at:3x} | 05/02/26 | 10:00:{at:02} CEST | {event}\n" for at, event in enumerate(events, start=1))


BOOT = (
    "Event Logging Disabled SEL | Log area reset/cleared | Asserted",
    "System ACPI Power State | S0/G0: working | Asserted",
    "Fan FAN3 | Lower Critical going low  | Asserted | Reading 0 < Threshold 500 RPM",
    "Fan FAN3 | Lower Critical going low  | Deasserted | Reading 9100 > Threshold 500 RPM",
    "Memory #0x88 | Correctable ECC (CPU0_G1) | Asserted",
    "Power Supply PS2 Status | Power Supply AC lost | Asserted",
    "Power Supply PS2 Status | Power Supply AC lost | Deasserted",
    "Power Unit Pwr Unit | Power off/down | Asserted",
    "System Boot Initiated | Initiated by warm reset | Asserted",
    "OS Boot | C: boot completed | Asserted",
)


def redfish(*entries: tuple[str, str, str]) -> str:
    members = [
        {
            "@odata.type": "#LogEntry.v1_15_0.LogEntry",
            "Id": "1",
            "Severity": severity,
            "MessageId": one,
            "Message": text,
        }
        for severity, one, text in entries
    ]
    return json.dumps({"@odata.type": "#LogEntryCollection.LogEntryCollection", "Members": members}, indent=1)


WELL = ("OK", "ResourceEvent.1.4.ResourceStatusChangedOK", "The health of resource 'GPU_SXM_4' has changed to OK.")


def kubelet(*lines: str) -> str:
    begin = "May 02 09:59:00 n7 kubelet[812]: I0502 09:59:00.000001     812 kubelet.go:1] "
    return "".join(f"{begin}{line}\n" for line in ('"SyncLoop ADD" source="api" pods=["ml/job-0"]', *lines))


def node(*, disk: str = "False", ready: str = "True", event: str = "<none>") -> str:
    own = ("Conditions:", f"  DiskPressure  {disk}  KubeletDisk", f"  Ready  {ready}  Kubelet", "Capacity:", "  cpu: 8")
    begin = "Name:               gpu-7\nRoles:              <none>\nTaints:             nvidia.com/gpu:NoSchedule\n"
    return begin + "\n".join((*own, f"Events:  {event}", ""))


def node_object(reason: str) -> str:
    """Ready, or not for this reason."""
    conditions = [{"reason": "KubeletHasNoDiskPressure", "status": "False"}, {"reason": reason, "status": "?"}]
    own = {"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"kubernetes.io/hostname": "gpu-7"}}}
    return json.dumps({**own, "status": {"conditions": conditions}}, indent=1)


def event(kind: str, reason: str, said: str) -> str:
    return f"\n  Type  Reason  Age  From  Message\n  {kind}   {reason}   3m (x4 over 9m)   kubelet   {said}"


def slurm(*lines: str) -> str:
    said = ("sched: Allocate JobId=91 NodeList=n[1-4] #CPUs=96 Partition=train", *lines)
    return "".join(f"[2026-05-02T10:00:{at:02}.000] {line}\n" for at, line in enumerate(said))


def pbs(*lines: str) -> str:
    rows = "".join(f"05/02/2026 10:00:{at:02}  S    {line}\n" for at, line in enumerate(lines))
    return f"\nJob: 4711.pbs01\n\n05/02/2026 09:00:00  L    Considering job to run\n{rows}"


def qacct(failed: str, status: str, deleted_by: str = "NONE") -> str:
    return (
        f"{'=' * 62}\nqname        gpu.q\nhostname     n9.hpc\ngroup        ml\nowner        ada\njobname      t\n"
        f"jobnumber    88\nfailed       {failed}\ndeleted_by   {deleted_by}\nexit_status  {status}\nmaxvmem      7.1G\n"
    )


def gpfs(*lines: str) -> str:
    return "".join(f"2026-05-02_10:00:{at:02}.000+0200: {line}\n" for at, line in enumerate(lines))


def beegfs(*lines: str) -> str:
    return "".join(f"(2) May02 10:00:{at:02} Worker2 [{line}\n" for at, line in enumerate(lines))


ECC = "Memory DIMM_B2 | Uncorrectable ECC | Asserted"
LOST = "[E] Lost membership in cluster ai.example. Unmounting file systems."
RETRY = "Messaging (RPC)] >> Communication error: Receive timed out from: beegfs-storage sto1 [ID: 3]"

TOLD = {
    "thermal trip": (sel("Processor CPU1 | Thermal Trip | Asserted"), "node_failure"),
    "uncorrectable memory": (sel(*BOOT, ECC), "ecc_error"),
    "bus fatal": (sel("Critical Interrupt PCIE3 | Bus Fatal Error | Asserted"), "node_failure"),
    "watchdog": (sel("Watchdog2 #0xca | Hard reset | Asserted"), "node_failure"),
    "IERR": (sel("Processor CPU0_Status | IERR | Asserted"), "node_failure"),
    "power gone while a supply had none": (
        sel("Power Supply PS1 | Power Supply AC lost | Asserted", "Power Unit | Power off/down | Asserted"),
        "node_failure",
    ),
    "a supply without power": (sel("Power Supply PS1 | Power Supply AC lost | Asserted"), "unknown"),
    "sensor beyond its limit": (
        "CPU1 Temp        | 41 degrees C      | ok\nGPU3 Temp        | 99 degrees C      | nr\n",
        "node_failure",
    ),
    "Redfish Xid": (
        redfish(WELL, ("Critical", "ResourceEvent.1.0.ResourceErrorsDetected", "GPU_SXM_4 Driver: XID 79 GPU lost")),
        "device_lost",
    ),
    "Redfish NVLink": (
        redfish(WELL, ("Critical", "ResourceEvent.1.0.ResourceErrorsDetected", "NVSwitch_0 NVLink_3 has errors")),
        "nvlink_error",
    ),
    "iDRAC": (
        redfish(("Critical", "IDRAC.2.8.MEM0001", "Multi-bit memory errors detected on a memory device at DIMM_A1.")),
        "ecc_error",
    ),
    "iLO": (redfish(("Critical", "", "Server power lost: system power loss was detected.")), "node_failure"),
    "rasdaemon": (
        "No Memory errors.\n\nPCIe AER events:\n1 2026-05-02 10:00:00 +0000 0000:17:00.0 Uncorrected (Fatal) error: "
        "Completion Timeout\n\nNo Extlog errors.\n",
        "node_failure",
    ),
    "rasdaemon, summed up": (
        "Memory controller events summary:\n\tUncorrected on DIMM Label(s): 'A1' location: 0:0 errors: 3\n",
        "node_failure",
    ),
    "mcelog": (
        "Hardware event. This is not a software error.\nMCE 0\nCPU 3 BANK 7\nMCi status:\nUncorrected error\n",
        "node_failure",
    ),
    "edac-util": ("mc0: csrow2: 2 Uncorrected Errors\nmc0: csrow2: ch0: 0 Corrected Errors\n", "node_failure"),
    "GPFS": (gpfs("[N] mmfsd ready", LOST), "network_error"),
    "GPFS, unmounted": (
        gpfs("[E] File System fs1 unmounted by the system with return code 5 reason code 0"),
        "os_error",
    ),
    "BeeGFS": (beegfs(RETRY), "network_error"),
    "kubelet, memory": (
        kubelet('"Eviction manager: pod is evicted successfully" pod="ml/job-0"'),
        "evicted",
    ),
    "kubelet, out of memory": (
        kubelet('"System OOM encountered, victim process: python, pid: 99"'),
        "host_out_of_memory",
    ),
    "kubelet, devices": (
        kubelet(
            '"Failed to admit pod" err="no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"'
        ),
        "device_lost",
    ),
    "kubelet, probe": (
        kubelet('"Killing container" message="Container trainer failed liveness probe, will be restarted"'),
        "killed",
    ),
    "kubelet, driver": (
        kubelet('"Unhandled Error" err="container start failed: nvml error: driver/library version mismatch: unknown"'),
        "driver_mismatch",
    ),
    "kubelet, toolkit": (
        kubelet('"Unhandled Error" err="runc create failed: nvidia-container-cli: device error: 3: unknown device"'),
        "cuda_error",
    ),
    "kubelet, command": (
        kubelet('"Error syncing pod" err="RunContainerError: exec: \\"train\\": executable file not found in $PATH"'),
        "file_not_found_error",
    ),
    "node, disk": (node(disk="True"), "disk_full"),
    "node, disk by event": (
        node(event=event("Warning", "EvictionThresholdMet", "Attempting to reclaim ephemeral-storage")),
        "disk_full",
    ),
    "node, memory by event": (
        node(event=event("Warning", "SystemOOM", "System OOM encountered, victim process: python")),
        "host_out_of_memory",
    ),
    "node, no heartbeat": (node(ready="Unknown"), "node_failure"),
    "node as JSON": (node_object("NodeStatusUnknown"), "node_failure"),
    "nodes as JSON": (
        json.dumps({"apiVersion": "v1", "items": [json.loads(node_object("KubeletHasDiskPressure"))]}),
        "disk_full",
    ),
    "node as YAML": (
        "apiVersion: v1\nkind: Node\nstatus:\n  conditions:\n  - reason: KubeletNotReady\n",
        "node_failure",
    ),
    "node, GPU": (node(event=event("Warning", "XIDError", "GPU 3 Xid 79")), "device_lost"),
    "Redfish, a GPU to be reset": (
        redfish(WELL, ("Critical", "Base.1.18.ResetRequired", "a component reset is required, 'GPU_SXM_2'")),
        "cuda_error",
    ),
    "containerd": (
        'time="2026-05-02T10:00:00Z" level=info msg="StartContainer returns successfully"\n'
        'time="2026-05-02T10:00:09Z" level=info msg="TaskOOM event container_id:\\"ab\\""\n',
        "host_out_of_memory",
    ),
    "Slurm, node": (slurm("error: Nodes n3 not responding, setting DOWN"), "node_failure"),
    "Slurm, requeued": (slurm("requeue job JobId=91 due to failure of node n2"), "node_failure"),
    "Slurm, time": (slurm("Time limit exhausted for JobId=91"), "time_limit"),
    "Slurm, preempted": (slurm("preempted JobId=91 has been requeued"), "preempted"),
    "slurmd": (slurm("[91.batch] error: Detected 1 oom_kill event in StepId=91.batch."), "host_out_of_memory"),
    "Slurm, health": (slurm("update_node: node n4 reason set to: NHC: check_hw_ib failed"), "node_failure"),
    "PBS, walltime": (pbs("Exit_status=-29 resources_used.walltime=01:00:09"), "time_limit"),
    "PBS, memory": (pbs("Exit_status=-27 resources_used.mem=64gb"), "host_out_of_memory"),
    "PBS, deleted": (pbs("Job to be deleted at request of ada@login", "Exit_status=271"), "cancelled"),
    "PBS, killed": (pbs("Exit_status=265 resources_used.mem=64gb"), "killed"),
    "PBS, node": (pbs("Job requeued, execution node n7 down"), "node_failure"),
    "qstat": ("Job Id: 88.pbs\n    Job_Name = t\n    job_state = F\n    Exit_status = -29\n", "time_limit"),
    "SGE, time before its exit status": (qacct("37  : qmaster enforced h_rt limit", "137"), "time_limit"),
    "SGE, killed": (qacct("100 : assumedly after job", "137"), "killed"),
    "SGE, prolog": (qacct("8   : in prolog", "0"), "node_failure"),
    "SGE, deleted": (qacct("100 : assumedly after job", "137", "ada@login"), "cancelled"),
}
HEALTHY = {
    "boot": sel(*BOOT),
    "sensors": "CPU1 Temp | 41 degrees C  | ok\nFAN1      | 9100 RPM      | ok\nPS2       | 0x01 | ok\n",
    "Redfish": redfish(WELL, ("OK", "IDRAC.2.8.SYS1001", "System is turning off."), ("Warning", "x.1.0.Y", "Lid open")),
    "rasdaemon": "No Memory errors.\n\nNo PCIe AER errors.\n\nNo Extlog errors.\n\nNo MCE errors.\n",
    "corrected": "Memory controller events:\n1 2026-05-02 10:00:00 +0000 1 Corrected error(s): read error at A1\n",
    "edac-util": "mc0: 0 Uncorrected Errors with no DIMM info\nedac-util: No errors to report.\n",
    "GPFS": gpfs(
        "[N] mmfsd ready", "[N] Connecting to 10.0.0.4 io1 <c0n1>", "[I] Accepted and connected to 10.0.0.4 io1"
    ),
    "GPFS that came back": gpfs(
        "[E] Close connection to 10.0.0.4 io1 <c0n1>:[0] (Connection reset by peer).", "[I] Connected to 10.0.0.4 io1"
    ),
    "BeeGFS that came back": beegfs(RETRY, "Messaging (RPC)] >> Retry successful."),
    "kubelet": kubelet(
        '"Probe failed" probeType="Readiness" pod="ml/job-0"',
        '"Eviction manager: pod is evicted successfully" pod="kube-system/fluentbit-7k2hv"',
        '"Image garbage collection failed once" err="failed to get imageFs info"',
        '"Skipping pod synchronization" err="PLEG is not healthy: pleg has yet to be successful"',
    ),
    "Slurm": slurm(
        "_job_complete: JobId=91 WEXITSTATUS 0",
        "error: Nodes n3 not responding",
        "Node n3 now responding",
        "update_node: node n5 reason set to: maintenance of the rack",
    ),
    "node": node(event=event("Normal", "NodeReady", "Node gpu-7 status is now: NodeReady")),
    "node as JSON": node_object("KubeletReady"),
    "node whose disk came back": node(
        event=event("Warning", "FreeDiskSpaceFailed", "Failed to garbage collect")
        + "\n  Normal   NodeHasNoDiskPressure   2m   kubelet   Node gpu-7 status is now: NodeHasNoDiskPressure"
    ),
    "PBS": pbs("Exit_status=0 resources_used.walltime=00:59:00"),
    "SGE": qacct("0", "0"),
}


@pytest.mark.parametrize(("text", "reason"), TOLD.values(), ids=TOLD)
def test_a_log_tells_its_failure(text: str, reason: str, tmp_path: Path) -> None:
    found = diagnosed(text, tmp_path)
    assert found.reason == reason
    assert found.root is not None, found.sentence


@pytest.mark.parametrize("text", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_log_tells_none_and_what_it_is(text: str, tmp_path: Path) -> None:
    found = diagnosed(text, tmp_path)
    assert (found.reason, found.root, found.symptom) == ("unknown", None, None)
    assert "no event of a failure" in found.sentence


def diagnosed(text: str, folder: Path) -> Diagnosis:
    (folder / "events.txt").write_text(text, encoding="utf-8")
    return explain(gather([folder / "events.txt"]), Lessons())


def test_a_job_s_own_log_says_more_than_events(tmp_path: Path) -> None:
    (tmp_path / "events.txt").write_text(TOLD["uncorrectable memory"][0], encoding="utf-8")
    error = "RuntimeError: CUDA out of memory"
    (tmp_path / "job.log").write_text(
        f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\n{error}\n', encoding="utf-8"
    )
    assert explain(gather([tmp_path]), Lessons()).reason == "gpu_out_of_memory"


def test_the_host_and_the_line_of_an_event_are_told() -> None:
    (one,) = read(slurm("error: Nodes n3 not responding, setting DOWN"))
    assert isinstance(one, Evidence)
    assert (one.host, one.line, one.role) == ("n3", 2, Role.SYMPTOM)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*(text for text, _ in TOLD.values()), *HEALTHY.values()]), st.data())
def test_any_text_ends_in_evidence_or_none(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(text)))
        put = data.draw(st.sampled_from(["", "9" * 400, "{" * 2000, "\0", "|", ": ", "\n\n", '"', "-1", "null", "²"]))
        text = text[:at] + put + text[at + data.draw(st.integers(0, 40)) :]
    assert all(isinstance(one, Evidence | NoFault) for one in read(text))
