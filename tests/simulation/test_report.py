"""The report page: complete, self-contained, safe against hostile names, and calm about what is missing."""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulation.judge.report import render, write_report
from tests.support import browsers

ROOT = Path(__file__).resolve().parents[2]

WORKLOADS, CONTEXTS, LEVELS, WEEKS, PLANTED = 24, 8, 3, 13, 6
BANDS = ("0–6 h", "6–24 h", "24–72 h", "> 72 h")
PICTURES = 2 + len(BANDS) + 2 + 2 + 2 + 1
IMPACT = {
    "mismatch_gpu_hours_avoided_share": 0.57,
    "false_refusal_share": 0.0002,
    "warned_30min_share": 0.73,
    "false_hints_per_1000_lease_hours": 0.61,
    "gpu_hours_saved": 251513.3,
}
HOSTILE = (
    """</title></style><script>alert("1")</script><img src='https://evil.example/x'> $x_{1} ${title} & 'quoted' -->"""
)


def _mismatches(rng: np.random.Generator) -> list[dict[str, Any]]:
    """One pair in ten has no verdict; of the planted ones the first is missed, and one other pair is a false alarm."""
    pairs = rng.permutation(WORKLOADS * CONTEXTS)
    shares = {int(pairs[0]): 0.3, **{int(pair): 0.97 for pair in pairs[1:PLANTED]}, int(pairs[PLANTED]): 0.8}
    return [
        {
            "workload": pair // CONTEXTS,
            "context": pair % CONTEXTS,
            "planted": pair in pairs[:PLANTED],
            "judgement": "worse" if shares.get(pair, 0.0) >= 0.8 else "too little evidence",
            "probability": shares.get(pair, float(rng.beta(0.3, 8) / 2)),
            "risk_ratio": 1.2,
            "low": 0.7,
            "high": 2.0,
            "probability_without_privacy": float(pair in pairs[:PLANTED]),
        }
        for pair in sorted(pairs[: WORKLOADS * CONTEXTS * 9 // 10].tolist())
    ]


def _hazards(rng: np.random.Generator) -> list[dict[str, Any]]:
    rows = []
    for context, level, band in np.ndindex(CONTEXTS, LEVELS, len(BANDS)):
        truth = 0.5 * (1, 2, 5)[level] * (1.3, 1.1, 1.0, 0.9)[band]
        rate, plain = truth * rng.lognormal(0, 0.2, 2)
        row = {"context": context, "level": level, "band": BANDS[band], "truth": truth, "rate": float(rate)}
        rows.append(row | {"low": float(rate) / 1.5, "high": float(rate) * 1.5, "rate_without_privacy": float(plain)})
    return rows


def _outcome() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    stages = ("register", "plan", "contribute", "unmask", "release", "learn", "publish")
    return {
        "scenario": "quickstart",
        "title": "A quarter of a year of a small cloud",
        "seed": 0,
        "tenants": 48,
        "job_weeks": 13200,
        "failures_per_1000_node_days": 137.2,
        "rounds": WEEKS,
        "epsilon": 1.0,
        "delta": 0.0,
        "mechanism": "discrete_laplace",
        "seconds": 41.2,
        "bytes_per_tenant_round": 20500.0,
        "mismatch": {
            "auroc": 0.931,
            "average_precision": 0.8,
            "auroc_without_privacy": 0.972,
            "average_precision_without_privacy": 0.9,
        },
        "hazard": {
            "mean_abs_log_rate_error": 0.2,
            "mean_abs_log_rate_error_without_privacy": 0.15,
            "interval_coverage": 0.948,
        },
        "impact": IMPACT | {"without_privacy": IMPACT | {"mismatch_gpu_hours_avoided_share": 0.97}},
        "detail": {
            "workloads": [f"a{number // 3} v{number % 3}" for number in range(WORKLOADS)],
            "contexts": [f"context {number}" for number in range(CONTEXTS)],
            "mismatch": _mismatches(rng),
            "hazard": _hazards(rng),
            "budget": [{"week": week, "epsilon": 1.0, "limit": 1.0} for week in range(WEEKS)],
            "group": [{"windows": windows, "epsilon": float(windows)} for windows in range(1, WEEKS + 1)],
            "error_by_epsilon": [
                {"epsilon": epsilon, "mean_abs_log_rate_error": 0.15 + 0.08 / epsilon, "auroc": 0.97 - 0.04 / epsilon}
                for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0)
            ],
            "stages": [{"stage": stage, "seconds": 0.03 * 3**n, "bytes": 812345 * n} for n, stage in enumerate(stages)],
        },
    }


class Page(HTMLParser):
    """What a browser would find in the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "link", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def words(self) -> str:
        """What is read, in the order of the page."""
        return " ".join(" ".join(text for tag, text in self.texts if tag != "style").split())


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in the outcome, at whatever depth; the first row of a table stands for all."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*path, key)
        yield from _paths(below, (*path, key))


@cache
def _rendered() -> str:
    return render(_outcome())


def _changed(*paths: tuple[Any, ...], value: object, rows: int | None = None) -> dict[str, Any]:
    """The outcome with `value` at each of the `paths`, in every row of a table; tables are cut to that many `rows`."""
    outcome = _outcome()
    for table in outcome["detail"]:
        outcome["detail"][table] = outcome["detail"][table][:rows]
    for path in paths:
        places: list[Any] = [outcome]
        for step in path[:-1]:
            places = [below for place in places for below in (place if isinstance(step, int) else [place[step]])]
        for place in places:
            place[path[-1]] = value
    return outcome


def _at(path: tuple[Any, ...]) -> object:
    value: Any = _outcome()
    for step in path:
        value = value[step]
    return value


# Without these a row has no place in a picture.
STRUCTURE = {"workload", "context", "level", "band", "week", "windows", "stage", 0}
OPTIONAL = [path for path in _paths(_outcome()) if path[-1] not in STRUCTURE]


def test_page_is_well_formed_and_shows_every_picture() -> None:
    page = Page(_rendered())
    assert page.open == []
    assert len(page.all("svg")) == PICTURES == len(page.all("figure"))
    assert "not available" not in page.words()


def test_every_picture_is_described_and_no_id_occurs_twice() -> None:
    page = Page(_rendered())
    ids = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert ids.most_common(1)[0][1] == 1
    titles, descriptions = (
        [text for tag, text in page.texts if tag == kind and text.strip()] for kind in ("title", "desc")
    )
    assert len(titles) == PICTURES + 1  # and the title of the page
    assert len(descriptions) == PICTURES == len(set(descriptions)) + len(BANDS) - 1  # age bands differ in their titles
    for picture in page.all("svg"):
        assert picture["role"] == "img"
        assert set((picture["aria-labelledby"] or "").split()) <= set(ids)


@pytest.mark.nightly
def test_references_within_pictures_resolve() -> None:
    text = _rendered()
    ids = set(re.findall(r' id="([^"]+)"', text))
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert len(used) > 2 * PICTURES
    assert used <= ids


@pytest.mark.nightly
def test_pictures_take_their_colours_from_the_page() -> None:
    text = _rendered()
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    colours = re.findall(r"(?:fill|stroke): ([^;\"]+)", drawn)
    assert {"currentColor", "var(--accent)", "var(--level-2)", "none"} <= set(colours)
    assert {colour for colour in colours if colour.startswith(("#", "rgb"))} == set()
    assert text.count("prefers-color-scheme: dark") == 1


def test_page_loads_nothing_and_runs_nothing() -> None:
    text = _rendered()
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|@import|javascript:|data:", text)
    assert {"script", "link", "img", "iframe", "object", "base", "form"}.isdisjoint(tag for tag, _ in page.tags)
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on") or key == "src"]
    assert all((link.get("href") or "").startswith("#") for link in page.all("a") + page.all("use"))
    assert {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"} in (
        page.all("meta")
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "path",
    [
        *[("title",), ("scenario",), ("mechanism",), ("tenants",), ("rounds",)],
        *[("detail", "workloads", 0), ("detail", "contexts", 0)],
        *[("detail", "hazard", 0, "band"), ("detail", "stages", 0, "stage")],
    ],
    ids=str,
)
def test_hostile_text_stays_text(path: tuple[Any, ...]) -> None:
    clean, page = Page(_rendered()), Page(render(_changed(path, value=HOSTILE)))
    assert page.open == []
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in clean.tags}
    assert 'alert("1")' in page.words()


def test_a_name_with_dollar_signs_is_not_a_formula() -> None:
    assert ">$x^{2}$</text>" in render(_changed(("detail", "contexts", 0), value="$x^{2}$"))


def test_labels_leave_out_what_all_names_share() -> None:
    names = [f"archetype-{number // 3}-version-{number % 3}" for number in range(WORKLOADS)]
    outcome = _outcome()
    outcome["detail"]["workloads"] = names
    labels = re.findall(r">([^<]+)</text>", render(outcome))
    assert {"archetype", "7-version-2", "context", "7"} <= set(labels)


def test_a_diverged_fit_is_shown_not_hidden() -> None:
    outcome = _changed(("detail", "mismatch", 0, "risk_ratio"), value=7.59e81, rows=5)
    outcome["hazard"]["mean_abs_log_rate_error"] = 1e4
    words = Page(render(outcome)).words()
    assert "7.59 × 10⁸¹" in words
    assert "× 1.01 × 10³⁰⁴" in words


def test_tables_hold_the_numbers_of_the_pictures() -> None:
    outcome = _outcome()
    page = Page(render(outcome))
    rows = sum(len(outcome["detail"][name]) for name in outcome["detail"] if name not in {"workloads", "contexts"})
    assert len([head for head in page.all("th") if head.get("scope") == "row"]) == rows + 20  # settings and results
    assert len(page.all("details")) == 5
    scrolled = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert all(attributes["tabindex"] == "0" and attributes["aria-label"] for attributes in scrolled)


def test_most_probable_mismatch_comes_first() -> None:
    cells = re.findall(r"<td>(yes|no)</td>", _rendered())
    assert cells[: PLANTED + 1] == ["yes"] * (PLANTED - 1) + ["no", "yes"]  # found, the false alarm, missed


def test_first_screen_tells_what_happened() -> None:
    words = Page(_rendered()).words().partition("Which workloads")[0]
    assert "48 tenants ran 13,200 job-weeks on 8 kinds of hardware. In 13 rounds" in words
    assert "5 of 6 planted mismatches called worse, with 1 false alarm." in words
    assert "5 planted and found" in words
    assert "1 planted and missed" in words
    assert "privacy budget of a job and window ε = 1" in words
    assert "δ = 0" in words
    assert "× 1.22" in words  # exp(0.2)


def test_values_are_written_for_people() -> None:
    words = Page(_rendered()).words()
    for shown in ("20.5 kB", "41.2 s", "30 ms", "94.8%", "0.931", "0.7 – 2", "4.9 MB"):
        assert shown in words


@pytest.mark.nightly
def test_the_impact_is_told_with_and_without_privacy() -> None:
    page = Page(_rendered())
    words = page.words()
    assert "GPU-hours saved 251,513" in words
    assert "GPU-hours of mismatches: avoided 57% 97%" in words
    assert "other starts: refused < 0.1% < 0.1%" in words
    assert "avoided 57%; false refusals < 0.1%; hints in time 73%" in words  # the description of the picture
    nothing = _changed(("impact",), value=None)
    assert "GPU-hours saved not available" in Page(render(nothing)).words()


def test_bands_stand_in_the_order_of_age() -> None:
    outcome = _outcome()
    outcome["detail"]["hazard"].sort(key=lambda row: row["band"], reverse=True)
    text = render(outcome)
    captions = re.findall(r"<figcaption>Age of the job: (.*?)</figcaption>", text)
    assert captions == ["0–6 h", "6–24 h", "24–72 h", "&gt; 72 h"]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.nightly] if at % 12 else []) for at, path in enumerate(OPTIONAL)],
    ids=str,
)
def test_whatever_is_missing_leaves_a_page(path: tuple[Any, ...]) -> None:
    page = Page(render(_changed(path, value=None, rows=5)))
    assert page.open == []
    assert not re.search(r"\b(None|nan|inf)\b", page.words())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_not_available(value: float) -> None:
    numbers = [path for path in OPTIONAL if isinstance(_at(path), float) or path == ("tenants",)]
    page = Page(render(_changed(*numbers, value=value)))
    assert page.words().count("not available") > 1000
    assert not re.search(r"\b(nan|inf)\b", page.words())


@pytest.mark.nightly
@pytest.mark.parametrize(
    "path",
    [
        ("mismatch", "auroc"),
        ("hazard", "mean_abs_log_rate_error_without_privacy"),
        ("epsilon",),
        ("detail", "stages"),
        ("detail", "mismatch", 0, "probability_without_privacy"),
        ("detail", "error_by_epsilon", 0, "auroc"),
    ],
    ids=str,
)
def test_a_gap_is_named(path: tuple[Any, ...]) -> None:
    assert "not available" in Page(render(_changed(path, value=None))).words()


def test_nothing_at_all_still_makes_a_page() -> None:
    page = Page(render({}))
    assert page.open == []
    assert page.all("svg") == []
    assert "an unknown number of tenants" in page.words()
    assert "on an unknown number of kinds of hardware" in page.words()


def test_nothing_planted_is_not_a_miss() -> None:
    outcome = _changed(("detail", "mismatch", 0, "planted"), value=None)
    outcome["mismatch"] = {"auroc": None, "average_precision": None}
    words = Page(render(outcome)).words()
    assert "no mismatch was planted, with 6 false alarms" in words
    assert "0 planted and missed" in words


@pytest.mark.nightly
def test_equal_outcomes_give_equal_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.html", tmp_path / "second.html"
    write_report(_outcome(), first)
    write_report(json.loads(json.dumps(_outcome())), second)
    assert first.read_bytes() == second.read_bytes()
    assert "<metadata" not in first.read_text("utf-8")  # where matplotlib puts the date


def test_page_is_small_and_soon_written(tmp_path: Path) -> None:
    began_s = time.process_time()
    write_report(_outcome(), tmp_path / "report.html")
    assert time.process_time() - began_s < 5.0
    assert (tmp_path / "report.html").stat().st_size < 1_500_000


@pytest.mark.parametrize(("high", "known"), [(99.0, True), (101.0, False)])
def test_a_rate_with_too_wide_an_interval_is_not_known_yet(high: float, *, known: bool) -> None:
    row = {"context": 0, "level": 0, "band": "0–6 h", "rate": 7.25, "low": 1.0, "high": high, "truth": 5.0}
    page = render({"from": "2026-08-20", "to": "2026-11-19", "detail": {"hazard": [row]}})
    assert ("7.25" in page) is known
    assert ("<td>not known yet</td>" in page) is not known
    assert " · 2026-08-20 to 2026-11-19<" in page


def test_colours_are_those_of_both_pages_and_are_written_once() -> None:
    style = ROOT / "federation/base/web/style"
    base = (style / "base.css").read_text(encoding="utf-8")
    for sheet in (style / "style.css", ROOT / "simulation/judge/templates/report.css"):
        assert re.findall(r"#[0-9a-fA-F]{3,8}\b", sheet.read_text(encoding="utf-8")) == [], sheet
    assert base[base.index(":root") :] in _rendered()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_report_is_whole_for_everybody(tmp_path: Path, width: int, scheme: browsers.Scheme) -> None:
    (tmp_path / "report.html").write_text(_rendered(), encoding="utf-8")
    with browsers.chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.goto((tmp_path / "report.html").as_uri())
        assert browsers.overflow(page) <= 0
        assert browsers.barriers(page) == []
