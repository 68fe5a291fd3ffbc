"""The kernel's log: codes, roles, GPUs, hosts and times, on lines of our own and on real ones."""

import re

import pytest
from hypothesis import given, strategies as st

from federation.base.reading import open_inputs
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.kernel_log import code_of, looks_like, read
from tenant_client.doctor.sources.prefixes import stamp
from tests.support.logs_of_our_own import DATA, reader

XID_DATA = DATA / "xid"
NAMES = ["dmesg-with-xid-119.log", "kmsg.1.log", "memory_oom_dmesg.decode.iso.log", "fabricmanager.log"]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (XID_DATA / name).exists(), reason=f"../shared/data/xid/{name} is missing")


def one(text: str) -> Evidence:
    (seen,) = read(reader(text + "\n", "dmesg"))
    return seen


def real(name: str) -> list[Evidence]:
    with open_inputs(XID_DATA / name) as inputs:
        return [seen for file in inputs for seen in read(file)]


@pytest.mark.parametrize(
    ("text", "at_s", "host"),
    [
        ("[Sun Feb 23 16:24:18 2025] {}", 1740327858.0, ""),
        ("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 {}", 1737434504.283302, ""),
        ("2025-01-21T06:41:44.500+02:00 gpu-b02 kernel: {}", 1737434504.5, "gpu-b02"),
        ("2025-01-21T04:41:44+0000 gpu-b02 kernel: {}", 1737434504.0, "gpu-b02"),
        ("Jan 21 04:41:44 gpu-b02 kernel: {}", None, "gpu-b02"),
        ("[  123.456789] {}", None, ""),
        ("4,4102,1918273645,-;{}", None, ""),
        ("[Sun Feb 31 16:24:18 2025] {}", None, ""),
    ],
)
def test_times_and_hosts_in_all_forms(text: str, at_s: float | None, host: str) -> None:
    seen = one(text.format("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."))
    assert (seen.reason, seen.gpu, seen.host) == ("device_lost", "0000:3b:00", host)
    assert seen.at_s == (pytest.approx(at_s, abs=1e-6) if at_s is not None else None)


@pytest.mark.parametrize(
    ("text", "reason", "role"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 74, NVLink", "nvlink_error", Role.ROOT),
        ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_REMAP Nonfatal XC0", "nvlink_error", Role.SYMPTOM),
        ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_REMAP Fatal XC0", "nvlink_error", Role.ROOT),
        ("NVRM: Xid (PCI:0000:3b:00): 45, Ch 1", "cuda_error", Role.SYMPTOM),
        ("NVRM: Xid (PCI:0000:3b:00): 45, Ch 2 caused by previous Xid 149", "nvlink_error", Role.ROOT),
        ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_REMAP Nonfatal XC1 i0", "nvlink_error", Role.ROOT),
        ("NVRM: Xid (PCI:0000:3b:00): 45, Ch 2 caused by previous Xid 92", "ecc_error", Role.SYMPTOM),
        ("NVRM: Xid (PCI:0000:3b:00): 154, recovery action", "unknown", Role.SYMPTOM),
        ("NVRM: Xid (PCI:0000:3b:00): 99999, what", "unknown", Role.SYMPTOM),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32", "nvlink_error", Role.SYMPTOM),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30", "nvlink_error", Role.ROOT),
        ("EDAC MC0: 1 UE memory read error", "node_failure", Role.ROOT),
        ("Kernel panic - not syncing: hung", "node_failure", Role.ROOT),
        ("pcieport 0000:80:01.1: AER: Uncorrected (Fatal) error received", "unknown", Role.SYMPTOM),
        ("mlx5_core 0000:5e:00.0 ibp94s0: Link down", "network_error", Role.ROOT),
        ("Memory cgroup out of memory: Killed process 7 (pt_main_thread)", "host_out_of_memory", Role.ROOT),
        ("Out of memory: Killed process 7, UID 33, (nginx)", "host_out_of_memory", Role.SYMPTOM),
    ],
)
def test_what_a_line_says(text: str, reason: str, role: Role) -> None:
    seen = one(f"[  1.000000] {text}")
    assert (seen.reason, seen.role) == (reason, role)


