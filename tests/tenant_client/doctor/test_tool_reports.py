"""Reports of tools, composed after their documentation: which device is named and why; healthy ones are quiet."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from federation.base.reading import CappedReader
from tenant_client.doctor.sources import formats, tool_reports
from tenant_client.doctor.sources.evidence import Evidence, NoFault, Role
from tenant_client.program.cli import app

Found = list[Evidence | NoFault]


def read(text: str) -> Found:
    return list(tool_reports.read(CappedReader(io.BytesIO(text.encode()), "report", 1 << 26)))


def told(text: str) -> list[tuple[str, str]]:
    """Reason and device of each fault."""
    assert tool_reports.looks_like(text[: 16 << 10])
    return [
        (one.reason, one.gpu or one.host or one.text.split(": ")[1]) for one in read(text) if isinstance(one, Evidence)
    ]


# ---- each tool, with a fault and without -----------------------------------------------------------------------------


def nvidia_q(
    volatile: int = 0, aggregate: int = 0, failed: str = "No", hot: str = "Not Active", retired: int = 0
) -> str:
    def gpu(bus: str, *values: object) -> str:
        volatile, aggregate, failed, hot, retired = values
        return f"""
GPU {bus}
    Product Name                          : NVIDIA A100-SXM4-80GB
    Clocks Event Reasons
        SW Power Cap                      : Active
        HW Slowdown                       : {hot}
    ECC Errors
        Volatile
            SRAM Correctable              : 4
            DRAM Uncorrectable            : {volatile}
        Aggregate
            DRAM Correctable              : 9
            DRAM Uncorrectable            : {aggregate}
    Retired Pages
        Double Bit ECC                    : {retired}
        Pending Page Blacklist            : No
    Remapped Rows
        Correctable Error                 : 1
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : {failed}
"""

    healthy = gpu("00000000:07:00.0", 0, 0, "No", "Not Active", 0)
    return (
        "\n==============NVSMI LOG==============\n\nAttached GPUs : 2\n"
        + healthy
        + gpu("00000000:0F:00.0", volatile, aggregate, failed, hot, retired)
    )


def nvidia_xml(volatile: int, pending: str = "No") -> str:
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        '<gpu id="00000000:07:00.0"></gpu><gpu id="00000000:0F:00.0"><ecc_errors><volatile>\n'
        f"<sram_uncorrectable_parity>{volatile}</sram_uncorrectable_parity>"
        "</volatile></ecc_errors><remapped_rows><remapped_row_corr>2</remapped_row_corr>"
        f"<remapped_row_pending>{pending}</remapped_row_pending></remapped_rows></gpu></nvidia_smi_log>"
    )


def nvidia_csv(cell: str) -> str:
    return (
        "timestamp, index, uuid, ecc.errors.uncorrected.volatile.total, remapped_rows.failure, temperature.gpu\n"
        f"2026/01/01 00:00:00.000, 0, GPU-a, 0, No, 31\n2026/01/01 00:00:00.001, 1, GPU-b, {cell}, No, 33\n"
    )


def nvidia_table(cell: str) -> str:
    return f"""\
