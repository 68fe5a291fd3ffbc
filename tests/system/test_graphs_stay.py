"""Neither side's graph nor an explanation crosses the trust boundary: nobody who sends imports one, no socket opens."""

import ast
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

import provider_server.program.cli
import tenant_client.program.cli

ROOT = Path(__file__).resolve().parents[2]
# Each module that holds a graph or an explanation, and who may import it: nothing that sends or makes messages. Votes
# (docs/fabric.md) take two things out of graphs. The provider's parts become keyed tokens of grants; the two nodes that
# an attempt of the tenant stalled between become a vote in its journal, and counts with noise are all that leaves.
MAY_IMPORT = {
    "tenant_client.doctor.sources.nccl_topology": {
        "tenant_client/doctor/diagnosis/rank_graph.py",
        "tenant_client/doctor/run/diagnose_attempt.py",
        "tenant_client/doctor/run/lease_paths.py",
    },
    "tenant_client.doctor.run.lease_paths": {
        "tenant_client/program/pages/app.py",
        "tenant_client/program/verbs/path.py",
    },
    "tenant_client.doctor.diagnosis.rank_graph": {
        "tenant_client/doctor/run/lease_paths.py",
        "tenant_client/doctor/diagnosis/network_pair.py",
        "tenant_client/doctor/run/diagnose_attempt.py",
    },
    "tenant_client.doctor.advice.clues": {
        "tenant_client/doctor/advice/explanation.py",
        "tenant_client/doctor/advice/failure_facts.py",
        "tenant_client/doctor/advice/replacement.py",
    },
    "tenant_client.doctor.advice.explanation": {
        "tenant_client/doctor/advice/failure_facts.py",
        "tenant_client/doctor/advice/replacement.py",
        "tenant_client/rounds/disclosure/happened.py",
        "tenant_client/program/verbs/explain.py",
        "tenant_client/program/verbs/replacement.py",
        "tenant_client/program/verbs/show.py",
    },
    "tenant_client.doctor.advice.failure_facts": {
        "tenant_client/rounds/disclosure/happened.py",
        "tenant_client/program/verbs/explain.py",
        "tenant_client/program/verbs/replacement.py",
        "tenant_client/program/verbs/show.py",
    },
    "tenant_client.doctor.advice.replacement": {"tenant_client/program/verbs/replacement.py"},
    "provider_server.fleet.fabric": {
        "provider_server/fleet/fabric_files.py",
        "provider_server/fleet/parts.py",
        "plugins/fabric/src/pharoah_fabric/routes.py",
        "plugins/fabric/src/pharoah_fabric/verb.py",
    },
    "provider_server.fleet.fabric_files": {
        "provider_server/rounds/home.py",
        "plugins/fabric/src/pharoah_fabric/verb.py",
    },
}


def imported(file: Path) -> set[str]:
    """The modules that a file imports, at its top or within."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_nothing_that_sends_imports_a_graph() -> None:
    packages = ("crypto", "federation", "trustee", "tenant_client", "provider_server", "plugins/*/src")
    files = [file for package in packages for root in ROOT.glob(package) for file in root.rglob("*.py")]
    assert len(files) > 300
    importers: dict[str, set[str]] = {module: set() for module in MAY_IMPORT}
    for file in files:
        for module in imported(file) & MAY_IMPORT.keys():
            importers[module].add(str(file.relative_to(ROOT)))
    assert importers == MAY_IMPORT


class Opened(Exception):
    """Somebody wants to talk."""


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Opened

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "sendto", refuse)


@pytest.mark.usefixtures("no_sockets")
def test_paths_and_explanations_are_shown_without_a_connection(tmp_path: Path) -> None:
    from contextlib import closing

    from tenant_client.doctor.records.attempts import AttemptCause, Attempts, AttemptState
    from tenant_client.doctor.records.database import open_database

    log, fabric = tmp_path / "nccl.log", tmp_path / "topology.conf"
    link = "gpu-a:31:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"
    log.write_text(link + "gpu-a:31:77 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1a000 - Init COMPLETE\n")
    fabric.write_text("SwitchName=s0 Nodes=n[1-2]\n")
    with closing(open_database(tmp_path / "tenant.db")) as connection:
        attempts = Attempts(connection)
        attempts.begin("lease-1", 0.0)
        attempts.end("lease-1", 1, AttemptState.FAILED, 60.0, exit_code=1)
        attempts.explain("lease-1", 1, AttemptCause("key_error", sentence="KeyError: 'x'"))
    (tmp_path / "provider").mkdir()
    (tmp_path / "provider" / "provider.toml").write_text("")
    tenant, provider = ["--home", str(tmp_path)], ["--home", str(tmp_path / "provider")]
    for app, words in (
        (tenant_client.program.cli.app, ["path", "lease-1", "--from", "0", "--to", "1", "--log", str(log), *tenant]),
        (tenant_client.program.cli.app, ["show", "lease-1", "--only", "explain", *tenant]),
        (tenant_client.program.cli.app, ["replacement", "lease-1", *tenant]),
        (provider_server.program.cli.app, ["nodes", "path", "n1", "n2", "--fabric", str(fabric), *provider]),
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
