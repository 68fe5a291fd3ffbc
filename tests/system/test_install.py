"""What `pip install pharoah` gives: the tenant core, from a wheel, with nothing but the core's own list beside it."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from federation.base.plugin_verbs import DISTRIBUTIONS, GROUP
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
PLUG_INS = sorted((ROOT / "plugins").glob("*/pyproject.toml"))
PROGRAMS = sorted((ROOT / "distributions").glob("*/pyproject.toml"))  # each with a link to its package
LATER = {"numpy", "msgpack", "rich", "torch"}  # of the core, or the job's own: loaded by the verbs that need them
RUN = ["run", "--scenario", "quickstart", "--out"]
PIP = [sys.executable, "-m", "pip"]


def loaded(words: list[str], home: Path, program: str = "tenant_client.program.cli") -> tuple[int, set[str]]:
    """The exit code of a verb, and the packages that its process had loaded in the end."""
    script = "import atexit, sys; atexit.register(lambda: print(*{name.partition('.')[0] for name in sys.modules}))\n"
    if words:
        script += f"sys.argv[1:] = {[*words, '--home', str(home)]}\nfrom {main.__module__} import main\nmain()"
    else:
        script += f"from {program} import app\nfrom typer.testing import CliRunner\nCliRunner().invoke(app, ['--help'])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("program", ["tenant_client.program.cli", "provider_server.program.cli", "simulation.cli"])
def test_the_command_line_loads_nothing_heavy(program: str, tmp_path: Path) -> None:
    _, packages = loaded([], tmp_path, program)
    assert program.partition(".")[0] in packages
    assert packages & (EXTRAS_ONLY | LATER - {"rich"}) == set()  # rich shows the help


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["status"], 3),
        (["show", "--only", "journal"], 3),
        (["jobs"], 3),
        (["show"], 3),
        (["diagnose", str(LOGS / "nccl_timeout_error_messy.log")], 0),
        (["check", "--latest"], 3),
        (["changes", "--latest"], 3),
        (["attach", "nowhere"], 2),
        (["check", "gate"], 0),
        (["check", "exclude"], 0),
        (["restart"], 3),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_verb_of_the_core_loads_nothing_of_an_extra(words: list[str], code: int, tmp_path: Path) -> None:
    ended, packages = loaded(words, tmp_path)
    assert ended == code
    assert packages & EXTRAS_ONLY == set()


PAGE = """
import sys
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, build_opener

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
from tenant_client.program.pages.serving import listening

with listening(Path(sys.argv[1]), "127.0.0.1", 0) as address:
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    root = address.partition("?")[0]
    for page in (address, *(root + name for name in ("attempts", "expectations", "paths", "sent"))):
        print(browser.open(page).read().decode())
    try:
        browser.open(root + "sent/" + "0" * 64)
    except HTTPError as refused:
        print(refused.code, refused.read().decode())
