"""torchelastic's error files: message, stack, time and rank, and nothing but SourceError for anything else."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from federation.base.reading import SourceError
from tenant_client.doctor.diagnosis.diagnose import diagnose, gather
from tenant_client.doctor.sources.elastic import looks_like, rank_of, read
from tenant_client.doctor.sources.evidence import Evidence, Role
from tests.support.logs_of_our_own import reader

STACK = 'Traceback (most recent call last):\n  File "checkpoint.py", line 3, in load_checkpoint\n    go()\n{}\n'


def error_json(text: str, at: object = "1762142520", stack: str = STACK) -> str:
    extra = {"py_callstack": stack.format(text), "timestamp": at}
    return json.dumps({"message": {"message": text, "extraInfo": extra, "errorCode": 1}})


def one(content: str, file: str = "run/attempt_0/5/error.json") -> Evidence:
    (seen,) = read(reader(content, file))
    return seen


def test_message_stack_time_and_rank() -> None:
    seen = one(error_json("KeyError: 'w'"))
    assert (seen.reason, seen.role, seen.at_s, seen.rank, seen.line) == (
        "model_loading_error", Role.ROOT, 1762142520.0, 5, 0
    )  # fmt: skip
    assert one(error_json("KeyError: 'w'", stack="")).reason == "key_error"


@pytest.mark.parametrize(
    ("text", "reason", "role"),
    [
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "unknown", Role.TEARDOWN),
        ("SignalException: Process 7 got signal: 15", "cancelled", Role.SYMPTOM),
        ("RuntimeError: NCCL communicator was aborted on rank 3.", "runtime_error", Role.SYMPTOM),
        ("CurriculumExhausted: stage 4", "unknown", Role.ROOT),
    ],
)
def test_what_is_no_cause(text: str, reason: str, role: Role) -> None:
    seen = one(error_json(text, stack=""))
    assert (seen.reason, seen.role) == (reason, role)


@pytest.mark.parametrize("at", ["", None, "soon", [], True, "inf", "nan", -4, 10**400])
def test_a_time_that_is_none_is_left_out(at: object) -> None:
    assert one(error_json("KeyError: 'w'", at)).at_s is None


def test_a_plain_message_is_read_too() -> None:
    assert one('{"message": "OSError: [Errno 28] No space left on device"}').reason == "disk_full"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"message": 3}', '{"message": {}}', "{" * 100_000, "[" * 100_000])
def test_anything_else_is_refused(content: str) -> None:
    with pytest.raises(SourceError, match=r"error\.json"):
        one(content)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["message", "extraInfo", "timestamp", "py_callstack"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=40)
@given(st.one_of(st.binary(max_size=200), json_values.map(lambda value: json.dumps(value).encode())))
def test_any_bytes_are_evidence_or_a_source_error(data: bytes) -> None:
    with suppress(SourceError):
        list(read(reader(data, "error.json")))


def test_a_file_that_is_too_long_is_refused() -> None:
    with pytest.raises(SourceError, match="too long"):
        one('{"message": "' + "x" * (17 << 20))


def test_recognised_by_content_and_ranks_by_path() -> None:
    assert looks_like(error_json("KeyError: 'w'"))
    assert not looks_like('{"log": "message extraInfo"}')
    assert rank_of("logs/none_x/attempt_1/12/stderr.log") == 12
    assert rank_of("attempt_0/notes/stderr.log") is None


# ---- directories ---------------------------------------------------------------------------------------------------


def write(root: Path, attempt: int, rank: int, text: str, at: int, **files: Any) -> None:
    folder = root / "run_1" / f"attempt_{attempt}" / str(rank)
    folder.mkdir(parents=True)
    (folder / "error.json").write_text(error_json(text, str(at), STACK.replace("checkpoint", "train")))
    for name, content in files.items():
        (folder / f"{name}.log").write_text(content)


def test_the_earliest_rank_is_the_root_whatever_the_order_of_files(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, "ConnectionError: late", 110, stderr=STACK.format("ConnectionError: late"))
    write(tmp_path, 0, 1, "IndexError: first", 100, stderr=STACK.format("IndexError: first"))
    write(tmp_path, 0, 2, "KeyError: later", 105)
    found = diagnose(gather([tmp_path]).evidence)
    assert (found.reason, found.rank) == ("index_error", 1)


def test_of_several_attempts_the_last_one_counts(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, "KeyError: 'x'", 50)
    write(tmp_path, 1, 0, "TypeError: y", 100)
    assert diagnose(gather([tmp_path]).evidence).reason == "type_error"
