"""The cue table and the Xid catalogue: valid as shipped, refused when wrong, and gated without gaps."""

import io
import itertools
import json
import re
import string
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from federation.base.reading import CappedReader, ReadLimits
from federation.protocol.causes import CAUSES, Domain
from federation.protocol.toml_tables import BadTable
from tenant_client.doctor.sources.cues import SECTIONS, Level, level_of, match_exception, match_line, parse, table
from tenant_client.doctor.sources.reasons import REASONS
from tenant_client.doctor.sources.scanning import Scanner, gate_of
from tenant_client.doctor.sources.xid import XIDS, parse as parse_xids

ROOT = Path(__file__).resolve().parents[3]
CATALOG = ROOT.parent / "shared" / "data" / "xid" / "xid_catalog.json"
TABLE = (ROOT / "tenant_client/doctor/sources/cues.toml").read_text(encoding="utf-8")
LINE_SECTIONS = tuple(name for name in SECTIONS if name != "exception")


def test_every_reason_has_a_cue_for_a_root_or_is_a_symptom_by_nature() -> None:
    cues = [cue for section in table().sections.values() for cue in section]
    roots = {cue.reason for cue in cues if cue.role == "root"}
    assert set(CAUSES) - {REASONS[reason].parent for reason in roots} == {"nccl_timeout_error", "nccl_remote_error"}
    assert {REASONS[cue.reason].parent for cue in cues if cue.reason != "unknown"} - {""} == set(CAUSES)
    elsewhere = {"killed", "exit_code"}  # an exit status names them
    elsewhere |= {"uneven_end"}  # who ended and who did not
    elsewhere |= {reason for reason in REASONS if reason.startswith("cancelled_")}  # how the job stood at the signal
    assert set(REASONS) - set(CAUSES) - elsewhere - {cue.reason for cue in cues} == set()


@pytest.mark.parametrize("section", LINE_SECTIONS)
def test_of_a_section_the_first_cue_that_matches_an_example_is_its_own(section: str) -> None:
    for cue in table().sections[section]:
        assert match_line(cue.example, [section]) is cue, cue.example


def test_of_exceptions_the_first_cue_that_matches_an_example_is_its_own_where_no_frame_is_asked() -> None:
    for cue in table().sections["exception"]:
        if cue.frames is None:
            assert match_exception(cue.example, ()) is cue, cue.example


def test_the_module_of_a_frame_tells_a_checkpoint_from_a_dictionary() -> None:
    inside = match_exception("KeyError: 'w'", ("train.py:main", "engine/checkpoint.py:load_checkpoint"))
    outside = match_exception("KeyError: 'w'", ("train.py:main",))
    assert inside is not None
    assert outside is not None
    assert (inside.reason, outside.reason) == ("model_loading_error", "key_error")


@pytest.mark.parametrize("last", ["IndexError: pop from empty list", "KeyError: 209", "UnicodeDecodeError: 'utf-8' …"])
def test_whatever_a_damaged_pickle_fails_with_is_told_as_its_damage(last: str) -> None:
    cue = match_exception(last, ("train.py:main", "torch/_weights_only_unpickler.py:load"))
    assert cue is not None
    assert cue.reason == "model_loading_error"
    assert "damaged" in cue.advice


def test_levels_order_hardware_before_network_before_programs() -> None:
    assert level_of("nvlink_error") < level_of("cuda_error") < level_of("network_error") < level_of("key_error")
    assert level_of("unknown") is Level.PROGRAM


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('reason = "key_error"', 'reason = "keyerror"', "'keyerror' is not a reason"),
        ('role = "teardown"', 'role = "end"', "device[3].role"),
        ('level = "worker"', 'level = "nowhere"', ".level"),
        ("example = \"KeyError: 'input_ids'\"", 'example = "nothing"', "does not match its own example"),
        ('literals = ["fallen off"]', 'literals = ["GPU has"]', "holds no gate word"),
        ('"Kill", "Kernel panic",', '"Kill",', "holds no gate word"),
        ("[[kernel]]", "[[colonel]]", "unknown key 'colonel'"),
    ],
)
def test_a_wrong_table_is_refused(before: str, after: str, says: str) -> None:
    assert before in TABLE
    with pytest.raises(BadTable, match=re.escape(says)):
        parse(TABLE.replace(before, after, 1) if before != "[[kernel]]" else TABLE.replace(before, after))


