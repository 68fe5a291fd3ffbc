"""Ratios around one: what differs is named, all letters are in the picture, and what cannot be drawn is counted."""

from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from provider_server.reporting.figures.drawing import WIDTH, inline
from provider_server.reporting.figures.ratios import Ratio, ratio_plot

SIZES = (Ratio("1 node", 0.9, 0.8, 1.02), Ratio("2-3 nodes", 1.1, 0.9, 1.4), Ratio("16+ nodes", 1.8, 1.3, 2.6))
WEEKS = [Ratio(f"week W{week:02d}", 1.0 + week / 500, 0.8, 1.0 + week / 100) for week in range(1, 53)]


def words(figure: Figure) -> list[Text]:
    figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def label(figure: Figure) -> str:
    return " ".join(text.get_text() for text in words(figure))


def test_what_differs_most_surely_is_the_title() -> None:
    assert ratio_plot("Size", SIZES).get_suptitle().replace("\n", " ") == (
        "Size: 16+ nodes fails 1.8 times as often as the average"
    )
    calm = ratio_plot("Size", SIZES[:2]).get_suptitle().replace("\n", " ")
    assert calm == "Size: none of 2 differs from the average beyond chance"
    rules = ratio_plot("Rules", SIZES, beside="all else")
    assert rules.get_suptitle().replace("\n", " ").endswith("1.8 times as often as all else")
    assert "times as often as all else" in label(rules)


def test_rows_stand_in_their_order_at_their_ratios() -> None:
    (axes,) = ratio_plot("Size", SIZES).axes
    points = np.concatenate([line.get_xydata() for line in axes.lines if line.get_marker() == "o"])
    assert points[:, 0] == pytest.approx([row.ratio for row in SIZES])
    assert np.all(np.diff(points[:, 1]) > 0.0)


@pytest.mark.parametrize(
    "rows",
    [SIZES, WEEKS, [Ratio("nccl in [2.18, 2.20) and fabric = hdr" * 3, 1e9, 3.0, 1e11)]],
    ids=["3", "52", "wild"],
)
def test_all_letters_are_in_the_picture_and_apart(rows: Sequence[Ratio]) -> None:
    figure = ratio_plot("Size and season", rows)
    texts = words(figure)
    assert 72 * figure.get_figwidth() == pytest.approx(WIDTH)
    assert 72 * figure.get_figheight() <= 1000
    ends = np.array([text.get_window_extent().extents for text in texts])
    assert all(float(text.get_fontsize()) >= 11 for text in texts)
    assert np.all(ends[:, :2] >= 0.0)
    assert np.all(ends[:, 2:] <= [figure.bbox.x1, figure.bbox.y1])
    shared = np.minimum(ends[:, None, 2:], ends[:, 2:]) - np.maximum(ends[:, None, :2], ends[:, :2])
    overlaps = np.argwhere(np.triu((shared > (1, 3)).all(axis=2), 1))
    assert [(texts[one].get_text(), texts[other].get_text()) for one, other in overlaps] == []


def test_too_many_rows_keep_what_differs_and_the_rest_is_counted() -> None:
    figure = ratio_plot("Season", [*WEEKS, Ratio("week W53", 3.0, 2.0, 4.0)], most=20)
    assert "33 rows closer to 1" in label(figure).replace("\n", " ")
    assert "week W53" in label(figure)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0])
def test_what_is_no_ratio_is_left_out_and_counted(bad: float) -> None:
    figure = ratio_plot("Size", [*SIZES, Ratio("odd", bad, bad, bad)])
    assert "odd" not in label(figure)
    assert "1 row without a finite number or interval is not shown" in label(figure).replace("\n", " ")
    assert "nothing to show yet" in ratio_plot("Size", [Ratio("odd", bad, bad, bad)]).get_suptitle()


def test_equal_rows_give_equal_bytes() -> None:
    assert inline(ratio_plot("Size", SIZES), "a") == inline(ratio_plot("Size", SIZES), "a")
    assert inline(ratio_plot("Size", SIZES), "a") != inline(ratio_plot("Size", SIZES[::-1]), "a")
