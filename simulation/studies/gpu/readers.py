"""What nvidia-smi and NVML say of a card, read by the provider's telemetry and by the tenant's readers of versions."""

import ctypes
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from federation.base.clock import SECONDS_PER_HOUR
from provider_server.fleet.telemetry.quality import Tally
from provider_server.fleet.telemetry.runs import segments
from provider_server.fleet.telemetry.samples import UNKNOWN, Chunk, SeriesBook, Window
from simulation.studies.gpu.card import asked
from simulation.studies.gpu.notes import Notes, Skipped
from tenant_client.doctor.run.hook.sampler import software
from tenant_client.doctor.sources.software import software_of

FIELDS = (
    "temperature.gpu", "power.draw", "clocks.current.sm", "clocks.current.memory", "utilization.gpu",
    "utilization.memory", "memory.used", "memory.free",
)  # fmt: skip
# As nvidia_gpu_exporter names a field by its unit, and scales it.
UNITS = {"W": ("_watts", 1.0), "MHz": ("_clock_hz", 1e6), "%": ("_ratio", 0.01), "MiB": ("_bytes", 2.0**20)}
NVML: dict[str, tuple[str, tuple[int, ...], Any]] = {
    "nvml_temperature_gpu": ("nvmlDeviceGetTemperature", (0,), ctypes.c_uint),
    "nvml_power_usage_milliwatts": ("nvmlDeviceGetPowerUsage", (), ctypes.c_uint),
    "nvml_total_energy_millijoules": ("nvmlDeviceGetTotalEnergyConsumption", (), ctypes.c_ulonglong),
}
LOOKS, AT_WORK, WORK_S = 6, 3, 1.5
Sample = tuple[float, str, float]


def read(notes: Notes) -> None:
    """At rest and at work: every value is plausible, the work shows, and all name one version of the driver."""
    import torch

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise Skipped(f"no NVML: {error}") from error
    samples: list[Sample] = []
    one = torch.randn(8192, 8192, dtype=torch.bfloat16, device=notes.device)
    driver = ctypes.create_string_buffer(96)
    notes.check("NVML starts", good=library.nvmlInit_v2() == library.nvmlSystemGetDriverVersion(driver, 96) == 0)
    for look in range(LOOKS):
        until_s = time.monotonic() + WORK_S
        while look >= AT_WORK and time.monotonic() < until_s:
            torch.matmul(one, one)
            torch.cuda.synchronize()
        now_s = time.time()
        samples += [(now_s, *value) for value in (*exported(asked(*FIELDS)).items(), *of_nvml(library).items())]
        time.sleep(0.5)
    tally = Tally()
    told, wanted = summarised(samples, tally), {name for _, name, _ in samples}
    notes.figures(**told)
    said = f"{len(told)} of {len(wanted)}, without {sorted(wanted - set(told))}: {tally.quality()}"
    notes.check("every field is a metric, and every value plausible", said, good=wanted <= set(told))
    used = told.get("nvidia_smi_utilization_gpu_ratio", (0.0, 0.0))
    notes.check("a card at work is seen to be", f"used from {used[0]:.0f}% to {used[1]:.0f}%", good=used[1] > 50)
    program = ["nvidia-smi"]
    table = subprocess.run(program, capture_output=True, text=True, timeout=30, check=False).stdout
    notes.evidence("nvidia-smi", table)
    found = [driver.value.decode(), *software_of(table.splitlines()).versions.get("driver", ("nothing",))]
    found += [software().get("driver", found[0])]
    notes.check("NVML, nvidia-smi as read and the hook name one driver", found, good=len(set(found)) == 1)


def exported(said: Mapping[str, str]) -> dict[str, float]:
    """Metrics as nvidia_gpu_exporter makes them of a row of nvidia-smi; what has no number is left out.

    >>> exported({"temperature.gpu": "41", "power.draw [W]": "70.25 W", "utilization.gpu [%]": "[N/A]"})
    {'nvidia_smi_temperature_gpu': 41.0, 'nvidia_smi_power_draw_watts': 70.25}
    """
    found = {}
    for head, text in said.items():
        field, _, unit = head.rstrip("]").partition(" [")
        suffix, scale = UNITS.get(unit, ("", 1.0))
        if number := re.match(r"\d+(?:\.\d+)?", text):
            found[f"nvidia_smi_{field.replace('.', '_')}{suffix}"] = float(number[0]) * scale
    return found


def of_nvml(library: Any) -> dict[str, float]:
    """What NVML says of the first card; what it does not know is left out."""
    device, found = ctypes.c_void_p(), {}
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    for name, (function, arguments, kind) in NVML.items():
        value = kind()
        if getattr(library, function)(device, *arguments, ctypes.byref(value)) == 0:
            found[name] = float(value.value)
    return found


def summarised(samples: Iterable[Sample], tally: Tally) -> dict[str, tuple[float, float]]:
    """The least and the largest value of each metric, by the name that it was exported under, as telemetry reads it."""
    rows, book = sorted(samples), SeriesBook(tally)
    labels = {"uuid": "GPU-0", "instance": "card:9835"}
    numbered = [(book.number({"__name__": name, **labels}, 1), at_s, value) for at_s, name, value in rows]
    series, time_s, value = zip(*(row for row in numbered if row[0] != UNKNOWN), strict=True)
    hour = int(rows[0][0] // SECONDS_PER_HOUR)
    chunk = Chunk(np.array(series, np.uint32), np.array(time_s), np.array(value))
    found = segments(chunk, book, Window(hour, hour + 2, rows[-1][0] + 1), 0.0)
    told: dict[str, tuple[float, float]] = {}
    for number, *extremes in zip(found.series, found.low, found.high, strict=True) if found else ():
        values = [*extremes, *told.get(book.series[number].alias, ())]
        told[book.series[number].alias] = float(min(values)), float(max(values))
    return told
