"""Pictures of benchmarks: equal bytes, no trace in the settings, and errors that say what to do."""

from pathlib import Path
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from simulation.drawing import MARGIN, WIDTH, PictureNotSaved, Sheet, save, styled


@styled()
def sheet() -> Figure:
    drawn = Sheet.of("What was found", 60, ("一二 is a name, and so is a < b & $x^{2}$.",))
    drawn.axes(MARGIN, 10, WIDTH - 2 * MARGIN, 40).plot([0, 1], [1, 0])
    return drawn.figure


def test_equal_pictures_have_equal_bytes_whatever_the_settings(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    save(sheet(), first)
    with mpl.rc_context({"font.size": 30, "svg.hashsalt": "other", "axes.facecolor": "red", "text.color": "red"}):
        save(sheet(), second)
    assert first.read_bytes() == second.read_bytes()


def test_a_picture_is_text_without_a_date_and_leaves_no_trace_in_the_settings(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    save(sheet(), tmp_path / "picture.svg")
    assert dict(mpl.rcParams) == before
    content = (tmp_path / "picture.svg").read_text("utf-8")
    assert "一二 is a name, and so is a &lt; b &amp; $x^{2}$." in content
    assert "date" not in content
    ET.fromstring(content)  # noqa: S314  # our own


def test_a_png_is_of_a_size_for_print(tmp_path: Path) -> None:
    save(sheet(), tmp_path / "picture.PNG")
    content = (tmp_path / "picture.PNG").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == int(WIDTH / 72 * 150)
    assert b"matplotlib" not in content.lower()


@pytest.mark.parametrize("name", ["picture.gif", "picture", "picture.svg.exe", "png"])
def test_another_suffix_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PictureNotSaved, match=r"neither a \.png nor a \.svg file") as caught:
        save(sheet(), tmp_path / name)
    assert ".png or .svg" in caught.value.diagnostics()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "absent" / "picture.png", tmp_path / "file" / "picture.svg"):
        with pytest.raises(PictureNotSaved, match=r"no such file or directory|not a directory") as caught:
            save(sheet(), path)
        assert isinstance(caught.value.__cause__, OSError)
        assert "folder" in caught.value.hint
