"""Every exporter's own names, from a stored sample of its text: failures and wear are seen, and what is missing told.

A sample is played for a dozen nodes: each failure and each wear of `INCIDENTS` befalls one of them.
"""

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

from federation.protocol.toml_tables import BadTable
from provider_server.fleet.analysis.buildup import signals
from provider_server.fleet.analysis.fleet_events import LOST, hardware_failures
from provider_server.fleet.learning import hardware
from provider_server.fleet.telemetry import exporters
from provider_server.fleet.telemetry.catalogue import METRICS, Aliases, failing, parse
from provider_server.fleet.telemetry.files import FileSource
from provider_server.fleet.telemetry.inventory import Inventory
from provider_server.fleet.telemetry.prometheus import PrometheusSettings, PrometheusSource
from provider_server.fleet.telemetry.quality import Reason, Tally
from provider_server.fleet.telemetry.recipe import FAILURES, Ingredient, Recipe, load
from provider_server.fleet.telemetry.samples import HOUR_S, NODE_LABELS, SeriesBook, Window
from provider_server.fleet.telemetry.summaries import summarise
from provider_server.program.verbs.missing_metrics import exporter_rows
from tests.provider_server.fleet.test_telemetry import TABLE
from tests.provider_server.fleet.test_telemetry_prometheus import prometheus
from tests.provider_server.program.test_verbs_telemetry import call, told
from tests.support.waiting import until

SAMPLES = Path(__file__).parent / "telemetry" / "exporters"
DOCS = Path(__file__).parents[3] / "docs" / "nodes.md"
START, HOURS, STEP_S = 490_000, 40, 900
NODES = 14
REPLAYS = "pcie_replays"
AT = START + 20.5  # when failures come

# By exporter: failures (a series, its value after, the kind) and wear (a series, what it gains each hour, the signal; a
# gauge gains at once).
Incident = tuple[str, float, str]
INCIDENTS: dict[str, tuple[Sequence[Incident], Sequence[Incident]]] = {
    "dcgm-exporter": (
        [("XID_ERRORS", 79, "GPU fell off the bus"), ("REMAP_FAILURE", 1, "row remapping failure")],
        [("SBE_VOL", 20, "ecc_corrected"), ("REPLAY", 30, "pcie_replays"), ("GPU_TEMP", 20, "gpu_temperature")],
    ),
    "nvidia_gpu_exporter": (
        [("xid_errors", 1, "GPU fell off the bus"), ("rows_failure", 1, "row remapping failure")],
        [("thermal_slowdown", 900, "thermal_violation"), ("ecc_errors", 20, "ecc_corrected")],
    ),
    "amd_smi_exporter": ([("", 0, LOST)], [("temperature", 20_000, "gpu_temperature")]),
    "device-metrics-exporter": (
        [("gpu_health", 0, "GPU unhealthy"), ('severity="fatal"', 30, "fatal RAS event")],
        [("ecc_correct", 20, "ecc_corrected"), ("replay", 30, "pcie_replays"), ("junction", 20, "gpu_temperature")],
    ),
    "xpum-exporter": (
        [
            ('cache_errors_total.*"uncorrectable"', 1, "uncorrectable error"),
            ('non_compute.*"uncorrectable"', 3, "uncorrectable error"),
        ],
        [
            ('non_compute.*"correctable"', 20, "ecc_corrected"),
            ('sub_dev="1"', 20, "gpu_temperature"),
            ('"mem"', 20, "memory_temperature"),
        ],
    ),
    "xpumd": (
        [('memory_errors.*"uncorrectable"', 1, "uncorrectable error"), ('"cache_errors', 1, "uncorrectable error")],
        [('"correctable"', 20, "ecc_corrected"), ('"memory",', 20, "memory_temperature")],
    ),
    "gaudi-metric-exporter": (
        [("double_bit", 1, "uncorrectable error"), ('port="1"', 0, "accelerator link down")],
        [("single_bit", 1, "rows_remapped_correctable"), ("replay", 30, "pcie_replays")],
    ),
    "neuron-monitor": (
        [('"mem_ecc_uncorrected', 1, "uncorrectable error"), ('"sram_ecc_uncorrected', 1, "uncorrectable error")],
        [('"mem_ecc_corrected', 20, "ecc_corrected"), ('"sram_ecc_corrected', 20, "ecc_corrected")],
    ),
    "tpu-device-plugin": ([("", 0, LOST)], []),
    "npu-exporter": (
        [
            ("health", 0, "GPU unhealthy"),
            ("double_bit_error", 1, "uncorrectable error"),
            ("link_status", 0, "accelerator link down"),
        ],
        [
            ("single_bit_error", 20, "ecc_corrected"),
            ("isolated", 1, "rows_remapped_correctable"),
            ("hccs.*cnt_2", 30, "hccs_crc_errors"),
            ("link_up_num", 1, "device_link_ups"),
            ("hbm_temperature", 20, "memory_temperature"),
        ],
    ),
    "node_exporter": ([("", 0, LOST)], [("link_downed", 1, "ib_link_downed"), ("edac", 30, "edac_corrected")]),
}