@pytest.mark.parametrize(
    "row",
    [
        'text = "t"\nimmediate = ""\ninvestigate = ""\nreason = "no_reason"\nrole = "root"',
        'text = "t"\nimmediate = ""\ninvestigate = ""\nreason = ""\nrole = "cause"',
        'text = "t"\nimmediate = ""\nreason = ""\nrole = "root"',
    ],
)
def test_a_wrong_xid_row_is_refused(row: str) -> None:
    with pytest.raises(BadTable, match=r"no_reason|role|investigate"):
        parse_xids(f'[actions]\n"" = ""\n[codes.13]\n{row}\n')


@pytest.mark.parametrize(
    ("code", "reason", "role"),
    [
        (48, "ecc_error", "root"), (94, "ecc_error", "sympathetic"), (74, "nvlink_error", "root"),
        (149, "nvlink_error", "by_severity"), (79, "device_lost", "root"), (45, "cuda_error", "symptom"),
        (154, "", "symptom"),
    ],
)  # fmt: skip
def test_what_the_catalogue_says_of_well_known_codes(code: int, reason: str, role: str) -> None:
    assert (XIDS[code].reason, XIDS[code].role) == (reason, role)


@pytest.mark.skipif(not CATALOG.exists(), reason="../shared/data/xid/xid_catalog.json is missing")
def test_codes_and_actions_are_those_of_nvidias_catalogue() -> None:
    theirs = {row["code"]: row for row in json.loads(CATALOG.read_text())["catalog"] if row["description"] != "Unused"}
    assert {code for code in XIDS if code <= max(theirs)} == set(theirs)
    assert {code: xid.immediate for code, xid in XIDS.items()} == {
        code: row["immediate_resolution"] for code, row in theirs.items()
    } | {code: "" for code in XIDS if code > max(theirs)}


# What CUDA's errors say (cudaGetErrorString) that only the program or its build can cause.
OWN = (
    "invalid argument", "invalid configuration argument", "invalid device ordinal", "invalid resource handle",
    "invalid device function", "invalid device symbol", "invalid copy direction for memcpy",
    "no kernel image is available for execution on the device", "device kernel image is invalid",
    "no CUDA-capable device is detected", "CUDA driver is a stub library", "a PTX JIT compilation failed",
    "PTX JIT compiler library not found", "the provided PTX was compiled with an unsupported toolchain.",
    "too many resources requested for launch", "too many blocks in cooperative launch", "named symbol not found",
    "peer access is not supported between these two devices", "peer access has not been enabled",
    "pointer does not correspond to a registered memory region", "operation not permitted", "operation not supported",
    "operation not permitted when stream is capturing", "capturing stream has unjoined work",
    "operation failed due to a previous error during capture", "file not found", "initialization error",
    "operation would make the legacy stream depend on a capturing blocking stream", "feature not yet implemented",
    "launch would exceed maximum depth of nested launches", "OS call failed or operation not supported on this OS",
    "the graph update was not performed because it included changes which violated constraints specific to it",
    "one or more resources passed in are not valid resource types for the operation", "device not ready",
)  # fmt: skip
DEVICES = (
    "unspecified launch failure", "uncorrectable ECC error encountered", "an illegal memory access was encountered",
    "uncorrectable NVLink error detected during the execution", "hardware stack error", "unknown error",
    "Invalid access of peer GPU memory over nvlink or a hardware error", "an illegal instruction was encountered",
    "CUDA-capable device(s) is/are busy or unavailable", "system not yet initialized", "invalid program counter",
    "the launch timed out and was terminated",
)  # fmt: skip


