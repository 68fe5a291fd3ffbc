"""What the owner is shown of a failure are the log's own lines, in its order, with the frame in the owner's code."""

from pathlib import Path

import pytest

from tenant_client.doctor.diagnosis.diagnose import explain, gather
from tenant_client.doctor.diagnosis.excerpts import Excerpt, excerpt_of
from tenant_client.doctor.diagnosis.lessons import Lessons

TRACEBACK = """\
Traceback (most recent call last):
  File "/me/err.py", line 9, in <module>
    main()
  File "/me/err.py", line 6, in main
    layer(torch.zeros(16, 64))
  File "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _call_impl
    return forward_call(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x64 and 65x3)
"""
STEPS = "".join(f"step {step} loss {1 / (step + 1):.4f}\n" for step in range(6))


def excerpt(path: Path) -> tuple[Excerpt, str]:
    gathered = gather([path])
    found = explain(gathered, Lessons())
    return excerpt_of(found, gathered, frozenset()), found.root.where if found.root else ""


def logged(folder: Path, text: str) -> Path:
    file = folder / "output.log"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_traceback_is_told_as_it_stands_with_the_frame_in_the_owners_code(tmp_path: Path) -> None:
    found, place = excerpt(logged(tmp_path, STEPS + TRACEBACK + "bye\n"))
    assert found.at == "/me/err.py:6"
    assert [one.text for one in found.lines] == [line for line in TRACEBACK.splitlines() if "^^" not in line]
    assert [one.line for one in found.lines] == sorted(one.line for one in found.lines)
    assert found.near(place, 5) == (
        '  File "/me/err.py", line 6, in main',
        "    layer(torch.zeros(16, 64))",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x64 and 65x3)",
    )


@pytest.mark.parametrize("label", ["", "[rank1]: "])
def test_what_others_print_within_a_traceback_is_left_out(tmp_path: Path, label: str) -> None:
    lines = TRACEBACK.splitlines(keepends=True)
    mixed = "".join(f"{label}{line}" for line in lines)
    at = mixed.index(f"{label}    layer")
    found, _ = excerpt(logged(tmp_path, mixed[:at] + "step 7 loss 0.1\n" + mixed[at:]))
    texts = [one.text for one in found.lines]
    assert texts == [f"{label}{line}" for line in TRACEBACK.splitlines() if "^^" not in line]
    assert found.at == "/me/err.py:6"


def test_steps_tell_nothing_where_another_line_is_left(tmp_path: Path) -> None:
    found, _ = excerpt(logged(tmp_path, STEPS + "flange 77 not seated\n"))
    assert ([one.text for one in found.lines], found.at) == (["flange 77 not seated"], "")
    found, _ = excerpt(logged(tmp_path, STEPS))
    assert [one.text for one in found.lines] == STEPS.splitlines()[-5:]
