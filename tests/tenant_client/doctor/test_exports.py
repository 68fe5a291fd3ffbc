"""Exports of log services, composed after their forms: what the program said, in its order, wherever it lies."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from federation.base.reading import CappedReader
from tenant_client.doctor.diagnosis.diagnose import Diagnosis, explain, gather
from tenant_client.doctor.diagnosis.lessons import Lessons
from tenant_client.doctor.sources.exports import looks_like, of_jobs

TRACE = """Traceback (most recent call last):
  File "/app/fit.py", line 7, in step
    table[key]
KeyError: 'eu-3'"""
SAID = ("step 10 loss 2.1", "step 20 loss 2.0", TRACE)


def lines(*records: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def at(number: int) -> str:
    return f"2026-05-02T10:00:{number:02}.5Z"


def datadog(number: int, text: str) -> dict[str, Any]:
    own = {"attributes": {"logger": "fit"}, "message": text, "status": "info", "timestamp": at(number)}
    return {"id": f"A{number}", "type": "log", "attributes": own}


def elastic(number: int, text: str) -> dict[str, Any]:
    return {"_index": "ml", "_id": str(number), "_source": {"@timestamp": at(number), "message": text}}


def google(number: int, text: str) -> dict[str, Any]:
    return {"insertId": str(number), "timestamp": at(number), "jsonPayload": {"message": text}}


def splunk(number: int, text: str) -> dict[str, Any]:
    return {"preview": False, "result": {"_time": at(number), "_raw": text}}


def azure(number: int, text: str) -> dict[str, Any]:
    return {"TimeGenerated": at(number), "LogMessage": text}


def fluentd(number: int, text: str) -> dict[str, Any]:
    return {"time": at(number), "log": json.dumps({"level": "error", "message": text})}


ALL = (datadog, elastic, google, splunk, azure, fluentd)
LOKI = [[str(1_777_000_000_000_000_000 + number), text] for number, text in enumerate(SAID)]
DOCUMENTS: dict[str, Any] = {
    "Elastic": {"took": 3, "hits": {"total": {"value": 3}, "hits": [elastic(n, text) for n, text in enumerate(SAID)]}},
    "Loki": {"status": "success", "data": {"resultType": "streams", "result": [{"stream": {}, "values": LOKI[::-1]}]}},
    "CloudWatch": {"events": [{"timestamp": 1000 + n, "message": text} for n, text in enumerate(SAID)]},
    "an array": [google(number, text) for number, text in enumerate(SAID)][::-1],
}


def diagnosed(text: str, folder: Path) -> Diagnosis:
    (folder / "export.json").write_text(text, encoding="utf-8")
    return explain(gather([folder / "export.json"]), Lessons())


def said(text: str) -> list[str]:
    return of_jobs(CappedReader(io.BytesIO(text.encode()), "x", 1 << 26)).read().decode().splitlines()


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("step", [1, -1])
def test_a_traceback_in_a_record_is_read_in_either_order(form: Any, step: int, tmp_path: Path) -> None:
    text = lines(*[form(number, one) for number, one in enumerate(SAID)][::step])
    found = diagnosed(text, tmp_path)
    assert found.reason == "key_error"
    assert found.root is not None
    assert found.root.line == 3


@pytest.mark.parametrize("form", ALL)
def test_a_traceback_of_a_record_a_line_comes_together(form: Any, tmp_path: Path) -> None:
    told = [*SAID[:2], *TRACE.splitlines()]
    assert diagnosed(lines(*[form(n, one) for n, one in enumerate(told)][::-1]), tmp_path).reason == "key_error"


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_document_of_records_is_read(document: Any, indent: int | None, tmp_path: Path) -> None:
    assert diagnosed(json.dumps(document, indent=indent), tmp_path).reason == "key_error"


@pytest.mark.parametrize("header", ["Date,Host,Message", '"@timestamp","host","message"', "_time,host,_raw"])
def test_a_table_of_records_is_read_in_the_order_of_time(header: str, tmp_path: Path) -> None:
    quoted = (one.replace('"', '""') for one in SAID)
    rows = [f'"{at(number)}",n7,"{one}"\n' for number, one in enumerate(quoted)]
    assert diagnosed(f"{header}\n{''.join(rows[::-1])}", tmp_path).reason == "key_error"
    assert said(f"{header}\n{''.join(rows[::-1])}")[:2] == [*SAID[:2]]
    assert not looks_like("step,loss,timestamp\n1,2.0,1777000000\n")


@pytest.mark.parametrize("form", ALL)
def test_a_healthy_export_names_no_cause(form: Any, tmp_path: Path) -> None:
    found = diagnosed(lines(*(form(n, f"step {n} loss {9 - n}.0") for n in range(9))), tmp_path)
    assert (found.reason, found.root, found.symptom) == ("unknown", None, None)


def test_what_failed_before_the_job_went_on_is_not_taken_for_its_end(tmp_path: Path) -> None:
    """In the file the traceback is the last: it is the oldest."""
    told = [TRACE, *(f"step {n} loss 2.{n}" for n in range(1, 9)), "Training completed successfully"]
    assert diagnosed(lines(*[datadog(n, one) for n, one in enumerate(told)][::-1]), tmp_path).reason == "unknown"


def test_records_of_one_time_keep_their_order_and_that_of_the_file() -> None:
    old, new = [datadog(1, one) for one in "ab"], [datadog(2, one) for one in "cd"]
    assert said(lines(*old, *new)) == ["a", "b", "c", "d"]
    assert said(lines(*[*old, *new][::-1])) == ["a", "b", "c", "d"]


def test_a_trace_beside_the_message_is_read_and_docker_s_lines_as_they_come() -> None:
    record = datadog(1, "saving failed")
    record["attributes"]["attributes"]["error"] = {"kind": "KeyError", "stack": TRACE}
    assert said(lines(record))[-1].endswith("KeyError: 'eu-3'")
    assert not looks_like(lines({"log": "a", "time": at(1)}, {"log": "b", "time": at(2)}))
    assert not looks_like(json.dumps({"apiVersion": "v1", "items": [{"message": "x"}]}))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([lines(datadog(1, TRACE), google(2, "x")), json.dumps(DOCUMENTS["Loki"])]), st.data())
def test_any_text_ends_in_lines(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(text)))
        put = data.draw(
            st.sampled_from(["", "9" * 400, "[" * 2000, "\0", ": ", "\n\n", '"', "-1", "null", "²", "1e999"])
        )
        text = text[:at] + put + text[at + data.draw(st.integers(0, 40)) :]
    looks_like(text)
    assert isinstance(said(text), list)