Tue Mar 10 04:17:52 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.133.20             Driver Version: 570.133.20     CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   34C    P0             112W /  400W |      4MiB /  81920MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A100-SXM4-80GB          On  |   00000000:0F:00.0 Off | {cell:>20} |
| N/A   34C    P0             112W /  400W |      4MiB /  81920MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
"""


def nvlink(second: str) -> str:
    return (
        f"GPU 0: NVIDIA A100 (UUID: GPU-a)\n\t Link 0: 25 GB/s\nGPU 1: NVIDIA A100 (UUID: GPU-b)\n\t Link 0: {second}\n"
    )


def amd(count: int) -> str:
    gpus = [
        {"gpu": gpu, "ecc": {"total_correctable_count": 7, "total_uncorrectable_count": count * gpu}}
        for gpu in range(2)
    ]
    return json.dumps({"gpu_data": gpus})


def amd_pages(pages: object) -> str:
    return json.dumps([{"gpu": 0, "retired": "No bad pages found."}, {"gpu": 1, "retired": pages, "pending": []}])


def amd_text(count: int) -> str:
    return (
        "GPU: 0\n    ECC:\n        TOTAL_UNCORRECTABLE_COUNT: 0\n\nGPU: 1\n    ECC:\n"
        f"        TOTAL_UNCORRECTABLE_COUNT: {count}\n"
    )


def rocm(count: int) -> str:
    rows = (
        "         Block       Status    Correctable Error  Uncorrectable Error  \n"
        "           UMC        ENABLED       3     {}  \n"
    )
    head = "\n==== ROCm System Management Interface ====\n==== RAS Info ====\n\n"
    return head + "".join(
        f"GPU[{gpu}]: \tRAS INFO\n{rows.format(count * gpu)}          SDMA       DISABLED\n" for gpu in range(2)
    )


def rocm_json(count: int) -> str:
    return json.dumps(
        {f"card{gpu}": {"UMC Uncorrectable Errors": str(count * gpu), "GPU use (%)": "9"} for gpu in range(2)}
    )


def dcgm(status: str, name: str = "memory", warning: str = "") -> str:
    results: list[dict[str, object]] = [{"entity_group": "GPU", "entity_id": 0, "status": "Pass"}]
    results.append({"entity_group": "GPU", "entity_id": 1, "status": status, "warnings": [{"warning": warning}]})
    tests = [{"name": name, "results": results, "test_summary": {"status": status}}]
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}})


def dcgm_table(result: str) -> str:
    line = "+---------------------------+------------------------------------------------+\n"
    row = "| {:<25} | {:<46} |\n".format
    return (
        "Successfully ran diagnostic for group.\n"
        + line
        + row("Diagnostic", "Result")
        + line
        + row("NVLink", result)
        + line
    )


def xpu(status: str) -> str:
    return json.dumps({"core_temperature": {"status": "OK"}, "device_id": 1, "memory": {"status": status}})


def habana(count: int) -> str:
    return (
        "================HL-SMI LOG================\n[0] AIP (accel0) 0000:33:00.0\n"
        f"        ECC Errors\n                Volatile\n                        Double Bit             : {count}\n"
    )


def ascend(count: int) -> str:
    return (
        "        NPU ID                                   : 1\n        Chip Count                               : 1\n"
        "        HBM Single Bit Error Count               : 8\n"
        f"        HBM Double Bit Error Count               : {count}\n"
    )


def ascend_table(health: str) -> str:
    line = "+---------------------------+---------------+------------------+\n"
    return (
        f"{line}| npu-smi 24.1              Version: 24.1                      |\n{line}"
        "| NPU   Name                | Health        | Power(W)         |\n"
        "| Chip                      | Bus-Id        | AICore(%)        |\n"
        f"{line.replace('-', '=')}| 0     910B                | OK            | 90.3             |\n"
        "| 0                         | 0000:C1:00.0  | 0                |\n"
        f"| 1     910B                | {health:<13} | 90.3             |\n"
        "| 0                         | 0000:C2:00.0  | 0                |\n"
    )


def errors_of(count: int) -> str:
    if not count:
        return "\n## Summary: 12 nodes checked, 0 bad nodes found\n##          96 ports checked, 0 ports have errors\n"
    return (
        'Errors for "n1 mlx5_0"\n'
        f"   GUID 0xb83fd20300aaaaaa port 1: [LinkDownedCounter == {count}] [PortXmitWait == 77]\n"
        "   Link info:      11    1[  ] ==( 4X  53.125 Gbps Active/  LinkUp)==>  0xfc6a1c0300bbbbbb    5    7[  ]"
        ' "leaf1" ( )\n'
    )


def counters(count: int) -> str:
    return (
        "# Port counters: Lid 5 port 7 (CapMask: 0x5A00)\nPortSelect:......................7\n"
        f"SymbolErrorCounter:..............{count}\nPortXmitData:....................123456789\n"
        "PortXmitWait:....................999\n"
    )


def ethtool(count: int) -> str:
    return f"NIC statistics:\n     rx_packets: 99999\n     rx_crc_errors_phy: {count}\n     link_down_events_phy: 1\n"


def mlxlink(state: str) -> str:
    return (
        f"\nOperational Info\n----------------\nState                              : {state}\n"
        "Speed                              : N/A\n"
    )


def ibstat(state: str) -> str:
    port = "\tPort 1:\n\t\tState: {}\n\t\tPhysical state: {}\n"
    physical = {"Active": "LinkUp"}.get(state, "Polling")
    return (
        f"CA 'mlx5_0'\n\tCA type: MT4129\n{port.format('Active', 'LinkUp')}CA 'mlx5_1'\n\tCA type: MT4129\n"
        f"{port.format(state, physical)}"
    )


def ibstatus(state: str) -> str:
    return (
        f"Infiniband device 'mlx5_1' port 1 status:\n\tbase lid:\t 0x1\n\tstate:\t\t {state}\n"
        "\tphys state:\t 5: LinkUp\n"
    )


def rdma(state: str) -> str:
    return (
        "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev a\n"
        f"link mlx5_1/1 state {state} physical_state LINK_UP netdev b\n"
    )


def rdma_json(state: str) -> str:
    return json.dumps([{"ifindex": 1, "ifname": "mlx5_1", "port": 1, "state": "ACTIVE", "physical_state": state}])


def ibdiagnet(line: str) -> str:
    return (
        f"-I- Discovering ... 12 nodes (4 Switches & 8 CA-s) discovered.\n{line}\n"
        "-I- Links Check finished successfully\n"
    )


def scrape(code: int) -> str:
    sample = 'DCGM_FI_DEV_XID_ERRORS{{gpu="{}",UUID="GPU-a",Hostname="n1"}} {}\n'
    return f"# HELP DCGM_FI_DEV_XID_ERRORS The last Xid.\n{sample.format(0, 0)}{sample.format(1, code)}"


def sinfo(state: str) -> str:
    return (
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
        f"gpu*         up 1-00:00:00      8   idle n[1-8]\ngpu*         up 1-00:00:00      1  {state} n9\n"
    )


def remapped(failure: str) -> str:
    begin = "gpu_uuid, gpu_bus_id, remapped_rows.correctable, remapped_rows.uncorrectable, remapped_rows.failure\n"
    return f"{begin}GPU-1a, {BUS}, 2, 0, {failure}\nGPU-2b, 00000000:1F:00.0, 0, 0, No\n"


def retired(cause: str) -> str:
    return f"gpu_bus_id, retired_pages.address, retired_pages.cause\n{BUS}, 0x0000000000001234, {cause}\n"


def settings_of(link: str) -> str:
    """Of two ports, below the command."""
    up = "Settings for ens2np0:\n\tSpeed: 400000Mb/s\n\tLink detected: yes\n"
    return f"root@n7:~# ethtool ens2np0; ethtool ens3np0\n{up}Settings for ens3np0:\n\tLink detected: {link}\n"


def ip_link(flags: str) -> str:
    return (
        "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN mode DEFAULT\n    link/loopback 00:00\n"
        f"4: ib2: <{flags}> mtu 4092 qdisc mq state UP mode DEFAULT\n"
        "7: eno2: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc mq state DOWN mode DEFAULT\n"
        "9: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN mode DEFAULT\n"
    )


def kubectl(status: str) -> str:
    rows = f"n1     Ready    <none>   40d   v1.33.5\nn9     {status}   <none>   40d   v1.33.5\n"
    return f"NAME   STATUS   ROLES    AGE   VERSION\n{rows}"


BUS = "00000000:0F:00.0"
ROWS: list[tuple[Callable[..., str], object, object, str, str]] = [
    (nvidia_q, 2, 0, "ecc_error", BUS),
    (nvidia_xml, 1, 0, "ecc_error", BUS),
    (nvidia_csv, "3", "0", "ecc_error", "1"),
    (nvidia_csv, "[Unknown Error]", "[N/A]", "device_lost", "1"),
    (nvidia_csv, "[GPU is lost]", "0", "device_lost", "1"),
    (remapped, "Yes", "No", "ecc_error", BUS),
    (retired, "Double Bit ECC", "Single Bit ECC", "ecc_error", BUS),
    (nvidia_table, "5", "0", "ecc_error", BUS),
    (nvidia_table, "ERR!", "N/A", "device_lost", BUS),
    (nvlink, "<inactive>", "25 GB/s", "nvlink_error", "1"),
    (nvlink, "Recovery Errors: 2", "Recovery Errors: 0", "nvlink_error", "1"),
    (scrape, 79, 0, "device_lost", "1"),
    (scrape, 48, 0, "ecc_error", "1"),
    (amd, 3, 0, "ecc_error", "1"),
    (amd_pages, [{"page_address": "0x7f", "status": "RESERVED"}], "No bad pages found.", "ecc_error", "1"),
    (amd_text, 3, 0, "ecc_error", "1"),
    (rocm, 1, 0, "ecc_error", "1"),
    (rocm_json, 1, 0, "ecc_error", "1"),
    (dcgm, "Fail", "Pass", "ecc_error", "1"),
    (dcgm_table, "Fail - GPU: 1", "Pass", "nvlink_error", "1"),
    (dcgm_table, "Fail - GPU: 1", "Skip - All", "nvlink_error", "1"),
    (xpu, "Critical", "OK", "ecc_error", "1"),
    (habana, 1, 0, "ecc_error", "0000:33:00.0"),
    (ascend, 2, 0, "ecc_error", "1"),
    (ascend_table, "Alarm", "OK", "unknown", "1"),
    (errors_of, 3, 0, "network_error", "link n1 mlx5_0 port 1 to leaf1 port 7"),
    (counters, 50, 3, "network_error", "port Lid 5 port 7"),
    (ethtool, 700, 0, "network_error", "the port"),
    (settings_of, "no (Autoneg, No partner detected)", "no (No cable)", "network_error", "port ens3np0"),
    (settings_of, "no", "yes", "network_error", "port ens3np0"),
    (ip_link, "NO-CARRIER,BROADCAST,UP", "BROADCAST,UP,LOWER_UP", "network_error", "port ib2"),
    (mlxlink, "Polling", "Active", "network_error", "the port"),
    (ibstat, "Down", "Active", "network_error", "port mlx5_1 port 1"),
    (ibstatus, "1: DOWN", "4: ACTIVE", "network_error", "port mlx5_1 port 1"),
    (rdma, "DOWN", "ACTIVE", "network_error", "port mlx5_1/1"),
    (rdma_json, "DISABLED", "LINK_UP", "network_error", "port mlx5_1 port 1"),
    (
        ibdiagnet,
        '-W- n1/P1 "symbol_error_counter" increased (delta=9)',
        "-I- Ports checked",
        "network_error",
        "port n1/P1",
    ),
    (kubectl, "NotReady,SchedulingDisabled", "Ready,SchedulingDisabled", "node_failure", "n9"),
    (sinfo, "down*", "alloc", "node_failure", "n9"),
]
IDS = [f"{report.__name__}-{number}" for number, (report, *_) in enumerate(ROWS)]


@pytest.mark.parametrize(("report", "bad", "good", "reason", "device"), ROWS, ids=IDS)
def test_a_fault_names_its_device_and_a_healthy_report_says_that_it_shows_none(
    report: Callable[..., str], bad: object, good: object, reason: str, device: str
) -> None:
    assert told(report(bad)) == [(reason, device)]
    assert told(report(good)) == []
    (only,) = read(report(good))
    assert isinstance(only, NoFault)
    assert "no fault" in only.text


def test_counts_of_corrected_errors_and_of_use_are_no_faults() -> None:
    assert told(nvidia_q()) == []


def table(tool: str, heading: tuple[str, str], *devices: tuple[str, str]) -> str:
    """As nvidia-smi's kin draw one: a heading of two rows, and two rows for each device."""
    rule = f"+{'-' * 24}+{'-' * 24}+{'-' * 26}+\n"
    rows = (f"{first}\n{second}\n{rule}" for first, second in devices)
    head = f"{heading[0]}\n{heading[1]}\n{rule.replace('-', '=')}"
    return f"+{'-' * 76}+\n| {tool:<75}|\n{rule}{head}{''.join(rows)}"


