"""Links that went down and came up again, in the clocks and words of several drivers."""

import json
from pathlib import Path

import pytest

from tenant_client.doctor.diagnosis.diagnose import diagnose, gather

DOWN, UP = "mlx5_core 0000:5e:00.0 ens5f0np0: Link down", "mlx5_core 0000:5e:00.0 ens5f0np0: Link up"
PORT = "mlx5_core 0000:ab:00.0 mlx5_5: Port: {} Link {}"
ERROR = "mlx5_core 0000:5e:00.0: poll_health:830:(pid 0): device's health compromised - reached miss count"


def reason(tmp_path: Path, *lines: str) -> str:
    (tmp_path / "dmesg.log").write_text("\n".join(lines) + "\n")
    found = diagnose(gather([tmp_path / "dmesg.log"]).evidence)
    return found.symptom.reason if found.symptom else found.reason


def at(second: int, text: str) -> str:
    return f"[Tue Nov 24 06:{second // 60:02}:{second % 60:02} 2026] {text}"


@pytest.mark.parametrize(
    "lines",
    [
        (at(9, DOWN), at(12, UP)),
        (at(9, DOWN), at(12, UP), at(100, DOWN), at(104, UP)),
        ("[  812.308145] " + PORT.format(1, "DOWN"), "[  815.002345] " + PORT.format(1, "ACTIVE")),
        (f"6,814,812308145,-;{DOWN}", f"6,815,815308145,-;{UP}"),
        (
            "Nov 24 05:03:41 gpu-1 kernel: [   11.1] igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down",
            "Nov 24 05:03:45 gpu-1 kernel: [   15.4] igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps",
        ),
        (at(1, "bond0: (slave eth2): link status definitely down, disabling"), at(3, UP)),
        tuple(
            json.dumps({"_TRANSPORT": "kernel", "_HOSTNAME": "n1", "__REALTIME_TIMESTAMP": us, "MESSAGE": text})
            for us, text in (("1795500000000000", DOWN), ("1795500003000000", UP))
        ),
    ],
)
def test_a_link_that_came_up_again_within_seconds_is_no_cause(lines: tuple[str, ...], tmp_path: Path) -> None:
    assert reason(tmp_path, *lines) == "unknown"


@pytest.mark.parametrize(
    "lines",
    [
        (at(9, DOWN), at(20, "usb 1-1: new device")),
        (at(9, DOWN), at(12, UP.replace("5e", "9c").replace("ens5", "ens6"))),
        (at(9, DOWN), at(12, UP), at(900, DOWN)),
        (at(9, DOWN), at(9 + 600, UP)),
        (at(9, DOWN), at(11, ERROR), at(12, UP)),
        (at(9, PORT.format(1, "DOWN")), at(12, PORT.format(2, "ACTIVE"))),
        (f"Nov 24 05:03:41 n1 kernel: {DOWN}", f"Nov 24 05:03:43 n2 kernel: {UP}"),
        (at(9, DOWN), at(12, UP), at(13, ERROR)),
    ],
)
def test_a_link_that_stays_down_or_with_which_something_failed_is_told(lines: tuple[str, ...], tmp_path: Path) -> None:
    assert reason(tmp_path, *lines) == "network_error"


def test_of_a_link_that_came_up_the_second_fall_is_told_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "dmesg.log").write_text("\n".join((at(9, DOWN), at(12, UP), at(900, DOWN))))
    found = diagnose(gather([tmp_path / "dmesg.log"]).evidence)
    assert found.root is not None
    assert found.root.line == 3


NFS = "nfs: server 10.0.0.9 {}"
LOST = "LustreError: 11-0: work-OST0003-osc-ffff88: operation ost_write to node 10.0.0.1@o2ib failed: rc = -107"
RESTORED = "Lustre: work-OST0003-osc-ffff88: Connection restored to 10.0.0.1@o2ib (at 10.0.0.1@o2ib)"
EVICTED = "LustreError: 167-0: work-OST0003-osc-ffff88: This client was evicted by work-OST0003; in progress I/O fails"


def test_a_file_server_that_answers_again_is_none_and_one_that_evicted_the_client_is(tmp_path: Path) -> None:
    waits, answers = at(9, NFS.format("not responding, still trying")), at(300, NFS.format("OK"))
    assert reason(tmp_path, waits, answers) == "unknown"
    assert reason(tmp_path, waits) == "os_error"
    assert reason(tmp_path, at(9, LOST), at(90, RESTORED)) == "unknown"
    assert reason(tmp_path, at(9, LOST), at(90, RESTORED.replace("OST0003", "OST0004"))) == "os_error"
    assert reason(tmp_path, at(9, LOST), at(10, EVICTED), at(11, RESTORED)) == "os_error"
