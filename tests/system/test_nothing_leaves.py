"""Nothing readable leaves: canaries in traces and logs are looked for in every byte that a tenant's process sends."""

import base64
import gzip
import json
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from crypto.ids import LeaseId, RoundId
from crypto.signing import open_signed_by
from federation.protocol.noise import SystemSampler
from federation.protocol.round_messages import Ownership
from provider_server.fleet.leases import Lease
from provider_server.rounds.network.flower_app import server_app
from provider_server.rounds.network.superlink import run_server_app
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.week import Tenants, federated_week
from simulation.run.federation import Federation, found
from tenant_client.doctor.diagnosis.diagnose import diagnose, gather
from tenant_client.doctor.records.journal import Failure
from tenant_client.doctor.workload.describe import describe_files
from tenant_client.doctor.workload.descriptor import Descriptor
from tenant_client.rounds.home import open_tenant
from tenant_client.rounds.network.flower_app import client_app
from tenant_client.rounds.tenant import StartedLease
from tests.support.changing import replace
from tests.support.recorder import recorder
from tests.support.superlink import pinned_node, superlink
from trustee.trustee import Trustee

OPERATOR, WIDTHS = "canarylib::sing_q7w3", (104729, 1299709)
PATH, HOST, VERSION = "/secret/canary_zx81/train.py", "canary-host-vt52", "9.8.7+canarypdp11"
SOFTWARE = "6.5.4+canaryvax780"
CANARIES = [OPERATOR, "sing_q7w3", PATH, "canary_zx81", HOST, VERSION, SOFTWARE, "canary_kernel_k5", *map(str, WIDTHS)]
WEEK = (0, 168)


def forms(text: str) -> Iterator[bytes]:
    """The ways in which a text could show in a stream without being hidden."""
    plain = text.encode()
    yield from (plain, text.encode("utf-16-le"), plain.hex().encode(), plain[::-1], plain.upper())
    for shift in range(3):  # base64 depends on where a text stands, at its ends on the neighbours
        coded = base64.b64encode(b"\0" * shift + plain)
        yield coded[-(-8 * shift // 6) : 8 * (shift + len(plain)) // 6]


def leaked(stream: bytes) -> list[str]:
    return [canary for canary in CANARIES if any(form in stream for form in forms(canary) if len(form) >= 5)]


@pytest.fixture
def workload(tmp_path: Path) -> Descriptor:
    calls = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "ts": at,
            "dur": 1,
            "args": {"Input Dims": dims, "Input type": types},
        }
        for at, (name, dims, types) in enumerate(
            [
                ("aten::linear", [[32, WIDTHS[0]], list(WIDTHS), []], ["float", "float", ""]),
                (OPERATOR, [[32, WIDTHS[1]]], ["float"]),
            ]
        )
    ]
    kernel = {"ph": "X", "cat": "kernel", "name": "canary_kernel_k5", "ts": 9, "dur": 1, "args": {}}
    trace = {
        "host_name": HOST,
        "pharoah_versions": {"torch": VERSION},
        "pharoah_software": {"deepspeed": SOFTWARE},
        "traceName": PATH,
        "traceEvents": [*calls, kernel],
    }
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps(trace).encode()))
    found = describe_files([file])
    assert found.software == (("deepspeed", SOFTWARE),)
    return found


@pytest.fixture
def reason(tmp_path: Path) -> str:
    log = tmp_path / "job.log"
    log.write_text(
        f"[rank3]: Traceback (most recent call last):\n"
        f'[rank3]:   File "{PATH}", line 7, in {OPERATOR}\n'
        f"[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered on {HOST}\n"
    )
    diagnosis = diagnose(gather([log]).evidence)
    assert PATH in diagnosis.sentence or HOST in str(diagnosis)  # the owner does see it
    return diagnosis.reason


