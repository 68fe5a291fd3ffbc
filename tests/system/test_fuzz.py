"""Every fuzz target holds for its seeds and for what plain mutation makes of them; `make fuzz` takes longer over it."""

import io
from pathlib import Path

import pytest

from federation.base.reading import CappedReader
from fuzz import run
from fuzz.mutation import until_broken
from fuzz.targets import TARGETS, Broken, Target, require
from tenant_client.doctor.sources import job_log

# Found and not mended yet: an input, and what escapes where the target's own error should. `make fuzz` stops at them.
# Found and mended.
CUT_OFF = (
    b"Traceback (most recent call last):\n"
    b"ModuleNotFoundError: No module named 'flash_attn_3'\n\n"
    b"During handling of the above exception, another exception occurred:\n\n"
    b'Traceback (most recent call last):\n  File "attention.py", line 6, in <module>\n'
)
MENDED = [
    ("job-log", CUT_OFF),  # IndexError: the log ended within the second traceback
    ("scenario", b"x = " + b"9" * 5000),  # ValueError: tomllib hands on int's limit of 4300 digits
    ("scenario", b"x = " + b"[" * 5000),  # RecursionError
    ("policy", b"x = " + b"[" * 5000),  # RecursionError
    (
        "diagnosis",
        b"Root Cause (first observed failure):\n  rank      : 1 (local_rank: 1)\n  exitcode  : --5 (pid: 7)\n",
    ),
    (
        "diagnosis",
        b"[Mon Nov 99999999999 12:00:01 2026] NVRM: Xid (PCI:0000:3b:00): 79, fallen off\n" * 3,
    ),  # OverflowError
    ("hostlist", b"n[0-9999999999][x]"),  # it walked ten thousand million numbers
    ("fabric", b'Switch\t41 "S-e8eb"\t# "leaf1"\n[' + b"9" * 5000 + b']\t"H-b8ce"[1]\n'),
    ("lease-event", b'{"event":"end","lease":"' + b"0a" * 16 + b'","at":"9999-12-31T23:59:59-12:00"}'),
    (
        "outages",
        b'{"items":[{"metadata":{"name":"n"},"status":{"conditions":[{"type":"Ready","status":"False",'
        b'"lastTransitionTime":"0001-01-01T00:00:00"}]}}]}',
    ),
    ("lessons", b'{"version": 1, "lessons": {"\\ud800 x": "nvlink_error"}}'),  # UnicodeEncodeError, at saving
]

every_target = pytest.mark.parametrize("name", TARGETS)
MOMENT_S = 0.15


@every_target
def test_a_target_holds_for_its_seeds_and_for_what_is_like_them(name: str) -> None:
    target = TARGETS[name]
    assert target.invariant
    seeds = list(target.seeds())
    assert seeds
    target.check(seeds[0])  # tables are loaded at first use
    count, broken = until_broken(target.check, seeds, MOMENT_S, seed=1)
    if count <= 1 and broken is None:  # the machine is busy
        count, broken = until_broken(target.check, seeds, 40 * MOMENT_S, seed=1)
    assert broken is None, f"{broken[0]!r}: {broken[1]!r}"
    assert count > 1


@pytest.mark.parametrize(("name", "data"), MENDED)
def test_what_was_found_is_mended(name: str, data: bytes) -> None:
    TARGETS[name].check(data)


def test_an_exception_whose_successor_is_cut_off_speaks_for_itself() -> None:
    (seen,) = job_log.read(CappedReader(io.BytesIO(CUT_OFF), "job.log", 1 << 20))
    assert (seen.line, seen.reason) == (2, "import_error")


def test_a_number_beyond_every_float_is_refused_in_a_scenario() -> None:
    TARGETS["scenario"].check(with_every_key(b"epsilon = 1" + b"0" * 400))  # OverflowError, once


def with_every_key(line: bytes) -> bytes:
    """A whole scenario in which one key has the value of this line."""
    (seed, *_) = TARGETS["scenario"].seeds()
    key = line.partition(b" = ")[0]
    return b"\n".join(line if row.startswith(key + b" ") else row for row in seed.splitlines())


def test_what_breaks_an_invariant_is_found_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without atheris, so that the test is the same everywhere."""

    def brittle(data: bytes) -> None:
        require("no byte is 0xff", holds=b"\xff" not in data)

    brittle_target = Target("brittle", "no byte is 0xff", brittle, lambda: [bytes(8)])
    monkeypatch.setitem(TARGETS, "brittle", brittle_target)
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    assert run.main(["brittle", "--seconds", "20", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    (kept,) = (tmp_path / "findings").iterdir()
    assert said.out == f"{kept}\n"
    assert "no byte is 0xff" in said.err
    with pytest.raises(Broken):
        run.main(["brittle", "--input", str(kept)])


def test_a_target_that_holds_leaves_nothing_and_status_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    assert run.main(["progress", "--seconds", "0.1", "--out", str(tmp_path)]) == 0
    assert list((tmp_path / "findings").iterdir()) == []


def test_an_unknown_target_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        run.main(["no-such-thing"])
    assert refused.value.code == 2
    assert "unknown target no-such-thing; the targets are message, signed" in capsys.readouterr().err