"""


@pytest.mark.nightly
def test_the_page_works_without_what_a_federation_needs(tmp_path: Path) -> None:
    absent = EXTRAS_ONLY - {"fastapi", "jinja2", "starlette", "uvicorn"}
    tenant = [sys.executable, "-m", "tenant_client", "run", "--home", str(tmp_path), "--", "sh", "-c", "exit 3"]
    assert subprocess.run(tenant, cwd=ROOT, check=False).returncode == 3
    command = [sys.executable, "-c", PAGE, str(tmp_path), *absent]
    shown = subprocess.check_output(command, cwd=ROOT, text=True)
    assert "No checks, budget or sent data without a federation: the module cryptography is not installed" in shown
    assert "1 attempt" in shown
    assert "503 " in shown
    assert "pip install &#39;pharoah[federation]&#39;" in shown


def test_the_core_asks_for_little_and_pins_nothing() -> None:
    assert len(PROJECT["dependencies"]) <= 8
    assert not [one for one in PROJECT["dependencies"] if "==" in one]
    assert "numpy>=1.26,<3" in PROJECT["dependencies"]


def test_all_distributions_are_of_one_version_and_describe_themselves_alike() -> None:
    all_classifiers = set(PROJECT["classifiers"])
    known = {one for file in PROGRAMS for one in tomllib.loads(file.read_text())["project"]["dependencies"]}
    known.update(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for file in (*PROGRAMS, *PLUG_INS):
        project = tomllib.loads(file.read_text())["project"]
        assert project["version"] == PROJECT["version"]
        assert project["requires-python"] == PROJECT["requires-python"]
        for sign in ("Development Status", "Operating System", "Programming Language", "Typing"):
            wanted = {one for one in all_classifiers if one.startswith(sign)}
            assert wanted == {one for one in project["classifiers"] if one.startswith(sign)}
        ours = {one for one in project["dependencies"] if one.startswith("pharoah")}
        assert ours
        assert all(one.endswith(f"=={PROJECT['version']}") for one in ours)
        assert file in PROGRAMS or set(project["dependencies"]) - ours <= known
        for name in project["license-files"]:
            assert (file.parent / name).read_bytes() == (ROOT / name).read_bytes()


def test_a_program_is_a_script_of_the_distribution_that_has_its_package() -> None:
    scripts = {PROJECT["name"]: PROJECT["scripts"]}
    for file in PROGRAMS:
        table = tomllib.loads(file.read_text())
        scripts[table["project"]["name"]] = table["project"]["scripts"]
        (package,) = table["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        assert (file.parent / package).resolve() == ROOT / package
        assert all(value.partition(".")[0] == package for value in table["project"]["scripts"].values())
    assert {name: list(one) for name, one in scripts.items()} == {
        name: ["pharoah-tenant" if name == "pharoah" else name] for name in scripts
    }


def test_a_program_knows_which_of_our_distributions_bring_a_verb() -> None:
    projects = [tomllib.loads(file.read_text())["project"] for file in PLUG_INS]
    brought = {verb: project["name"] for project in projects for verb in project["entry-points"][GROUP]}
    assert brought == DISTRIBUTIONS


def test_every_plug_in_is_known_to_each_tool_that_looks_at_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    for file in PLUG_INS:
        (package,) = (path.parent for path in file.parent.glob("src/*/__init__.py"))
        rules = settings["importlinter"]
        assert package.name in rules["root_packages"]
        contracts = [one for one in rules["contracts"] if "plug-in" in one["name"]]
        assert package.name in next(one["layers"][1] for one in contracts if one["type"] == "layers")
        sides = [one["forbidden_modules"] for one in contracts if package.name in one.get("source_modules", ())]
        assert sides in ([["tenant_client", "trustee"]], [["provider_server", "trustee"]])
        assert f"$MYPY_CONFIG_FILE_DIR/{package.parent.relative_to(ROOT)}" in settings["mypy"]["mypy_path"]
        assert re.search(rf"^RUN ops/image.sh .* {file.parent.name}\b", (ROOT / "ops/Containerfile").read_text(), re.M)
        assert (file.parent / "README.md").exists()
        assert list(file.parent.glob("tests/test_*.py"))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of all distributions, by name."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = [str(ROOT), *(str(file.parent) for file in (*PROGRAMS, *PLUG_INS))]
    build = [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), *sources]
    subprocess.run(build, check=True)
    return {path.name.partition("-")[0]: path for path in folder.iterdir()}


@pytest.mark.nightly
def test_the_wheels_hold_every_file_of_their_own_and_no_other(wheels: dict[str, Path]) -> None:
    shares = {
        "pharoah": ("", {"crypto", "federation", "pharoah", "tenant_client"}),
        "pharoah_provider": ("", {"provider_server"}),
        "pharoah_sim": ("", {"simulation"}),
        "pharoah_trustee": ("", {"trustee"}),
    }
    for name in (file.parent.name for file in PLUG_INS):
        shares[f"pharoah_{name}"] = f"plugins/{name}/src", {f"pharoah_{name}"}
    assert shares.keys() == wheels.keys()
    for name, (below, packages) in shares.items():
        root = ROOT / below
        there = [path for package in packages for path in (root / package).rglob("*") if path.is_file()]
        sources = {path.relative_to(root).as_posix() for path in there if path.suffix != ".pyc"}
        with ZipFile(wheels[name]) as wheel:
            files = {file for file in wheel.namelist() if ".dist-info/" not in file}
        assert files == sources
        assert {f"{package}/py.typed" for package in packages} <= files


@pytest.fixture(scope="module")
def core(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a clean environment with the wheel and the core's list."""
    folder = tmp_path_factory.mktemp("core")
    programs = folder / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    pip = [*PIP, "--python", str(programs / "python"), "install", "--quiet", "--only-binary", ":all:"]
    probe = [*PIP, "download", "--quiet", "--retries=0", "--timeout=20", "--no-deps", "--dest", str(folder), "mdurl"]
    if subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("pip reaches no package registry here, and the core's dependencies come from one")
    subprocess.run([*pip, *PROJECT["dependencies"]], check=True)
    subprocess.run([*pip, "--no-deps", str(wheels["pharoah"])], check=True)
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
    assert call(tenant, "--version").stdout.startswith(f"pharoah {PROJECT['version']} (")
    assert call(tenant, "status", *home).returncode == 3
    assert call(tenant, "run", *home, "--", "sh", "-c", "exit 3").returncode == 3
    journal = json.loads(call(tenant, "show", "--only", "journal", *home, "--json").stdout)
    assert [(one["state"], one["exit_code"]) for one in journal["attempts"]] == [("failed", 3)]
    assert call(tenant, "status", *home).returncode == 1
    found = call(tenant, "diagnose", LOGS / "nccl_timeout_error_messy.log", *home, "--json")
    assert json.loads(found.stdout)["reason"] == "collective_timeout"
    assert ["linear", []] in json.loads(call(tenant, "workload", "describe", tmp_path / "trace.json", "--json").stdout)[
        "structure"
    ]
    assert len(json.loads(call(tenant, "jobs", *home, "--json").stdout)["leases"]) == 1
    assert call(tenant, "changes", "--latest", *home).returncode == 2
    assert "not joined a federation" in call(tenant, "check", "--latest", *home).stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("pharoah-tenant join", "federation"),
        ("pharoah-tenant page", "page"),
    ],
)
def test_a_verb_whose_extra_is_missing_says_which(words: str, extra: str, core: Path, tmp_path: Path) -> None:
    program, *verb = words.split()
    done = call(core / program, *verb, f"--home={tmp_path}")
    assert done.returncode in (2, 3)
    assert f"this verb needs `pip install 'pharoah[{extra}]'`" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_confirm_needs_its_plug_in_and_only_with_a_hint_an_extra(
    core: Path, wheels: dict[str, Path], tmp_path: Path
) -> None:
    words = ("confirm", "memory", "--seconds=0.1", "--device=cpu", f"--home={tmp_path / 'home'}")
    alone = call(core / "pharoah-tenant", *words)
    assert (alone.returncode, alone.stdout) == (3, "")
    assert "this verb needs `pip install pharoah-confirm`" in alone.stderr
    pip = [*PIP, "install", "--quiet", "--no-deps", "--no-compile", "--target", str(tmp_path / "beside")]
    subprocess.run([*pip, str(wheels["pharoah_confirm"])], check=True)
    script = f"import sys; sys.path.append({str(tmp_path / 'beside')!r}); from {main.__module__} import main; main()"
    beside = call(core / "python", "-c", script, *words)
    assert beside.returncode == 3
    assert "memory: unknown: no earlier runs" in beside.stdout
    hinted = call(core / "python", "-c", script, *words, "--hint=12")
    assert hinted.returncode == 3
    assert "this verb needs `pip install 'pharoah[federation]'`" in hinted.stderr
    assert len(list((tmp_path / "home" / "confirm").iterdir())) == 1  # of the run without a hint


