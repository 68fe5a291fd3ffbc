"""Versions of the program as wheels in a venv: this one, and later ones.

A later one is a copy of this tree in which every message has gained a field, and every database a step to its tables.

later = installed(folder, protocol=2)
Places(..., wrapped={"provider": later.wrapper})
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from federation.protocol.versions import PROTOCOL, RELEASES
from provider_server.rounds.store.schema import VERSION
from simulation.run.processes import OFFLINE, VERB_S
from tests.support.specimens import HASHED_AS_WRITTEN

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("crypto", "federation", "pharoah", "trustee", "tenant_client", "provider_server", "simulation")
PIP = [sys.executable, "-m", "pip", "--quiet"]
# Beside what is hashed: a part of another message, and one whose last field is not copied.
AS_BEFORE = {*HASHED_AS_WRITTEN, "pharoah/ladder", "pharoah/contribution"}
_STEP = "CREATE TABLE step_{} AS SELECT count(*) AS rows FROM {}"


@dataclass(frozen=True)
class Installed:
    """A version: its Python, which finds it by itself."""

    python: Path

    @property
    def wrapper(self) -> list[str]:
        """Begins a command line that some other Python was to run."""
        return ["sh", "-c", f'shift; unset PYTHONPATH; exec "{self.python}" -P "$@"', "sh"]

    def run(self, *words: str) -> str:
        """What its Python prints; CalledProcessError, with what it complained of, if it fails."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | OFFLINE
        command = [str(self.python), "-P", *words]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=VERB_S)
        return done.stdout


def installed(folder: Path, protocol: int) -> Installed:
    """The program that speaks `protocol`, built and installed below an empty folder, without a network."""
    sources, wheels = folder / "sources", folder / "wheels"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, sources / package, ignore=shutil.ignore_patterns("__pycache__"))
    members = sorted(path.parent.relative_to(ROOT) for path in ROOT.glob("distributions/*/pyproject.toml"))
    names = ["pyproject.toml", "distributions/README.md", "LICENSE", "NOTICE"]
    names += [f"{member}/{name}" for member in members for name in ("pyproject.toml", "README.md")]
    for name in names:
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_text((ROOT / name).read_text().replace("0.1.0", f"0.{protocol}.0"))
    for link in (path for member in members for path in (ROOT / member).iterdir() if path.is_symlink()):
        (sources / link.relative_to(ROOT)).symlink_to(link.readlink())
    if protocol > PROTOCOL:
        changed = sum(_change(path) for path in sources.rglob("*.py"))
        assert changed > 30, "hardly any message was found"
        _speak(sources / "federation/protocol/versions.py", protocol)
        _step(sources, protocol - PROTOCOL)
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(wheels)]
    subprocess.run([*build, str(sources), *(str(sources / member) for member in members)], check=True)
    made = Installed(folder / "venv/bin/python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (borrowing,) = (folder / "venv/lib").glob("python3*/site-packages")
    (borrowing / "borrowed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    install = [*PIP, "--python", str(made.python), "install", "--no-deps", "--no-index"]  # compiled, once
    subprocess.run([*install, "--ignore-installed", *map(str, wheels.glob("*.whl"))], check=True)
    return made


def _speak(path: Path, protocol: int) -> None:
    text = path.read_text()
    releases = RELEASES | {later: f"0.{later}.0" for later in range(PROTOCOL + 1, protocol + 1)}
    text, found = re.subn(rf"^PROTOCOL = {PROTOCOL}$", f"PROTOCOL = {protocol}", text, flags=re.MULTILINE)
    text, known = re.subn(r"^RELEASES = \{.*?\}", f"RELEASES = {releases}", text, flags=re.MULTILINE)
    assert found == known == 1
    path.write_text(text)


def _step(sources: Path, steps: int) -> None:
    """Gives each database so many versions more, each of which makes a table of what was there."""
    of_files = tuple(_STEP.format(number, "sqlite_master") for number in range(steps))
    _replaced(sources / "federation/base/sqlite.py", "steps: Sequence[str] = ()", f"steps: Sequence[str] = {of_files}")
    first = int(VERSION)
    of_stores = {f"{first + number:04d}": (_STEP.format(number, "releases"),) for number in range(steps)}
    schema = sources / "provider_server/rounds/store/schema.py"
    _replaced(schema, f'VERSION = "{VERSION}"', f'VERSION = "{first + steps:04d}"')
    _replaced(schema, "MappingProxyType({})", f"MappingProxyType({of_stores})")


def _replaced(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, f"{path.name} has no single {before}"
    path.write_text(text.replace(before, after))


def _change(path: Path) -> int:
    """Gives each message in a file a field more, and keeps its shape before, as people would; how many there were."""
    text = path.read_text()
    if 'tag="pharoah/' not in text:
        return 0
    lines, changed = text.splitlines(), 0
    for node in sorted(ast.walk(ast.parse(text)), key=lambda one: -getattr(one, "lineno", 0)):
        if isinstance(node, ast.ClassDef) and (family := _family(node)) and family[0] not in AS_BEFORE:
            own = lines[node.lineno - 1 : node.end_lineno]
            last = max(one.end_lineno or 0 for one in node.body if isinstance(one, ast.AnnAssign)) - node.lineno
            documented = (node.body[0].end_lineno or 0) - node.lineno
            before = f"{node.name}{family[1]}"
            head = own[0].replace(f'tag="{"/".join(map(str, family))}"', f'tag="{family[0]}/{family[1] + 1}"')
            lines[node.lineno - 1 : node.end_lineno] = [
                re.sub(rf"\b{node.name}\b", before, own[0]),
                *own[1:],
                "",
                "",
                head,
                *own[1 : documented + 1],
                f"    SINCE, EARLIER = {PROTOCOL + 1}, {before}",
                *own[documented + 1 : last + 1],
                "    note: int = 0",
                *own[last + 1 :],
            ]
            changed += 1
    path.write_text("\n".join(lines) + "\n")
    return changed


def _family(node: ast.ClassDef) -> tuple[str, int] | None:
    """The label of a message, without and with its number."""
    for keyword in node.keywords:
        if keyword.arg == "tag" and isinstance(keyword.value, ast.Constant):
            family, _, number = str(keyword.value.value).rpartition("/")
            return family, int(number)
    return None
