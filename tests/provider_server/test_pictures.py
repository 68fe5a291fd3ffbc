"""Pictures: the numbers are where they should be, everything fits a phone, and nothing from outside is trusted."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.text import Text

from federation.protocol.life_table import Floats
from provider_server.analysis.calibration import Calibration
from provider_server.learning.findings import RateFinding
from provider_server.reporting.figures.calibration import calibration_plot
from provider_server.reporting.figures.contexts import MOST_LISTED, MOST_NODES, context_map
from provider_server.reporting.figures.drawing import ROLES, WIDTH, PictureNotSaved, inline, plain, save
from provider_server.reporting.figures.hazard import MOST_PANELS, hazard_curves
from provider_server.reporting.figures.mismatch import MOST_CONTEXTS, MOST_ROWS, VERDICTS, forest_plot, mismatch_matrix
from provider_server.reporting.html import Page, Section, render
from tests.support.changing import replace

EDGES = (0.0, 1.0, 8.0, 48.0, 100_000.0)
HOSTILE = (
    """</title></style><script>alert("1")</script><img src='https://evil.example/x'> ${title} $x^{2}$ & -->\n\x1b"""
)
NOT_FINITE = (math.nan, -math.inf)


@dataclass(frozen=True)
class Judged:
    workload: str
    context: str
    probability_worse: float
    risk_ratio: float
    low: float
    high: float
    expected_failures: float
    judgement: str


Row = TypeVar("Row", Judged, RateFinding)


def _token(kind: str, number: int) -> str:
    return f"{number:02x}{kind.encode().hex()}".ljust(64, "0")


def _rates(contexts: int = 3, levels: int = 2) -> list[RateFinding]:
    places = np.ndindex(contexts, levels, 4)
    return [_rate(f"{c}/{level}", band, 1e-3 * (1 + c) * (1 + level) / (1 + band)) for c, level, band in places]


def _rate(context_level: str, band: int, rate: float) -> RateFinding:
    return RateFinding(context_level, str(band), rate, rate / 2, rate * 2)


def _levels(contexts: int = 3, levels: int = 2) -> dict[str, tuple[str, int]]:
    return {f"{c}/{level}": (f"rack {c}", level) for c, level in np.ndindex(contexts, levels)}


def _pair(workload: int, context: int, ratio: float, verdict: str, expected: float = 12.0) -> Judged:
    share = {"worse": 0.97, "confounded": 0.9}.get(verdict, 0.1)
    tokens = _token("workload", workload), _token("context", context)
    return Judged(*tokens, share, ratio, ratio / 2, ratio * 2, expected, verdict)


def _pairs(workloads: int = 6, contexts: int = 4) -> list[Judged]:
    verdicts = ["worse", "confounded", "suspected", *["not worse"] * 8, *["too little evidence"] * 4]
    return [
        _pair(a, c, 3.0 if (place := (a * contexts + c) % 15) < 2 else 0.6 + 0.05 * place, verdicts[place])
        for a, c in np.ndindex(workloads, contexts)
    ]


def _with(row: Row, field: str, value: Any) -> Row:
    return replace(row, **{field: value})


def _calibration(**changes: Any) -> Calibration:
    predicted, observed, low, high = np.array([[10.0] * 3, [11.0, 4.0, 15.0], [8.0, 1.0, 11.0], [14.0, 7.0, 19.0]])
    good = Calibration(predicted, observed, low, high, 0.97, 0.9, 1.04, 0.93, 0.81, 1.05, 0.2)
    return replace(good, **changes)


def _map(nodes: int = 60, contexts: int = 3, **changes: Any) -> Figure:
    rng = np.random.default_rng(0)
    numbers = np.arange(nodes) % (contexts + 1) - 1
    positions = rng.normal(0, 0.5, (nodes, 2)) + 4 * np.column_stack([numbers % 4, numbers // 4])
    given: dict[str, Any] = {
        "positions": positions,
        "numbers": numbers.tolist(),
        "descriptions": {number: f"H200, hall {number}" for number in range(contexts)},
        "rates": {number: 0.5 + number for number in range(contexts)},
        "intervals": {number: (0.4 + number, 0.7 + number) for number in range(contexts)},
    }
    return context_map(**given | changes)


def _hazard(rates: Sequence[RateFinding] | None = None, contexts: int = 3) -> Figure:
    return hazard_curves(_rates(contexts) if rates is None else rates, edges_hours=EDGES, levels=_levels(contexts))


MANY = _pairs(60, 30)
FIGURES: dict[str, Callable[[], Figure]] = {
    "hazard": _hazard,
    "many hazards": lambda: _hazard(contexts=30),
    "matrix": lambda: mismatch_matrix(_pairs()),
    "large matrix": lambda: mismatch_matrix(MANY),
    "forest": lambda: forest_plot(_pairs()),
    "long forest": lambda: forest_plot(MANY),
    "calibration": lambda: calibration_plot(_calibration()),
    "map": _map,
    "large map": lambda: _map(9000, 40),
    "nothing": lambda: forest_plot([]),
}
drawn = pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)


def _texts(figure: Figure) -> list[Text]:
    figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_visible() and text.get_text()]


def _title(figure: Figure) -> str:
    return " ".join(figure.get_suptitle().split())


def _marks(axes: Axes, forms: str = "oDs^") -> list[Line2D]:
    return [line for line in axes.lines if str(line.get_marker()) in forms]


def _points(line: Line2D) -> Floats:
    return np.asarray(line.get_xydata(), np.float64)


def _words(figure: Figure) -> str:
    """All that is written but marks of scales, which are only known once the figure is drawn."""
    return " ".join(" ".join(text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)).split())


def _steps(patch: StepPatch) -> list[Floats]:
    """Its values, edges and baseline, where it has one."""
    return [np.asarray(values, np.float64) for values in patch.get_data() if values is not None]


def _cells(axes: Axes) -> Iterator[tuple[tuple[int, int], Rectangle]]:
    """The coloured squares of a matrix, by column and row."""
    for patch in axes.patches:
        if isinstance(patch, Rectangle) and patch.get_fill():
            (x, y), half = patch.get_xy(), patch.get_width() / 2
            yield (round(x + half), round(y + half)), patch


# ---- the numbers are where they should be ----------------------------------------------------------------------------


def test_curves_stand_at_their_rates_and_ages() -> None:
    rates = [_rate("a", 0, 4e-3), _rate("a", 1, 2e-3), _rate("a", 3, 1e-3)]
    [axes] = hazard_curves(rates, {"a": "rack A"}, edges_hours=EDGES).axes
    band, line = (_steps(patch) for patch in axes.patches if isinstance(patch, StepPatch))
    assert axes.get_title("left") == "rack A"
    np.testing.assert_allclose(line[0], np.array([4.0, 2.0, math.nan, 1.0]))  # the third band is a gap
    np.testing.assert_allclose(line[1][1:4], np.array(EDGES[1:4]))
    np.testing.assert_allclose(band[0], np.array([8.0, 4.0, math.nan, 2.0]))
    np.testing.assert_allclose(band[2], np.array([2.0, 1.0, math.nan, 0.5]))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1 h", "8 h", "2 d"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_the_context_that_surely_fails_most_comes_first_and_is_the_title() -> None:
    loose = RateFinding("loose", "0", 50e-3, 0.1e-3, 900e-3)
    figure = hazard_curves([loose, _rate("sure", 2, 8e-3), _rate("low", 0, 1e-3)], edges_hours=EDGES)
    assert [axes.get_title("left") for axes in figure.axes] == ["sure", "low", "loose"]
    assert _title(figure) == "sure fails most: 8 times in 1,000 node-hours at age 8 h – 2 d"
    assert "Highest rate: 8 (4 – 16)." in _words(figure)


def test_levels_of_a_context_share_a_panel_and_are_numbered() -> None:
    figure = _hazard()
    assert [axes.get_title("left") for axes in figure.axes] == ["rack 2", "rack 1", "rack 0"]
    for axes in figure.axes:
        assert [text.get_text() for text in axes.texts] == ["0", "1"]
        colours = {to_hex(patch.get_edgecolor()) for patch in axes.patches if not patch.get_fill()}
        assert colours == {ROLES["level-0"][0], ROLES["level-1"][0]}


def test_numbers_of_levels_keep_apart_where_curves_meet() -> None:
    figure = hazard_curves(
        [_rate(f"0/{level}", 3, 1e-3) for level in range(3)], edges_hours=EDGES, levels=_levels(1, 3)
    )
    heights = [text.get_window_extent().y0 for text in _texts(figure) if text.get_text() in ("0", "1", "2")][-3:]
    assert np.diff(sorted(heights)).min() > 8


def test_a_cell_has_the_colour_of_its_ratio_and_the_mark_of_its_verdict() -> None:
    pairs = [_pair(0, 0, 9.0, "worse"), _pair(0, 1, 3.0, "confounded"), _pair(1, 0, 0.6, "not worse")]
    pairs += [_pair(1, 1, 3.0, "too little evidence")]
    axes = mismatch_matrix(pairs).axes[0]
    cells = dict(_cells(axes))
    colours = {at: to_hex(cell.get_facecolor()) for at, cell in cells.items()}
    assert colours == {
        at: ROLES[f"ratio-{step}"][0] for at, step in {(0, 0): 6, (1, 0): 4, (0, 1): 1, (1, 1): 4}.items()
    }
    assert cells[1, 1].get_width() < 0.5 * cells[1, 0].get_width()  # thin evidence is small
    assert cells[1, 1].get_alpha() == 0.6  # and pale
    outlined = [patch for patch in axes.patches if not patch.get_fill()]
    assert [patch.get_linestyle() == "solid" for patch in outlined] == [True, False]
    assert [text.get_text() for text in axes.texts] == ["9", "3"]


def test_the_matrix_says_how_many_pairs_are_worse() -> None:
    assert _title(mismatch_matrix(_pairs())) == "2 of 24 pairs fail more often than expected"
    one = [_pair(0, 0, 9.0, "worse"), _pair(0, 1, 1.0, "not worse")]
    assert _title(mismatch_matrix(one)) == "1 of 2 pairs fails more often than expected"
    assert mismatch_matrix(one[1:]).get_suptitle().startswith("None of 1 pair")


def test_the_forest_is_sorted_by_verdict_and_size_with_intervals_in_place() -> None:
    pairs = [_pair(0, 0, 1.2, "not worse"), _pair(1, 0, 2.5, "worse"), _pair(2, 0, 4.0, "worse", 37.0)]
    axes = forest_plot(pairs, {_token("workload", 2): "ranker", _token("context", 0): "rack A"}).axes[0]
    spans = [_points(line)[:, 0] for line in axes.lines[1:] if len(_points(line)) == 2]  # the first line is at one
    np.testing.assert_allclose(spans, [[2.0, 8.0], [1.25, 5.0], [0.6, 2.4]])
    marks = [(float(_points(line)[0, 0]), line.get_marker()) for line in _marks(axes)]
    assert marks == [(4.0, "o"), (2.5, "o"), (1.2, "s")]
    shown = [text.get_text() for text in axes.texts]
    assert shown[:5] == ["Worse than expected (2)", "ranker", "on rack A", "× 4", "37"]
    assert shown[9] == "Not worse (1)"


def test_an_interval_that_goes_on_ends_in_an_arrow() -> None:
    wide = replace(_pair(0, 0, 2.0, "too little evidence"), low=1e-9, high=1e9)
    assert [line.get_marker() for line in _marks(forest_plot([wide]).axes[0], "<>")] == ["<", ">"]
    assert _marks(forest_plot([_pair(0, 0, 2.0, "worse")]).axes[0], "<>") == []


def test_the_forest_names_what_it_found() -> None:
    names = {_token("workload", 0): "ranker", _token("context", 0): "rack A"}
    title = _title(forest_plot([_pair(0, 0, 3.4, "worse")], names))
    assert title == "ranker on rack A fails 3.4 times as often as expected"
    assert forest_plot([_pair(0, 0, 3.4, "confounded")], names).get_suptitle().startswith("None of 1 pair")


def test_calibration_shows_observed_over_predicted_and_what_misses() -> None:
    figure = calibration_plot(_calibration())
    [axes] = figure.axes
    filled, hollow = _marks(axes)
    np.testing.assert_allclose(_points(filled), [[1, 1.1]])
    np.testing.assert_allclose(_points(hollow), [[2, 0.4], [3, 1.5]])
    assert to_hex(hollow.get_markerfacecolor()) == ROLES["card"][0]
    segments = [segment[:, 1] for segment in axes.collections[0].get_segments()]  # type: ignore[attr-defined]
    np.testing.assert_allclose(segments, [[0.8, 1.4], [0.1, 0.7], [1.1, 1.9]])
    assert _title(figure) == "Per 100 failures predicted, 97 occurred; 1 of 3 intervals agree"
    assert "Slope 0.93, 95% interval 0.81 – 1.05" in _words(figure)


def test_the_map_shows_each_node_in_its_context_and_the_worst_first() -> None:
    figure = _map()
    nodes, listed = figure.axes
    assert [len(_points(line)) for line in nodes.lines] == [15, 15, 15, 15]
    assert nodes.lines[0].get_marker() == "x"
    words = [text.get_text() for text in listed.texts]
    assert words[:4] == ["2", "H200, hall 2", "15 nodes", "2.5 (2.4 – 2.7)"]
    assert words[8] == "0"
    assert "context 2 fails most, 2.5 times" in _title(figure)


def test_contexts_in_one_place_keep_their_numbers_apart() -> None:
    numbers = [0, 1, 2, 3] * 5
    figure = context_map(np.random.default_rng(0).normal(0, 1e-3, (20, 2)), numbers, {}, {})
    extents = [text.get_window_extent() for text in _texts(figure) if text in figure.axes[0].texts]
    centres = np.array([((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) for box in extents])
    apart = [math.dist(one, other) for one, other in combinations(centres, 2)]
    assert min(apart) > 18
    assert "not known" in _words(figure)


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@drawn
def test_every_picture_is_as_wide_as_a_phone_and_all_its_letters_are_in_it(draw: Callable[[], Figure]) -> None:
    figure = draw()
    assert 72 * figure.get_figwidth() == pytest.approx(WIDTH)
    assert WIDTH <= 400
    assert 72 * figure.get_figheight() <= 1000
    texts, whole = _texts(figure), figure.bbox
    boxes = [text.get_window_extent() for text in texts]
    for text, box in zip(texts, boxes, strict=True):
        assert float(text.get_fontsize()) >= 11, text
        assert box.x0 >= whole.x0 and box.x1 <= whole.x1 and box.y0 >= whole.y0 and box.y1 <= whole.y1, text  # noqa: PT018
    ends = np.array([box.extents for box in boxes])
    shared = np.minimum(ends[:, None, 2:], ends[:, 2:]) - np.maximum(ends[:, None, :2], ends[:, :2])
    overlaps = np.argwhere(np.triu((shared > (1, 3)).all(axis=2), 1))
    assert [(texts[one], texts[other]) for one, other in overlaps] == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["W" * 60, "A100-SXM4-80GB HALL 12", "一" * 40, "iiiiiiiiiiiiiiiiiiiiiii"], ids=ascii)
@pytest.mark.filterwarnings("ignore:Glyph")
def test_long_names_are_cut_to_their_room(name: str) -> None:
    names = dict.fromkeys([_token(kind, place) for kind in ("workload", "context") for place in range(9)], name)
    for figure in (mismatch_matrix(_pairs(), names), forest_plot(_pairs(), names)):
        assert min(text.get_window_extent().x0 for text in _texts(figure)) >= 0
    rates = hazard_curves(
        _rates(), dict.fromkeys(["rack 0", "rack 1", "rack 2"], name), edges_hours=EDGES, levels=_levels()
    )
    assert max(text.get_window_extent().x1 for text in _texts(rates)) <= rates.bbox.x1


def test_no_picture_has_more_than_it_can_show_and_the_rest_is_counted() -> None:
    matrix, forest = mismatch_matrix(MANY), forest_plot(MANY, most=1000)
    assert {row for (_, row), _ in _cells(matrix.axes[0])} == set(range(MOST_ROWS))
    assert {column for (column, _), _ in _cells(matrix.axes[0])} <= set(range(MOST_CONTEXTS))
    assert f"{60 - MOST_ROWS} workloads with less probable mismatches are not shown" in _words(matrix)
    assert f"{30 - MOST_CONTEXTS} contexts" in _words(matrix)
    assert len(_marks(forest.axes[0])) == MOST_ROWS
    rest = "95 worse, 120 confounded, 120 suspected, 960 not worse, 480 too little evidence"
    assert f"Not shown: {rest}." in _words(forest)
    panels, chart = _hazard(contexts=30), _map(9000, 40)
    assert len(panels.axes) == MOST_PANELS
    assert f"{30 - MOST_PANELS} contexts with lower rates are not shown" in _words(panels)
    assert sum(len(_points(line)) for line in chart.axes[0].lines) <= MOST_NODES + 41
    assert "One in 3 nodes of each context is drawn" in _words(chart)
    assert f"{40 - MOST_LISTED} contexts with lower rates are not in the list" in _words(chart)


def test_the_weightiest_pairs_are_kept() -> None:
    pairs = [*[_pair(place, 0, 1.0, "not worse") for place in range(50)], _pair(99, 7, 5.0, "worse")]
    assert forest_plot(pairs, most=3).axes[0].texts[1].get_text() == f"{_token('workload', 99)[:8]}…"
    assert [at for at, cell in _cells(mismatch_matrix(pairs).axes[0]) if at[1] == 0] == [(1, 0)]


# ---- nothing, and what is not finite ---------------------------------------------------------------------------------


def test_nothing_makes_a_picture_that_says_so() -> None:
    none = _calibration(**dict.fromkeys(("predicted", "observed", "low", "high"), np.zeros(0)))
    figures = [_hazard([]), mismatch_matrix([]), forest_plot([]), calibration_plot(none), context_map([], [], {}, {})]
    assert all("nothing to show yet" in _title(figure) for figure in figures)


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("field", ["rate", "low", "high"])
def test_rates_that_are_not_finite_are_left_out_and_counted(field: str, value: float) -> None:
    bad = [_with(rate, field, value) for rate in _rates()[:3]]
    figure = _hazard([*_rates(1), *bad])
    assert "3 rates without a finite number, interval or age band are not shown" in _words(figure)
    assert "nothing to show yet" in _title(_hazard(bad))
    assert "not shown" not in _words(_hazard())


@pytest.mark.parametrize("band", ["4", "-1", "", "²", "young"])
def test_a_rate_of_an_unknown_band_is_left_out(band: str) -> None:
    assert "1 rate without" in _words(_hazard([*_rates(1), replace(_rates()[0], band=band)]))


@pytest.mark.nightly
@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("field", ["probability_worse", "risk_ratio", "low", "high", "expected_failures"])
def test_pairs_that_are_not_finite_are_left_out_and_counted(field: str, value: float) -> None:
    bad = _with(_pair(7, 7, 3.0, "worse"), field, value)
    for draw in (mismatch_matrix, forest_plot):
        words = _words(draw([bad, *_pairs()]))
        assert "1 pair without a finite number or interval is not shown" in words
        assert _token("workload", 7)[:8] not in words


@pytest.mark.parametrize("value", NOT_FINITE)
def test_calibration_and_map_leave_out_what_is_not_finite(value: float) -> None:
    figure = calibration_plot(_calibration(observed=np.array([11.0, value, 15.0]), slope=value, ratio_total=value))
    assert "1 group without a finite number or interval is not shown" in _words(figure)
    assert "Slope" not in _words(figure)
    positions = np.zeros((60, 2))
    positions[:2, 1] = value
    shown = _words(_map(positions=positions, rates={0: value, 1: 0.5, 2: 0.2}))
    assert "2 nodes without a finite position are not shown" in shown
    assert "not known" in shown
    assert "context 1 fails most" in shown


@pytest.mark.nightly
@pytest.mark.parametrize("wild", [1e-310, 1e-30, 1e30, 1e308])
def test_wild_numbers_are_drawn_all_the_same(wild: float, tmp_path: Path) -> None:
    rates = [*_rates(), RateFinding("wild", "0", wild, wild, wild)]
    pairs = [
        *_pairs(),
        replace(_pair(7, 7, 3.0, "worse"), risk_ratio=wild, low=wild, high=wild, expected_failures=wild),
    ]
    fit = _calibration(predicted=np.array([wild, 10.0, 10.0]))
    for figure in (_hazard(rates), mismatch_matrix(pairs), forest_plot(pairs), calibration_plot(fit)):
        save(figure, tmp_path / "wild.svg")


# ---- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["hazard", "matrix", "forest", "calibration", "map"])
def test_equal_findings_give_equal_bytes(name: str, tmp_path: Path) -> None:
    first, second, other = (tmp_path / f"{place}.svg" for place in ("first", "second", "other"))
    figure = FIGURES[name]()
    save(figure, first)
    save(figure, second)
    assert first.read_bytes() == second.read_bytes()
    with mpl.rc_context({"font.size": 30, "svg.hashsalt": "other", "axes.facecolor": "red", "text.color": "red"}):
        save(FIGURES[name](), other)
    assert first.read_bytes() == other.read_bytes()


def test_equal_findings_give_an_equal_png_of_a_size_for_print(tmp_path: Path) -> None:
    for name in ("first.png", "second.PNG"):
        save(_map(), tmp_path / name)
    content = (tmp_path / "first.png").read_bytes()
    assert content == (tmp_path / "second.PNG").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == int(WIDTH / 72 * 150)
    assert b"matplotlib" not in content.lower()


def test_letters_that_the_font_does_not_have_are_no_warning(tmp_path: Path) -> None:
    figure = mismatch_matrix(_pairs(), {_token("workload", 0): "一二"})
    for suffix in ("png", "svg"):
        save(figure, tmp_path / f"picture.{suffix}")
    assert "一二" in (tmp_path / "picture.svg").read_text("utf-8")


def test_drawing_leaves_no_trace_in_the_settings(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    save(_hazard(), tmp_path / "picture.svg")
    assert dict(mpl.rcParams) == before


def test_a_saved_svg_is_text_without_a_date(tmp_path: Path) -> None:
    save(mismatch_matrix(_pairs(), {_token("workload", 0): "a < b & $x^{2}$"}), tmp_path / "picture.svg")
    content = (tmp_path / "picture.svg").read_text("utf-8")
    assert ">a &lt; b &amp; $x^{2}$</text>" in content
    assert "date" not in content
    ET.fromstring(content)  # noqa: S314  # our own


@pytest.mark.parametrize("name", ["picture.gif", "picture", "picture.svg.exe", "png"])
def test_another_suffix_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PictureNotSaved, match=r"neither a \.png nor a \.svg file") as caught:
        save(forest_plot([]), tmp_path / name)
    assert ".png or .svg" in caught.value.diagnostics()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "absent" / "picture.png", tmp_path / "file" / "picture.svg"):
        with pytest.raises(PictureNotSaved, match=r"no such file or directory|not a directory") as caught:
            save(forest_plot([]), path)
        assert isinstance(caught.value.__cause__, OSError)
        assert "folder" in caught.value.hint


def test_numbers_are_written_for_people() -> None:
    numbers = (0.0, 1.0, 0.123, 12.34, 99.4, 99.6, 1234.5, 7.59e81, 1e-8, -0.5)
    assert [plain(number) for number in numbers] == (
        ["0", "1", "0.12", "12", "99", "100", "1,234", "7.59 × 10⁸¹", "10⁻⁸", "-0.5"]
    )
    assert plain(1.2345, digits=3) == "1.23"


# ---- colours ---------------------------------------------------------------------------------------------------------


def _contrast(one: str, other: str) -> float:
    """WCAG 2.2, relative luminance and contrast ratio."""
    parts = np.array([to_rgb(one), to_rgb(other)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return float((high + 0.05) / (low + 0.05))


def test_roles_differ_and_can_be_read_in_light_and_dark() -> None:
    assert len({light for light, _ in ROLES.values()}) == len(ROLES)
    for scheme in range(2):
        shade = {role: values[scheme] for role, values in ROLES.items()}
        assert min(_contrast(shade[role], shade["card"]) for role in ("ink", "soft", "alarm")) > 4.5
        assert min(_contrast(shade[role], shade["card"]) for role in ROLES if role.startswith("kind")) > 3
        assert min(_contrast(shade[role], shade["card"]) for role in ROLES if role.startswith("level")) > 2.4
        assert min(_contrast(shade[role], shade["ink"]) for role in ROLES if role.startswith("ratio")) > 3.9


def test_forms_tell_apart_what_colours_do() -> None:
    marks = _marks(forest_plot(_pairs(), most=24).axes[0])
    faces = {(line.get_marker(), to_hex(line.get_markerfacecolor()) == ROLES["card"][0]) for line in marks}
    assert len(faces) == len(VERDICTS)


# ---- the page --------------------------------------------------------------------------------------------------------


class Read(HTMLParser):
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
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def words(self) -> str:
        return " ".join(" ".join(text for tag, text in self.texts if tag != "style").split())


def _page(said: str = "H200 rack A") -> Page:
    names = {_token(kind, place): said for kind in ("workload", "context") for place in range(6)}
    figures = [
        hazard_curves(_rates(), {"rack 2": said}, edges_hours=EDGES, levels=_levels()),
        mismatch_matrix(_pairs(), names),
        forest_plot(_pairs(), names),
        calibration_plot(_calibration(), {"failures": said}),
        _map(descriptions=dict.fromkeys(range(3), said), names={"1": said}),
    ]
    rows = [(said, 1234, 0.98765, None), ("b", 2, math.nan, said)]
    sections = [
        Section(f"Question {place} {said}", said, figure, ("name", said, "x", "y"), rows)
        for place, figure in enumerate(figures)
    ]
    return Page(f"Findings {said}", (said, "ε = 1 for a unit."), (f"drift on {said}",), sections)


@pytest.mark.nightly
def test_a_page_has_pictures_described_and_tables_of_their_numbers() -> None:
    page = Read(render(_page()))
    ids = Counter(attributes["id"] for _, attributes in page.tags if attributes.get("id"))
    assert page.open == []
    assert max(ids.values()) == 1
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(pictures) == 5
    for picture in pictures:
        assert picture["role"] == "img"
        assert set((picture["aria-labelledby"] or "").split()) <= set(ids)
    described = [text for tag, text in page.texts if tag == "desc"]
    assert len(set(described)) == 5
    assert [tag for tag, _ in page.tags].count("table") == 5
    assert "H200 rack A 1,234 0.988 not available b 2 not available H200 rack A" in page.words()
    assert "1 warning drift on H200 rack A" in page.words()


def test_pictures_of_a_page_take_colours_from_its_roles() -> None:
    text = render(_page())
    pictures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    colours = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", pictures))
    assert {"var(--ink)", "var(--ratio-4)", "var(--level-1)", "var(--alarm)"} <= colours
    assert {colour for colour in colours if colour.startswith(("#", "rgb"))} == set()
    assert set(re.findall(r"var\(--([a-z0-9-]+)\)", text)) <= {*ROLES, "paper"}
    assert all(f"--{role}: {light};" in text and f"--{role}: {dark};" in text for role, (light, dark) in ROLES.items())
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= set(re.findall(r' id="([^"]+)"', text))


def test_hostile_names_stay_text() -> None:
    clean, hostile = Read(render(_page())), Read(render(_page(HOSTILE)))
    assert hostile.open == []
    assert {tag for tag, _ in hostile.tags} == {tag for tag, _ in clean.tags}
    assert 'alert("1")' in hostile.words()
    assert "\x1b" not in "".join(text for tag, text in hostile.texts if tag in ("text", "desc", "title"))


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    text = render(_page())
    page = Read(text)
    assert not re.search(r"https?:|//[a-z]|@import|javascript:|data:", text)
    assert {"script", "link", "img", "iframe", "object", "base", "form"}.isdisjoint(tag for tag, _ in page.tags)
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on") or key == "src"]
    policy = {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"}
    assert ("meta", policy) in page.tags


@pytest.mark.nightly
def test_equal_pages_give_equal_bytes() -> None:
    assert render(_page()) == render(_page())
    assert len(render(_page()).encode()) < 500_000


def test_an_empty_page_and_a_crooked_table() -> None:
    empty = Read(render(Page("Nothing yet", ("No release so far.",))))
    assert empty.open == []
    assert "warning" not in empty.words()
    crooked = Section("Heading", "", forest_plot([]), ("one", "two"), [("a",)])
    with pytest.raises(ValueError, match="must have 2 cells, as its head"):
        render(Page("Crooked", (), (), (crooked,)))


def test_a_picture_in_a_page_has_the_ids_of_its_key() -> None:
    ids = set(re.findall(r' id="([^"]+)"', inline(_map(), "here")))
    assert ids
    assert all(name.startswith("here-") for name in ids)