@pytest.mark.nightly
def test_the_core_has_no_program_of_another_party(core: Path) -> None:
    assert [path.name for path in core.glob("pharoah*")] == ["pharoah-tenant"]


@pytest.mark.nightly
def test_a_program_whose_dependencies_are_missing_says_what_to_install(
    core: Path, wheels: dict[str, Path], tmp_path: Path
) -> None:
    beside = tmp_path / "beside"
    pip = [*PIP, "install", "--quiet", "--no-deps", "--no-compile", "--target", str(beside)]
    subprocess.run([*pip, *(str(wheels[f"pharoah_{name}"]) for name in ("provider", "sim", "trustee"))], check=True)
    for name, module, words in (
        ("pharoah-provider", "provider_server.program.cli", ["status", "--home"]),
        ("pharoah-sim", "simulation.cli", RUN),
        ("pharoah-trustee", "trustee.cli", ["init", "--address=localhost:7100", "--home"]),
    ):
        script = f"import sys; sys.path.append({str(beside)!r}); from {module} import app; app(prog_name={name!r})"
        done = call(core / "python", "-c", script, *words, tmp_path / "home")
        assert f"this verb needs `pip install {name}`" in done.stderr


# ---- ops/ ------------------------------------------------------------------------------------------------------------


ROLES = ["provider", "trustee", "tenant"]


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_starts_a_program_that_there_is_and_lets_it_write_its_home_alone(role: str, tmp_path: Path) -> None:
    text = (ROOT / "ops" / "systemd" / f"pharoah-{role}.service").read_text(encoding="utf-8")
    rows = [line.partition("=")[::2] for line in text.splitlines() if not line.startswith("#")]
    settings = {key: value for key, value in rows if value}
    assert role == "tenant" or ROOT / f"distributions/{role}/pyproject.toml" in PROGRAMS
    assert settings["ExecStart"] == f"/opt/pharoah/bin/pharoah-{role} serve"
    assert settings["User"] == settings["StateDirectory"] == f"pharoah-{role}"
    assert settings["ProtectSystem"] == "strict"
    assert settings["NoNewPrivileges"] == settings["ProtectHome"] == "yes"
    assert settings["Type"] == "notify"
    users = (ROOT / "ops/systemd/pharoah.sysusers").read_text(encoding="utf-8")
    assert f'u pharoah-{role} - "Pharoah {role}" /var/lib/pharoah-{role}\n' in users
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here: Debian's package systemd adds it")
    unit = tmp_path / f"pharoah-{role}.service"
    unit.write_text(text.replace(settings["ExecStart"], "/bin/true"), encoding="utf-8")
    verified = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    exposed = [analyze, "security", "--offline=true", "--threshold=20", str(unit)]  # tenths
    assert subprocess.run(exposed, capture_output=True, check=False).returncode == 0