@pytest.mark.parametrize(
    "text",
    ["EDAC MC0: 1 CE memory scrubbing error", "eth0: link becomes ready", "NVRM: Xid (...)",
     "NVRM: Xid (invalid): some",
     "NVRM: Xid (PCI:0000:04:00): %d, unknown", "pcieport: AER: Corrected error received", "mlx5_core: Link up"],
)  # fmt: skip
def test_what_says_nothing(text: str) -> None:
    assert list(read(reader(f"[  1.000000] {text}\n"))) == []


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("habanalabs hl2: Device heartbeat failed! PCI link is BROKEN", "hl2"),
        ("habanalabs 0000:1a:00.0: Device heartbeat failed!", "0000:1a:00.0"),
        ("accel accel3: habanalabs: Device heartbeat failed!", "accel3"),
        ("amdgpu 0000:0c:00.0: amdgpu: ring gfx_0.1.0 timeout, signaled seq=2506, emitted seq=2509", "0000:0c:00.0"),
        ("i915 0000:3a:00.0: [drm] GPU HANG: ecode 12:1:00000000, in python3 [100]", "0000:3a:00.0"),
        ("mlx5_core 0000:9a:00.0: mlx5_core: internal error: firmware fatal, amdgpu: ring gfx timeout", ""),
    ],
)
def test_drivers_of_other_accelerators_name_the_card(text: str, gpu: str) -> None:
    assert one(f"[91822.993087] {text}").gpu == gpu


def test_a_contained_memory_error_is_a_cause_alone_and_follows_another_code_of_its_gpu() -> None:
    contained = "NVRM: Xid (PCI:0000:{}:00): 94, Contained\n"
    other = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    assert [seen.role for seen in read(reader(contained.format("3b")))] == [Role.ROOT]
    assert [seen.role for seen in read(reader(other + contained.format("3b")))] == [Role.ROOT, Role.SYMPTOM]
    assert [seen.role for seen in read(reader(other + contained.format("5d")))] == [Role.ROOT, Role.ROOT]


@given(st.text(max_size=200))
def test_any_text_has_a_time_or_none(text: str) -> None:
    assert stamp(text) is None or isinstance(stamp(text), float)


# ---- real logs -----------------------------------------------------------------------------------------------------


@needs(NAMES[0])
def test_real_gsp_timeouts() -> None:
    (seen,) = real(NAMES[0])
    assert (code_of(seen), seen.reason, seen.gpu, seen.line) == (119, "device_lost", "0000:9b:00", 3)
    assert seen.at_s == 1740327858.0


@needs(NAMES[1])
def test_a_real_quiet_log_says_nothing() -> None:
    assert real(NAMES[1]) == []


@needs(NAMES[2])
def test_a_real_log_with_xids_and_oom_kills_of_other_programs() -> None:
    seen = real(NAMES[2])
    assert [(code_of(one), one.reason, one.role) for one in seen[:2]] == [
        (13, "cuda_error", Role.ROOT),
        (43, "cuda_error", Role.SYMPTOM),
    ]
    killed = [one for one in seen if "httpd" in one.text]
    assert [one.role for one in killed] in ([Role.SYMPTOM], [])
    assert [one.line for one in seen if one.role is Role.ROOT and one.reason == "host_out_of_memory"] == [21]


@needs(NAMES[3])
def test_a_real_fabric_manager_tells_of_one_switch_error() -> None:
    (seen,) = real(NAMES[3])
    assert (seen.reason, seen.role, seen.gpu) == ("nvlink_error", Role.SYMPTOM, "")
    assert seen.at_s == 1740669002.0


@needs("xid_kmsg_lines_from_gpud_tests.txt")
def test_every_real_xid_line_yields_its_code_and_gpu() -> None:
    for text in (XID_DATA / "xid_kmsg_lines_from_gpud_tests.txt").read_text(encoding="utf-8").splitlines():
        wanted = re.match(r"NVRM: Xid \((?:PCI:)?([0-9a-f:]{7,})\): (\d+)", text)
        seen = list(read(reader(text + "\n")))
        assert bool(seen) == bool(wanted), text
        if wanted:
            assert (code_of(seen[0]), seen[0].gpu) == (int(wanted[2]), wanted[1])


@pytest.mark.parametrize("name", NAMES)
def test_real_logs_are_recognised(name: str) -> None:
    if not (XID_DATA / name).exists():
        pytest.skip(f"../shared/data/xid/{name} is missing")
    assert looks_like((XID_DATA / name).read_text(encoding="utf-8")[:16384])
