"""What `pip install pharoah` gives: the tenant core, from a wheel, with nothing but the core's own list beside it."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tenant_client.__main__ import main
from tests.support.traces import Op, kineto, operator

pytestmark = pytest.mark.xdist_group("install")  # one environment for all
ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "logs"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS_ONLY = {
    "alembic",
    "cryptography",
    "fastapi",
    "flwr",
    "google",
    "grpc",
    "httpx",
    "jinja2",
    "lifelines",
    "matplotlib",
    "pandas",
    "polars",
    "rbcl",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "starlette",
    "uvicorn",
}
LATER = {"numpy", "msgpack", "rich", "torch"}  # of the core, or the job's own: loaded by the verbs that need them
PIP = [sys.executable, "-m", "pip"]


def loaded(words: list[str], home: Path) -> tuple[int, set[str]]:
    """The exit code of a verb, and the packages that its process had loaded in the end."""
    script = "import atexit, sys; atexit.register(lambda: print(*{name.partition('.')[0] for name in sys.modules}))\n"
    if words:
        script += f"sys.argv[1:] = {[*words, '--home', str(home)]}\nfrom {main.__module__} import main\nmain()"
    else:
        script += "import tenant_client.cli"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, set(done.stdout.splitlines()[-1].split())


def test_the_command_line_loads_nothing_heavy(tmp_path: Path) -> None:
    _, packages = loaded([], tmp_path)
    assert "tenant_client" in packages
    assert packages & (EXTRAS_ONLY | LATER) == set()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["status"], 3),
        (["journal"], 3),
        (["leases"], 3),
        (["diagnose", str(LOGS / "nccl_timeout_error_messy.log")], 0),
        (["check", "--latest"], 3),
        (["changes", "--latest"], 3),
        (["attach", "nowhere"], 2),
        (["gate"], 0),
        (["exclude"], 0),
        (["restart"], 3),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_verb_of_the_core_loads_nothing_of_an_extra(words: list[str], code: int, tmp_path: Path) -> None:
    ended, packages = loaded(words, tmp_path)
    assert ended == code
    assert packages & EXTRAS_ONLY == set()


def test_the_core_asks_for_little_and_pins_nothing() -> None:
    assert len(PROJECT["dependencies"]) <= 8
    assert not [one for one in PROJECT["dependencies"] if "==" in one]
    assert "numpy>=1.26,<3" in PROJECT["dependencies"]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a clean environment with the wheel and the core's list."""
    folder = tmp_path_factory.mktemp("core")
    wheels = folder / "wheels"
    build = [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)]
    subprocess.run(build, check=True)
    programs = folder / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    pip = [*PIP, "--python", str(programs / "python"), "install", "--quiet", "--only-binary", ":all:"]
    probe = [*PIP, "download", "--quiet", "--retries=0", "--timeout=20", "--no-deps", "--dest", str(folder), "mdurl"]
    if subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("pip reaches no package registry here, and the core's dependencies come from one")
    subprocess.run([*pip, *PROJECT["dependencies"]], check=True)
    subprocess.run([*pip, "--no-deps", *map(str, wheels.iterdir())], check=True)
    return programs


def call(program: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    """A program of the clean environment, away from the sources."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PHAROAH_"))}
    command = [str(program), *map(str, words)]
    done = subprocess.run(command, cwd=program.parent, env=kept, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.nightly
def test_a_clean_environment_runs_a_job_and_says_why_it_failed(core: Path, tmp_path: Path) -> None:
    tenant, home = core / "pharoah-tenant", ("--home", tmp_path / "home")
    (tmp_path / "trace.json").write_bytes(kineto([operator(Op("aten::linear", ([8, 64], [128, 64], [128])))]))
    assert "Usage: pharoah-tenant" in call(tenant, "-h").stdout
    assert call(tenant, "--version").stdout == f"pharoah {PROJECT['version']}\n"
    assert call(tenant, "status", *home).returncode == 3
    assert call(tenant, "run", *home, "--", "sh", "-c", "exit 3").returncode == 3
    journal = json.loads(call(tenant, "journal", *home, "--json").stdout)
    assert [(one["state"], one["exit_code"]) for one in journal["attempts"]] == [("failed", 3)]
    assert call(tenant, "status", *home).returncode == 1
    found = call(tenant, "diagnose", LOGS / "nccl_timeout_error_messy.log", *home, "--json")
    assert json.loads(found.stdout)["reason"] == "collective_timeout"
    assert ["linear", []] in json.loads(call(tenant, "describe", tmp_path / "trace.json", "--json").stdout)["structure"]
    assert len(json.loads(call(tenant, "leases", *home, "--json").stdout)["leases"]) == 1
    assert call(tenant, "changes", "--latest", *home).returncode == 2
    assert "not joined a federation" in call(tenant, "check", "--latest", *home).stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("pharoah-tenant enrol", "federation"),
        ("pharoah-tenant confirm memory", "federation"),
        ("pharoah-tenant page", "federation"),
        ("pharoah-trustee init --address localhost:7100", "trustee"),
        ("pharoah-provider status", "provider"),
        ("pharoah-provider serve", "provider"),
        ("pharoah-sim run --scenario quickstart --out", "simulation"),
    ],
)
def test_a_verb_whose_extra_is_missing_says_which(words: str, extra: str, core: Path, tmp_path: Path) -> None:
    program, *verb = words.split()
    home = tmp_path if verb[-1] == "--out" else f"--home={tmp_path}"
    done = call(core / program, *verb, home)
    assert done.returncode in (2, 3)
    assert f"this verb needs `pip install 'pharoah[{extra}]'`" in done.stderr
    assert list(tmp_path.iterdir()) == []


# ---- ops/ ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["provider", "trustee", "tenant"])
def test_a_unit_starts_a_program_that_there_is_and_lets_it_write_its_home_alone(role: str, tmp_path: Path) -> None:
    text = (ROOT / "ops" / "systemd" / f"pharoah-{role}.service").read_text(encoding="utf-8")
    rows = [line.partition("=")[::2] for line in text.splitlines() if not line.startswith("#")]
    settings = {key: value for key, value in rows if value}
    assert f"pharoah-{role}" in PROJECT["scripts"]
    assert settings["ExecStart"] == f"/opt/pharoah/bin/pharoah-{role} serve"
    assert settings["User"] == settings["StateDirectory"] == f"pharoah-{role}"
    assert settings["ProtectSystem"] == "strict"
    assert settings["NoNewPrivileges"] == settings["ProtectHome"] == "yes"
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here: Debian's package systemd adds it")
    unit = tmp_path / f"pharoah-{role}.service"
    unit.write_text(text.replace(settings["ExecStart"], "/bin/true"), encoding="utf-8")
    verified = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