def test_users_of_the_services_and_their_homes_can_be_made(tmp_path: Path) -> None:
    users, homes = (ROOT / "ops/systemd" / f"pharoah.{kind}" for kind in ("sysusers", "tmpfiles"))
    make_users, make_homes = shutil.which("systemd-sysusers"), shutil.which("systemd-tmpfiles")
    if make_users is None or make_homes is None:
        pytest.skip("there is no systemd-sysusers or systemd-tmpfiles here: Debian's package systemd adds them")
    (tmp_path / "etc").mkdir()
    dry = [] if os.getuid() == 0 else ["--dry-run"]
    made = subprocess.run(
        [make_users, f"--root={tmp_path}", *dry, users], stderr=subprocess.PIPE, text=True, check=True
    )
    assert re.findall(r"Creating user '([\w-]+)'", made.stderr) == [f"pharoah-{role}" for role in ROLES]
    if dry:
        pytest.skip("who is not root cannot give homes to their users")
    for _ in range(2):  # what is there already stays
        subprocess.run([make_homes, "--create", f"--root={tmp_path}", homes], check=True)
    accounts = [line.split(":") for line in (tmp_path / "etc/passwd").read_text().splitlines()]
    assert len(accounts) == len(ROLES)
    for _, _, uid, gid, _, home, _ in accounts:
        there = (tmp_path / home.lstrip("/")).stat()
        assert (there.st_uid, there.st_gid, there.st_mode & 0o777) == (int(uid), int(gid), 0o700)


def test_images_have_the_version_and_the_licence_of_the_project() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="(.*)"', (ROOT / "ops/Containerfile").read_text()))
    assert labels["version"] == PROJECT["version"]
    assert labels["licenses"] == PROJECT["license"]


def test_images_are_not_built_where_they_cannot_be(tmp_path: Path) -> None:
    asked, nothing = [sys.executable, str(ROOT / "distributions/images.py")], os.environ | {"PATH": str(tmp_path)}
    done = subprocess.run(asked, env=nothing, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing was built" in done.stderr


def test_a_program_in_an_image_is_seen(tmp_path: Path) -> None:
    elf, script = b"\x7fELF\x02\x01\x01", b"#!/opt/pharoah/bin/python3\nprint()\n"
    files = {
        "lib/libc.so.6": (elf, 0o755),
        "lib/base64.py": (b"#! /usr/bin/python3.11\n", 0o755),
        "lib/descriptor.py": (b"import os\n", 0o755),
        "bin/pharoah-trustee": (script, 0o755),
        "bin/python3": (elf, 0o755),
        "bin/data": (elf, 0o644),
        "opt/busybox": (elf, 0o711),
        "opt/start": (b"#!/bin/sh\n", 0o755),
        "bin/pip.so": (script, 0o4644),
    }
    for name, (content, mode) in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(mode)
    (tmp_path / "bin/sh").symlink_to("/bin/busybox")  # of itself it is nothing
    found = runpy.run_path(str(ROOT / "distributions/images.py"))["programs"](tmp_path)
    assert [str(one) for one in found] == ["bin/pip.so", "bin/python3", "opt/busybox", "opt/start"]