@dataclass(frozen=True)
class Line:
    """A series of a sample."""

    text: str
    labels: dict[str, str]
    value: float

    def on(self, node: int) -> dict[str, str]:
        """Its labels on a node; what names a node in the sample names this one."""
        own = {label: f"n{node:02}" if label in NODE_LABELS else text for label, text in self.labels.items()}
        return own | {"instance": f"n{node:02}:9400"}


def sample(exporter: str) -> list[Line]:
    text = (SAMPLES / f"{exporter}.prom").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = [one for line in lines for family in text_string_to_metric_families(line + "\n") for one in family.samples]
    return [Line(line, {"__name__": one.name} | one.labels, one.value) for line, one in zip(lines, found, strict=True)]


def history(line: Line, node: int, failures: Sequence[Incident], wear: Sequence[Incident]) -> list[tuple[float, float]]:
    """Times and values of a series on a node: on the first nodes there are failures, then nodes that wear."""
    mine = dict(enumerate([*failures, *wear])).get(node)
    mine = mine if mine and re.search(mine[0], line.text) else None
    owner = Aliases(METRICS).find(line.labels)
    times = [START + step * STEP_S / HOUR_S for step in range(HOURS * HOUR_S // STEP_S)]
    found = [(at, line.value) for at in times if owner is None or not owner[0].born]
    if mine and node < len(failures):
        found = [(at, value) for at, value in found if at < AT]
        found += [(at, mine[1]) for at in times if at >= AT and mine[2] != LOST]
    elif mine:
        found = [(at, value + mine[1] * (1 if mine[2].endswith("temperature") else at - START)) for at, value in found]
    return [(at * HOUR_S, value) for at, value in found]


def write(file: Path, exporter: str) -> Path:
    failures, wear = INCIDENTS[exporter]
    beside = [] if wear else sample("node_exporter")  # a node of which no signal is known has no state to lose
    schema = {"time_s": pl.Float64, "value": pl.Float64}
    frames = []
    for node in range(NODES):
        for line in [*sample(exporter), *beside]:
            texts = {label: text for label, text in line.on(node).items() if text}
            labels = {label.replace("__name__", "metric"): pl.lit(text) for label, text in texts.items()}
            times = history(line, node, failures, wear)
            frames.append(pl.DataFrame(times, schema=schema, orient="row").with_columns(**labels))
    pl.concat(frames, how="diagonal").sort("time_s", maintain_order=True).write_parquet(file)
    return file


@pytest.mark.parametrize("exporter", INCIDENTS)
def test_failures_and_wear_of_an_exporter_are_seen_and_nothing_else(exporter: str, tmp_path: Path) -> None:
    failures, wear = INCIDENTS[exporter]
    source = FileSource([write(tmp_path / "samples.parquet", exporter)])
    window = Window(START, START + HOURS, float(HOUR_S * (START + HOURS)))
    seen = hardware.follow(source, window, Inventory(), None)
    failed = pl.concat(seen.at_risk()).filter(pl.col("kind").is_not_null()).select("node", "kind").rows()
    assert sorted(failed) == sorted((f"n{node:02}", kind) for node, (_, _, kind) in enumerate(failures))
    raised = {row["node"]: row["why"] for row in seen.last.filter(pl.col("level") > 0).iter_rows(named=True)}
    words = {signal.metric: signal.words for signal in signals()}
    expected = {f"n{len(failures) + place:02}": words[one[2]] for place, one in enumerate(wear)}
    assert raised.keys() == expected.keys(), raised
    assert all(expected[node] in why for node, why in raised.items()), raised
    assert seen.quality.of(Reason.DUPLICATE) == 0


def test_every_known_exporter_has_a_sample_whose_names_are_its_own() -> None:
    assert {file.stem for file in SAMPLES.iterdir()} == set(exporters.TABLE) == set(INCIDENTS)
    aliases = Aliases(METRICS)
    unknown = {"xpum_resets_total", "xpum_programming_errors_total"}  # a program can cause them
    for exporter in exporters.TABLE:
        for line in sample(exporter):
            name = line.labels["__name__"]
            assert exporters.TABLE[exporter].has(name)
            assert (aliases.find(line.labels) is None) == (
                name in unknown or "programming" in line.text or "non_fatal" in line.text
            ), line.text


def test_every_kind_of_failure_that_the_table_has_is_caused_by_some_incident() -> None:
    caused = {kind for failures, _ in INCIDENTS.values() for _, _, kind in failures}
    assert {kind for kind in failing().values() if "code" not in kind} <= caused


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("'p(['", "no regular"),
        ("'p{'", "no name of a metric"),
        ("'p{a=b}'", "no name of a metric"),
        ('\'p{a="1" b="2"}\'', "no name"),
    ],
)
def test_a_name_that_promql_would_not_take_is_refused(name: str, says: str) -> None:
    with pytest.raises(BadTable, match=says):
        parse(TABLE.replace("{ p = 1 }", f"{{ {name} = 1 }}"))


