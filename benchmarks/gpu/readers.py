"""What nvidia-smi and NVML say of a card, read by the provider's telemetry and by the tenant's reader of versions."""

import ctypes
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from benchmarks.gpu.card import asked
from benchmarks.gpu.notes import Notes, Skipped
from federation.runtime.clock import SECONDS_PER_HOUR
from provider_server.fleet.telemetry.quality import Tally
from provider_server.fleet.telemetry.runs import Segments, segments
from provider_server.fleet.telemetry.samples import UNKNOWN, Chunk, SeriesBook, Window
from tenant_client.run.hook.sampler import software
from tenant_client.sources.software import software_of

FIELDS = (
    "temperature.gpu", "power.draw", "clocks.current.sm", "clocks.current.memory", "utilization.gpu",
    "utilization.memory", "memory.used", "memory.free",
)  # fmt: skip
# As nvidia_gpu_exporter names a field by its unit, and scales it.
UNITS = {
    "W": ("_watts", 1.0),
    "MHz": ("_clock_hz", 1e6),
    "%": ("_ratio", 0.01),
    "MiB": ("_bytes", 2.0**20),
    "": ("", 1.0),
}
NVML = {
    "nvml_temperature_gpu": ("nvmlDeviceGetTemperature", (0,), ctypes.c_uint),
    "nvml_power_usage_milliwatts": ("nvmlDeviceGetPowerUsage", (), ctypes.c_uint),
    "nvml_total_energy_millijoules": ("nvmlDeviceGetTotalEnergyConsumption", (), ctypes.c_ulonglong),
}
LOOKS, BETWEEN_S, WORK_S = 6, 0.5, 1.5
Samples = list[tuple[float, str, float]]


def read(notes: Notes) -> None:
    """Both at rest and at work: every value is plausible, and work shows; the driver is the same everywhere."""
    import torch

    library, driver = nvml()
    samples: Samples = []
    one = torch.randn(8192, 8192, dtype=torch.bfloat16, device=notes.device)
    for look in range(LOOKS):
        until_s = time.monotonic() + WORK_S
        while look >= LOOKS // 2 and time.monotonic() < until_s:
            torch.matmul(one, one)
            torch.cuda.synchronize()
        now_s = time.time()
        samples += [(now_s, name, value) for name, value in {**exported(asked(*FIELDS)), **library()}.items()]
        time.sleep(BETWEEN_S)
    tally = Tally()
    told = summarised(samples, tally)
    notes.figures(**{name: list(values) for name, values in told.items()})
    wanted = {name for _, name, _ in samples}
    said = f"{len(told)} of {len(wanted)}, without {sorted(wanted - set(told))}: {tally.quality()}"
    notes.check("every field is a metric, and every value plausible", said, good=wanted <= set(told))
    used = told.get("nvidia_smi_utilization_gpu_ratio", (0.0, 0.0))
    notes.check("a card at work is seen to be", f"used from {used[0]:.0f}% to {used[1]:.0f}%", good=used[1] > 50)
    _versions(notes, driver)


def exported(said: Mapping[str, str]) -> dict[str, float]:
    """Metrics as nvidia_gpu_exporter makes them of a row of nvidia-smi; what has no number is left out.

    >>> exported({"temperature.gpu": "41", "power.draw [W]": "70.25 W", "utilization.gpu [%]": "[N/A]"})
    {'nvidia_smi_temperature_gpu': 41.0, 'nvidia_smi_power_draw_watts': 70.25}
    """
    found = {}
    for head, text in said.items():
        field, _, unit = head.rstrip("]").partition(" [")
        number = re.match(r"\d+(?:\.\d+)?", text)
        suffix, scale = UNITS.get(unit, ("", 1.0))
        if number:
            found[f"nvidia_smi_{field.replace('.', '_')}{suffix}"] = float(number[0]) * scale
    return found


def nvml() -> tuple[Callable[[], dict[str, float]], str]:
    """A function that asks the first card's values, and the driver's version; Skipped where there is no library."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise Skipped(f"no NVML: {error}") from error
    device, driver = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    if code := library.nvmlInit_v2():
        raise Skipped(f"NVML does not start: error {code}")
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    library.nvmlSystemGetDriverVersion(driver, len(driver))

    def values() -> dict[str, float]:
        found = {}
        for name, (function, arguments, kind) in NVML.items():
            value = kind()
            if getattr(library, function)(device, *arguments, ctypes.byref(value)) == 0:
                found[name] = float(value.value)
        return found

    return values, driver.value.decode()


def summarised(samples: Iterable[tuple[float, str, float]], tally: Tally) -> dict[str, tuple[float, float]]:
    """The least and the largest value of each metric, by the name that it was exported under, as telemetry reads it."""
    rows = sorted(samples)
    book = SeriesBook(tally)
    numbers = [book.number({"__name__": name, "uuid": "GPU-0", "instance": "card:9835"}, 1) for _, name, _ in rows]
    kept = [(number, row) for number, row in zip(numbers, rows, strict=True) if number != UNKNOWN]
    hour = int(rows[0][0] // SECONDS_PER_HOUR)
    window = Window(hour, hour + 2, rows[-1][0] + 1)
    chunk = Chunk(
        np.array([number for number, _ in kept], np.uint32),
        np.array([row[0] for _, row in kept]),
        np.array([row[2] for _, row in kept]),
    )
    found: Segments | None = segments(chunk, book, window, 0.0)
    told: dict[str, tuple[float, float]] = {}
    for series, *extremes in zip(found.series, found.low, found.high, strict=True) if found else ():
        values = [*extremes, *told.get(book.series[series].alias, ())]
        told[book.series[series].alias] = float(min(values)), float(max(values))
    return told


def _versions(notes: Notes, driver: str) -> None:
    asks = ["nvidia-smi"]
    table = subprocess.run(asks, capture_output=True, text=True, timeout=30, check=False).stdout
    notes.evidence("nvidia-smi", table)
    read_by_tenant = {name: sorted(map(str, found)) for name, found in software_of(table.splitlines()).versions.items()}
    of_hook = software().get("driver", "")
    said = f"NVML {driver}, nvidia-smi as read {read_by_tenant}, hook {of_hook or 'sees no driver'}"
    notes.check(
        "one version of the driver", said, good=[driver] == read_by_tenant.get("driver") and of_hook in ("", driver)
    )