GAUDI = (
    "| AIP  Name        Persi | Bus-Id        Disp.A   | Volatile Uncor-Events    |",
    "| Fan  Temp  Perf  Pwr   |         Memory-Usage   | AIP-Util  Compute M.     |",
)
CAMBRICON = (
    "| Card  Name    Firmware | Inited          Driver | Util        Ecc-Error    |",
    "| Fan   Temp         Pwr |         Memory-Usage   |         vMemory-Usage    |",
)


def gaudi(count: str, util: str = "97%") -> tuple[str, str]:
    return (
        f"|   1  HL-325L      N/A  | 0000:e9:00.0     N/A   | {count:>22}   |",
        f"| N/A   36C   P0   226W  | 1184MiB / 131072MiB    | {util:>7}            0%   |",
    )


def test_a_value_counts_under_the_heading_of_its_own_row_alone() -> None:
    assert told(table("HL-SMI Version: 1.21", GAUDI, gaudi("0"))) == []
    assert told(table("HL-SMI Version: 1.21", GAUDI, gaudi("4", "0%"))) == [("ecc_error", "0000:e9:00.0")]
    card = "| 1     M370      v1.1.6 | On              v4.20  | {:<10}  {:<12} |"
    usage = "|  0%   32C        30 W  |     0 MiB/ 23308 MiB   |    0 MiB/1048576 MiB     |"
    assert told(table("CNMON v4.20.11", CAMBRICON, (card.format("90%", "N/A"), usage))) == []
    assert told(table("CNMON v4.20.11", CAMBRICON, (card.format("90%", "12"), usage))) == [("ecc_error", "1")]


