"""Exit statuses: what they say, and that they never name a reason alone."""

import pytest
from hypothesis import given, strategies as st

from tenant_client.diagnosis.diagnose import diagnose
from tenant_client.sources.evidence import Evidence, Role
from tenant_client.sources.exit_status import of


@pytest.mark.parametrize(
    ("status", "says", "role"),
    [
        (137, "SIGKILL", Role.SYMPTOM), (-9, "SIGKILL", Role.SYMPTOM), (143, "SIGTERM", Role.TEARDOWN),
        (134, "SIGABRT", Role.SYMPTOM), (139, "SIGSEGV", Role.SYMPTOM), (2, "usage", Role.TEARDOWN),
        (1, "an error", Role.TEARDOWN), (93, "failed", Role.TEARDOWN),
    ],
)  # fmt: skip
def test_what_a_status_says(status: int, says: str, role: Role) -> None:
    seen = of(status, rank=3)
    assert seen is not None
    assert says in seen.text
    assert (seen.reason, seen.role, seen.rank) == ("unknown", role, 3)


def test_success_is_no_evidence() -> None:
    assert of(0) is None


@given(st.integers())
def test_no_status_alone_names_a_reason(status: int) -> None:
    seen = of(status)
    assert diagnose([seen] if seen else []).reason == "unknown"


def test_a_kill_that_the_kernel_confirms_is_out_of_memory() -> None:
    killed = of(137)
    assert killed is not None
    kernel = Evidence("out_of_memory_error", Role.ROOT, "kernel_log", "dmesg", 4, "Killed process 7 (python3)")
    assert diagnose([killed, kernel]).reason == "out_of_memory_error"
