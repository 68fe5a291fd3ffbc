"""Exit statuses: what they say, and that rounds count none of what they alone support as infrastructure."""

import pytest
from hypothesis import given, strategies as st

from federation.protocol.causes import Domain, causes_of
from tenant_client.doctor.diagnosis.diagnose import diagnose
from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.exit_status import of
from tenant_client.doctor.sources.reasons import counted_as

OWN = (Domain.FRAMEWORK, Domain.SCRIPT)


@pytest.mark.parametrize(
    ("status", "says", "reason", "role"),
    [
        (137, "SIGKILL", "killed", Role.ROOT), (-9, "SIGKILL", "killed", Role.ROOT),
        (143, "SIGTERM", "unknown", Role.TEARDOWN), (134, "SIGABRT", "aborted", Role.SYMPTOM),
        (139, "SIGSEGV", "segmentation_fault", Role.ROOT), (2, "usage", "unknown", Role.TEARDOWN),
        (1, "an error", "unknown", Role.TEARDOWN), (93, "failed", "exit_code", Role.ROOT),
    ],
)  # fmt: skip
def test_what_a_status_says(status: int, says: str, reason: str, role: Role) -> None:
    seen = of(status, rank=3)
    assert seen is not None
    assert says in seen.text
    assert (seen.reason, seen.role, seen.rank) == (reason, role, 3)


def test_success_is_no_evidence() -> None:
    assert of(0) is None


@given(st.integers())
def test_no_status_alone_is_counted_as_infrastructure(status: int) -> None:
    seen = of(status)
    reason = diagnose([seen] if seen else []).reason
    assert counted_as(reason) in ("unknown", *(cause.slug for domain in OWN for cause in causes_of(domain)))


def test_a_kill_that_the_kernel_confirms_is_out_of_memory() -> None:
    killed = of(137)
    assert killed is not None
    kernel = Evidence("host_out_of_memory", Role.ROOT, "kernel_log", "dmesg", 4, "Killed process 7 (python3)")
    assert diagnose([killed, kernel]).reason == "host_out_of_memory"