def sample(index: int, **counts: int) -> str:
    devices = [{"neuron_device_index": index, "mem_ecc_corrected": 9, **counts}]
    return json.dumps({"neuron_runtime_data": [], "system_data": {"neuron_hw_counters": {"neuron_devices": devices}}})


def test_of_a_monitor_s_samples_what_rose_counts_and_where_it_did() -> None:
    lines = [sample(3, mem_ecc_uncorrected=count) for count in (1, 1, 2, 2)]
    (one,) = read("\n".join(lines))
    assert isinstance(one, Evidence)
    assert (one.reason, one.gpu, one.line) == ("ecc_error", "3", 3)
    assert told("\n".join(lines[:2])) == []
    assert told(lines[0]) == [("ecc_error", "3")]


def test_a_report_below_the_command_that_printed_it_is_read_with_its_lines() -> None:
    text = f"# mlxlink -d mlx5_4 -m -c\n\n{mlxlink('Polling')}"
    (one,) = read(text)
    assert isinstance(one, Evidence)
    assert (one.reason, text.splitlines()[one.line - 1].split()[-1]) == ("network_error", "Polling")
    assert told(f"[root@n7 ~]# nvidia-smi\n{nvidia_table('0')}") == []


def test_what_may_be_old_is_said_to_be_so_and_a_failed_remapping_is_of_now() -> None:
    for old in (nvidia_q(aggregate=3), nvidia_q(retired=2)):
        (one,) = read(old)
        assert isinstance(one, Evidence)
        assert (one.reason, one.gpu) == ("ecc_error", BUS)
        assert one.text.endswith("perhaps of an earlier time")
    (now,) = read(nvidia_q(failed="Yes", aggregate=3))
    assert isinstance(now, Evidence)
    assert "remapping failure occurred Yes, ecc errors aggregate dram uncorrectable 3" in now.text
    assert told(nvidia_xml(0, "Yes")) == [("ecc_error", BUS)]