def test_a_series_with_other_labels_than_the_table_asks_for_is_unknown() -> None:
    book = SeriesBook(Tally())
    labels = {"__name__": "memory_used_node", "instance": "n1:2112", "accelerator_id": "1-0"}
    assert book.number(labels | {"make": "cloud-tpu"}, 1) == 0
    assert book.number(labels | {"make": "other"}, 1) == -1
    assert book.tally.quality().of(Reason.UNKNOWN_METRIC) == 1


# ---- a real Prometheus ---------------------------------------------------------------------------------------------


@contextmanager
def served(texts: dict[str, str]) -> Iterator[list[str]]:
    """Exporters that show these texts, which may be changed; their addresses."""

    def handler(name: str) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(texts[name].encode())

            def log_message(self, *_arguments: object) -> None:
                """Nothing on stderr."""

        return Handler

    with ExitStack() as stack:
        addresses = []
        for name in texts:
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler(name)))
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            stack.callback(server.shutdown)
            addresses.append(f"127.0.0.1:{server.server_port}")
        yield addresses


@pytest.mark.nightly
@pytest.mark.xdist_group("prometheus")
def test_a_real_prometheus_scrapes_the_samples_and_tells_failures_and_what_is_missing(tmp_path: Path) -> None:
    texts = {name: (SAMPLES / f"{name}.prom").read_text(encoding="utf-8") for name in INCIDENTS}
    texts = {name: text.replace("xxxx", name).replace("{}", "") for name, text in texts.items()}
    kinds = set()
    began_s = time.time()
    with served(texts) as addresses, prometheus(tmp_path, addresses) as url:
        source = PrometheusSource(PrometheusSettings(url))

        def names() -> frozenset[str]:
            return source.names(began_s - HOUR_S, time.time() + HOUR_S)

        until(lambda: len(exporters.found(names())) == len(INCIDENTS))
        for exporter, (failures, _) in INCIDENTS.items():
            for pattern, value, kind in failures:
                if kind == LOST or 'severity="fatal"' in pattern or "xid_errors" in pattern:
                    continue  # silence takes an hour; series that come with an event do not stand there at first
                kinds.add((exporter, kind))
                lines = texts[exporter].splitlines()
                changed = [re.sub(r" \S+$", f" {value:g}", one) if re.search(pattern, one) else one for one in lines]
                texts[exporter] = "\n".join(changed) + "\n"

        def failed() -> set[str]:
            book = SeriesBook(Tally())
            window = Window(int(began_s) // HOUR_S, int(time.time()) // HOUR_S + 1, time.time())
            events = pl.concat(hour.events for hour in summarise(source, book, window))
            return set(hardware_failures(events)["kind"])

        until(lambda: failed() >= {kind for _, kind in kinds})
        (tmp_path / "provider.toml").write_text(f'[telemetry]\nprometheus_url = "{url}"\n')
        rows = told("nodes", "recipe", "--missing", "--home", tmp_path)
        shown = call("nodes", "recipe", "--missing", "--home", tmp_path).stdout
    assert {row["exporter"] for row in rows} == set(INCIDENTS)
    missing = {row["exporter"]: {one["metric"]: one for one in row["missing"]} for row in rows}
    assert missing["dcgm-exporter"]["thermal_violation"]["told_by"] == ["nvidia_gpu_exporter"]
    assert missing["dcgm-exporter"]["nvlink_replays"]["wear"].startswith("NVLink retransmits: ")
    assert "xid" not in missing["dcgm-exporter"]
    assert missing["nvidia_gpu_exporter"].keys() >= {"ecc_uncorrected", "power"}
    assert "  nvlink_replays (DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL): wear is not seen: NVLink retrans" in shown


# ---- what is missing -----------------------------------------------------------------------------------------------


def test_what_is_missing_is_told_by_exporter() -> None:
    present = frozenset({"DCGM_FI_DEV_GPU_TEMP", "gpu_ecc_correct_total", "up"})
    assert exporters.found(present) == ["dcgm-exporter", "device-metrics-exporter"]
    lacks = {(one.exporter.name, one.metric.name): one for one in exporters.missing(present)}
    assert ("dcgm-exporter", "gpu_temperature") not in lacks
    assert lacks["dcgm-exporter", "ecc_corrected"].told_by == ("device-metrics-exporter",)
    assert ("device-metrics-exporter", "gpu_health") in lacks
    assert ("device-metrics-exporter", "fatal_ras_event") not in lacks  # a series comes with its first event
    assert exporters.found(frozenset({"up", "gpu"})) == []


def test_what_is_missing_costs_failures_or_wear_and_what_the_recipe_found_it_worth(tmp_path: Path) -> None:
    figure = "raised 4 times, then 3 failures"
    kept = {name: Ingredient(60, "asked for", figure if name == REPLAYS else "") for name in (*FAILURES, REPLAYS)}
    (tmp_path / "recipe.toml").write_text(Recipe(kept).toml())
    judged = load(tmp_path / "recipe.toml")
    assert judged.metrics == kept
    assert judged.names == {*kept, *failing()}  # failures are read whatever a recipe says
    (row,) = exporter_rows(frozenset({"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"}), judged.metrics)
    assert [one["metric"] for one in row["missing"]][:2] == ["row_remap_failure", "xid"]
    found = {one["metric"]: one for one in row["missing"]}
    assert (row["known"], len(found)) == (30, 28)
    assert found["xid"]["failure"] == "15 kinds of failure, by Xid codes"
    assert (found[REPLAYS]["failure"], found[REPLAYS]["worth"]) == (None, figure)
    assert (found["sm_active"]["failure"], found["sm_active"]["wear"]) == (None, None)


def test_names_are_asked_of_prometheus_alone(tmp_path: Path) -> None:
    (tmp_path / "provider.toml").write_text("")
    (tmp_path / "a.csv").write_text("time_s,metric,value\n")
    refused = call("nodes", "recipe", "--missing", "--home", tmp_path, "--file", tmp_path / "a.csv")
    assert (refused.exit_code, "--missing asks Prometheus" in refused.stderr) == (2, True)
    refused = call("nodes", "recipe", "--missing", "--home", tmp_path)
    assert (refused.exit_code, "prometheus_url" in refused.stderr) == (2, True)


def test_the_page_has_each_exporter_with_what_is_known_of_it() -> None:
    page = DOCS.read_text(encoding="utf-8")
    worn = {signal.metric for signal in signals()}
    for name, metrics in exporters.known().items():
        fails = ", ".join(f"`{one}`" for one in metrics if one in failing()) or "none"
        wears = ", ".join(f"`{one}`" for one in metrics if one in worn) or "none"
        one = exporters.TABLE[name]
        row = f"| `{name}` | {one.repository} {one.version} | {len(metrics)} | {fails} | {wears} |"
        assert row in page, row