@pytest.mark.xdist_group("superlink")
def test_no_canary_is_in_any_byte_that_leaves(
    tmp_path: Path, workload: Descriptor, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert any(name == OPERATOR for name, _ in workload.operators)
    settings = PlanSettings(
        1.0, 1e-8, cohort_minimum=2, noise_shares=1, owners_minimum=2, windows=(1, 2), weeks_per_epoch=2
    )
    policy = {"owners_minimum": 2, "cohort_minimum": 2, "colluding_share": 0.0}
    founded = found(tmp_path / "homes", 2, settings, policy, SystemSampler())
    for tenant in founded.tenants:
        tenant.close()
    trustees = tuple(Overheard(trustee) for trustee in founded.trustees)
    homes = sorted((tmp_path / "homes" / "tenants").iterdir())
    tenants = tuple(open_tenant(home, trustees, os.urandom, SystemSampler()) for home in homes)
    federation = replace(founded, tenants=tenants)
    happen(federation, workload, reason)
    rounds: list[RoundId] = []

    def run(tenants: Tenants) -> None:
        rounds.append(federated_week(federation.provider, federation.publisher, tenants, trustees, WEEK).plan.round_id)

    with ExitStack() as stack:
        link = stack.enter_context(superlink(tmp_path))
        wire = stack.enter_context(recorder(link.address))
        for tenant in federation.tenants:
            stack.enter_context(pinned_node(wire.address, client_app(tenant.answer)))
        run_server_app(link.address, server_app(run, wanted=2))

    for tenant in federation.tenants:  # the recorder does hear what is said
        assert (tenant.outbox.sent(rounds[0]) or b"nothing") in wire.everything
    for owned in federation.provider.store.ownerships(0):
        assert owned in wire.everything
        assert open_signed_by(Ownership, owned, federation.provider.directory.verify_key).tokens
    assert {kind for trustee in trustees for kind, _ in trustee.said} == {"follow", "evaluate", "endorse", "unmask"}
    assert leaked(b"".join(message for trustee in trustees for _, message in trustee.said)) == []
    assert leaked(wire.everything) == []
    assert leaked(caplog.text.encode()) == []
    federation.close()
    for file in sorted((tmp_path / "homes").rglob("*")):  # the provider's, the trustees' and the tenants' own
        if file.is_file():
            assert leaked(file.read_bytes()) == [], file.name


class Overheard:
    """A trustee, and every byte that it was sent or that it answered."""

    def __init__(self, trustee: Trustee) -> None:
        self._trustee = trustee
        self.index = trustee.index
        self.said: list[tuple[str, bytes]] = []

    def _hear(self, kind: str, message: bytes) -> bytes:
        answer: bytes = getattr(self._trustee, kind)(message)
        self.said += [(kind, message), (kind, answer)]
        return answer

    def evaluate(self, request: bytes) -> bytes:
        return self._hear("evaluate", request)

    def follow(self, update: bytes) -> bytes:
        return self._hear("follow", update)

    def endorse(self, request: bytes) -> bytes:
        return self._hear("endorse", request)

    def unmask(self, call: bytes) -> bytes:
        return self._hear("unmask", call)


def happen(federation: Federation, workload: Descriptor, reason: str) -> None:
    provider = federation.provider
    for number, tenant in enumerate(federation.tenants):
        lease = LeaseId(bytes([number]) + bytes(15))
        labels = provider.context_labels(0, "a100 hall 3", 0)
        provider.record_leases([Lease(lease, tenant.id, 4, 1.0, 100.0, labels)])
        tenant.start_leases([StartedLease(lease, 1.0, labels, workload)], provider.epoch(0))
        tenant.record([Failure(str(lease), 30.0, 29.0, reason)])


def test_the_search_finds_a_canary_in_each_form() -> None:
    for canary in CANARIES:
        for shift in range(3):
            assert canary in leaked(b"x" * shift + base64.b64encode(b"y" * shift + f" {canary} ".encode()))
        assert canary in leaked(f"{{{canary}}}".encode())
        assert canary in leaked(canary.encode("utf-16-le"))