def test_a_gpu_that_was_slowed_down_is_shown_without_a_reason(tmp_path: Path) -> None:
    assert told(nvidia_q(hot="Active")) == [("unknown", BUS)]
    code, text = diagnosed(tmp_path, **{"smi.txt": nvidia_q(hot="Active")})
    assert code == 3
    assert text.startswith(f"cause unknown: GPU {BUS}: ")
    assert "hw slowdown Active" in text


def test_what_a_diagnostic_warns_of_goes_before_the_name_of_its_test() -> None:
    assert told(dcgm("Fail", "pcie", "GPU 1: NVLink 3 is down")) == [("nvlink_error", "1")]
    assert told(dcgm("Fail", "pcie", "GPU 1 has uncorrectable memory errors")) == [("ecc_error", "1")]
    assert told(dcgm("Fail", "pcie")) == [("cuda_error", "1")]


# ---- beside other files ----------------------------------------------------------------------------------------------


def diagnosed(folder: Path, **files: str) -> tuple[int, str]:
    given = folder / "given"
    given.mkdir(exist_ok=True)
    for name, text in files.items():
        (given / name).write_text(text)
    result = CliRunner().invoke(app, ["diagnose", str(given), "--home", str(folder / "home")])
    return result.exit_code, result.stdout


TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    batch["ids"]\nKeyError: \'ids\'\n'
)


