"""What reading from a real Prometheus costs, in two sizes, and what that makes for a large fleet. JSON on stdout.

    python -m benchmarks.telemetry_prometheus [--small]

Samples of `NODES` nodes with 8 GPUs, four metrics and one sample a minute, are put into Prometheus' blocks by
`promtool`, and read and summarised as `hazard` reads them, hour by hour. The two sizes differ in nodes; each costs a
part per hour (a question for each metric of the table) and a part per sample, and the last line has both for 1,000
nodes and 14 days. Memory is that of a fresh process; it does not grow with hours. Needs prometheus and promtool.

Not promised: a Prometheus that others ask, too, or one that is far away.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np

from benchmarks.figures import Figure, show
from provider_server.fleet.telemetry.prometheus import PrometheusSettings, PrometheusSource
from provider_server.fleet.telemetry.quality import Tally
from provider_server.fleet.telemetry.samples import HOUR_S, SeriesBook, Window
from provider_server.fleet.telemetry.summaries import summarise
from simulation.run.node_fleet import cpu_seconds
from simulation.run.processes import free_ports
from tests import needs
from tests.support.waiting import until

NODES, HOURS, SMALL_NODES, SMALL_HOURS = (25, 100), 6, (2, 4), 2
GPUS, STEP_S, HOST = 8, 60, "127.0.0.1"
METRICS = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_XID_ERRORS"
WANTED_NODES, WANTED_HOURS = 1_000, 14 * 24
FOREVER = "100y"


def read(nodes: int, hours: int) -> Figure:
    """One reading of so many nodes and hours, in this process."""
    end_hour = int(time.time() // HOUR_S) - 3  # whole blocks, which are in order
    window = Window(end_hour - hours, end_hour, float(HOUR_S * end_hour))
    with TemporaryDirectory(prefix="pharoah-bench-") as name:
        folder = Path(name)
        backfill(folder, nodes, window)
        with prometheus(folder) as (url, pid):
            book, before_s, theirs_s = SeriesBook(Tally()), time.process_time(), cpu_seconds(pid)
            source = PrometheusSource(PrometheusSettings(url))
            rows = sum(summary.rows.height for summary in summarise(source, book, window))
            own_s, theirs_s = time.process_time() - before_s, cpu_seconds(pid) - theirs_s
    return {
        "figure": "telemetry_prometheus",
        "nodes": nodes,
        "hours": hours,
        "samples": book.tally.quality().read,
        "rows": rows,
        "cpu_seconds": own_s,
        "prometheus_cpu_seconds": theirs_s,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def backfill(folder: Path, nodes: int, window: Window) -> None:
    """Blocks with the samples of the window."""
    rng, file = np.random.default_rng(0), folder / "samples.txt"
    times = range(HOUR_S * window.start_hour, HOUR_S * window.end_hour, STEP_S)
    with file.open("w") as text:
        for metric in METRICS:
            for node in range(nodes):
                for gpu in range(GPUS):
                    labels = f'{{Hostname="node{node:04}",gpu="{gpu}"}}'
                    values = rng.integers(30, 60, len(times)).tolist() if metric in METRICS[:2] else [0] * len(times)
                    pairs = zip(values, times, strict=True)
                    text.writelines(f"{metric}{labels} {value} {at}\n" for value, at in pairs)
        text.write("# EOF\n")
    tool = str(needs.program("promtool"))
    subprocess.run(
        [tool, "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "tsdb")],
        check=True,
        capture_output=True,
    )
    file.unlink()


@contextmanager
def prometheus(folder: Path) -> Iterator[tuple[str, int]]:
    """A Prometheus over these blocks that scrapes nothing: its address and process."""
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": []}))  # JSON is YAML
    options = ["--config.file", folder / "prometheus.yml", "--storage.tsdb.path", folder / "tsdb"]
    with free_ports(HOST, 1) as (port,), (folder / "log").open("wb") as log:
        url = f"http://{HOST}:{port}"
        kept = f"--storage.tsdb.retention.time={FOREVER}"
        command = [str(needs.program("prometheus")), *map(str, options), kept, "--web.listen-address", f"{HOST}:{port}"]
        with subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                until(lambda: _ready(url), "Prometheus is ready")
                yield url, process.pid
            finally:
                process.terminate()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", trust_env=False).is_success
    except httpx.TransportError:
        return False


def figures(sizes: tuple[int, int], hours: int) -> Iterator[Figure]:
    """A line for each size, and one for the large fleet."""
    read_ = []
    for nodes in sizes:
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            read_.append(fresh.submit(read, nodes, hours).result())
        yield read_[-1]
    yield large(*read_)


def large(few: Figure, many: Figure) -> Figure:
    """Seconds and memory for the wanted fleet and time, on the line through two sizes; seconds grow with hours."""
    steps = (WANTED_NODES - few["nodes"]) / (many["nodes"] - few["nodes"])
    at = {key: few[key] + steps * (many[key] - few[key]) for key in few if key not in ("figure", "hours", "nodes")}
    times = WANTED_HOURS / few["hours"]
    grown = {key: value if key == "peak_gb" else value * times for key, value in at.items()}
    return {"figure": "telemetry_prometheus_extended", "nodes": WANTED_NODES, "hours": WANTED_HOURS, **grown}


if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - {"--small"}:
        sys.exit(f"telemetry_prometheus.py: error: no option {sorted(unknown)}\nhint: --small")
    show(figures(SMALL_NODES, SMALL_HOURS) if "--small" in sys.argv else figures(NODES, HOURS))