@pytest.mark.parametrize(("words", "own"), [*((one, True) for one in OWN), *((one, False) for one in DEVICES)])
def test_cudas_errors_are_the_programs_or_the_devices_wherever_they_are_read(words: str, *, own: bool) -> None:
    for cue in (
        match_exception(f"torch.AcceleratorError: CUDA error: {words}", ()),
        match_line(f"  what():  CUDA error: {words}", ("job",)),
        match_line(f"Cuda failure 1 '{words}'", ("end",)),
    ):
        assert cue is not None
        assert (cue.domain or REASONS[cue.reason].domain) == (Domain.FRAMEWORK if own else Domain.INFRASTRUCTURE)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_search_finds_every_literal_that_a_line_may_hold(section: str) -> None:
    literals = [(literal, cue) for cue in table().sections[section] for literal in cue.literals]
    for text in (cue.example for cues in table().sections.values() for cue in cues):
        bare = "".join(letter for letter in text if letter not in string.digits)
        may = [one for one in literals if "".join(letter for letter in one[0] if letter not in string.digits) in bare]
        assert list(table().literals[section].within(bare.encode())) == may


# ---- the gate ------------------------------------------------------------------------------------------------------


class Pieces:
    """A source that gives as few bytes at a time as it is told."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._stream = io.BytesIO(data)
        self._sizes = sizes

    def read(self, size: int, /) -> bytes:
        wanted = self._sizes.pop(0) if self._sizes else size
        return self._stream.read(min(size, wanted))


def hits(data: bytes, sizes: list[int], limits: ReadLimits) -> list[tuple[int, str]]:
    scanner = Scanner(
        CappedReader(Pieces(data, sizes), "a.log", len(data)), gate_of(["Xid (", "needle", "part: 0"]), limits
    )
    found = []
    while (line := scanner.hit()) is not None:
        found.append((line.number, line.text))
    return found


@given(
    st.lists(
        st.sampled_from(
            [
                *("straw", "a needle in it", "Xid (1", "", "x" * 90, "bar\rneedle\rbar"),
                *("part: 0", "part: 10", "pa2rt: 0", "12 straws", "345 straws"),
            ]
        ),
        max_size=30,
    ),
    st.lists(st.integers(1, 40), max_size=60),
)
def test_no_word_is_missed_wherever_blocks_end(rows: list[str], sizes: list[int]) -> None:
    data = "\n".join(rows).encode()
    wanted = [
        (number, piece)
        for number, row in enumerate(rows, 1)
        for piece in row.split("\r")
        if "needle" in piece or "Xid (" in piece or "part: 0" in piece
    ]
    assert hits(data, list(sizes), ReadLimits()) == wanted


def test_words_are_found_in_a_log_of_more_kinds_of_lines_than_are_kept() -> None:
    kinds = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=5)]
    rows = [row for kind in kinds for row in (f"{kind} 1", f"{kind} 22", f"{kind} needle {kind}" * (kind[3:] == "hh"))]
    wanted = [(number, row) for number, row in enumerate(rows, 1) if "needle" in row]
    assert hits("\n".join(rows).encode(), [], ReadLimits()) == wanted


@pytest.mark.parametrize("before", range(0, 1400, 13))
def test_a_word_within_a_line_beyond_the_cap_is_found(before: int) -> None:
    data = b"." * before + b"needle" + b"." * (3000 - before) + b"\nnext needle\n"
    found = hits(data, [700, 700, 700], ReadLimits(line_bytes=600))
    assert found[-1] == (2, "next needle")
    assert {number for number, text in found[:-1] if "needle" in text} == {1}


def test_a_word_across_the_edge_of_real_blocks_is_found() -> None:
    line = b"a needle here\n"
    for shift in range(len(line)):
        data = b"\n" * ((1 << 20) - shift) + line
        assert hits(data, [], ReadLimits()) == [((1 << 20) - shift + 1, "a needle here")]


@pytest.mark.parametrize(
    "text", ["ok, 0 uncorrectable ECC errors", "Uncorrectable ECC error count: 0", "0 total CUDA error: x"]
)
def test_a_line_that_counts_none_says_nothing(text: str) -> None:
    assert match_line(text, ("job", "end")) is None
    assert match_line(text.replace("0", "10"), ("job", "end")) is not None