def test_a_report_names_the_cause_where_no_log_does(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, **{"ibstat.txt": ibstat("Down")})[1].startswith("network_error: ")
    assert diagnosed(tmp_path, **{"train.log": TRACEBACK})[1].startswith("key_error: ")


def test_a_job_s_log_that_begins_with_a_report_is_read_too(tmp_path: Path) -> None:
    code, text = diagnosed(tmp_path, **{"train.log": nvidia_table("0") + TRACEBACK})
    assert (code, text.split(":")[0]) == (0, "key_error")


def test_a_log_below_a_report_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_MOST_OF_A_REPORT", 4096)
    text = diagnosed(tmp_path, **{"train.log": nvidia_table("0") + "words\n" * 5000 + TRACEBACK})[1]
    assert text.startswith("key_error: ")
    assert f"line {nvidia_table('0').count(chr(10)) + 5004}" in text


def test_a_healthy_report_is_told_as_one(tmp_path: Path) -> None:
    code, text = diagnosed(tmp_path, **{"smi.txt": nvidia_q()})
    assert code == 3
    assert "nvidia-smi -q shows no fault: 2 GPUs" in text
    assert "known error pattern" not in text


# ---- bad input -------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ROWS), st.data())
def test_any_text_ends_in_evidence_or_none(
    row: tuple[Callable[..., str], object, object, str, str], data: st.DataObject
) -> None:
    text = row[0](row[1])
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from(["", "9" * 400, "[" * 2000, "\0", "|", ": ", "\n\n", '"', "-1", "null", "²"]))
    cut = data.draw(st.integers(0, 40))
    changed = text[:at] + put + text[at + cut :]
    assert all(isinstance(one, Evidence | NoFault) for one in read(changed))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"gpu": 0, "ecc": ' * 5000, "x, " * 100_000, "=" * 100_000, "# " * 50_000, "$ a\n" * 5000]
)
def test_long_beginnings_are_soon_dismissed(text: str) -> None:
    assert not tool_reports.looks_like(text[: 16 << 10]) or list(read(text)) is not None


def test_counts_beyond_every_number_are_none() -> None:
    assert told(amd(10**17)) == [("ecc_error", "1")]
    assert told(amd(10**40)) == []


def test_evidence_of_reports_is_a_symptom_of_a_known_tool() -> None:
    found = [one for report, bad, *_ in ROWS for one in read(report(bad)) if isinstance(one, Evidence)]
    assert {one.role for one in found} == {Role.SYMPTOM}
    assert {one.source for one in found} == {tool_reports.SOURCE}
