"""What the documents say about commands, files, keys, columns and tests is so: each statement is looked up or run."""

import ast
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import click
import click.testing
import pytest
import yaml
from msgspec.structs import fields
from typer.main import get_command
from typer.testing import CliRunner

import provider_server.program.cli
import simulation.cli
import tenant_client.program.cli
from crypto.ids import LeaseId, Token
from federation.base.console import verbs_of
from federation.base.plugin_verbs import DISTRIBUTIONS
from federation.protocol.bundle import MismatchEntry, PairJudgement
from federation.protocol.check import Check
from provider_server.rounds.planning import PlanSettings
from provider_server.rounds.store.store import Store
from simulation.cloud.scenario import Scenario, names
from simulation.run.federation import found
from tenant_client.doctor.records.database import SCHEMA
from tenant_client.doctor.records.journal import Unit
from tests.support import schemas
from trustee import anchors as trustee_anchors, cli as trustee_cli, meter, places, trustee

ROOT = Path(__file__).resolve().parents[2]
# docs/reference is made by `make docs`, and may lie here or not.
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    if path.parent != ROOT / "docs/reference"
)
PAGES_AT_MOST, RECORDS_AT_MOST = 20, 16
README, COMMANDS = ROOT / "README.md", ROOT / "docs/start.md"
PROGRAMS = {
    "pharoah-tenant": tenant_client.program.cli.app,
    "pharoah-provider": provider_server.program.cli.app,
    "pharoah-trustee": trustee_cli.app,
    "pharoah-sim": simulation.cli.app,
}
HOMES = Path("out/quickstart/homes")
SIDES = ("crypto", "federation", "trustee", "tenant_client", "provider_server", "simulation")

ARCHITECTURE = ROOT / "docs/architecture.md"

LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}\S.*$", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
TESTS = {
    name
    for file in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/tests/*.py")]
    for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
}
TESTS |= {file.stem for file in ROOT.glob("tests/**/test_*.py")}
NAMED = re.compile(r"\[`(?![\w.]+\.py`)([\w.]+)`\]\(([^)\s]+\.py)\)")  # a name in a file of ours, as a link to it
FILE = re.compile(r"\[`([\w./-]+\.(?:py|toml))`\]\(([^)\s#]+)\)")  # a file by its name, as a link to it
TEST_FILE = re.compile(r"(?:plugins/\w+/)?tests/[\w/]+\.py")
PAGE = re.compile(r"(?<![\w/])(docs/(?:tutorials/|adr/)?[a-z0-9-]+\.md)(#[\w-]+)?")
NAMING = {
    path.relative_to(ROOT).as_posix()
    for package in (*SIDES, "ops", "examples", "plugins")
    for path in (ROOT / package).rglob("*")
    if path.suffix in (".py", ".toml", ".yml", ".yaml", ".md", ".html") and PAGE.search(path.read_text("utf-8"))
}

# Spelt in parts, or this file would be the first to break its own rule.
MACHINE_PATHS = ["/" + folder + "/" for folder in ("work", "root", "home", "tmp", "Users")]
REGISTRIES = ["py" + "pi.", "python" + "hosted.", "ana" + "conda.", "artif" + "actory", "dev" + "pi", "npm" + "js."]


# ---- reading documents ---------------------------------------------------------------------------------------------


def blocks(document: Path) -> Iterator[str]:
    """Lines of code blocks."""
    text = document.read_text(encoding="utf-8")
    for fenced in FENCED.findall(text):
        yield from (line.strip() for line in fenced.splitlines()[1:-1])
    yield from (line.strip() for line in INDENTED.findall(FENCED.sub("", text)))


def spans(document: Path) -> Iterator[str]:
    """Code within sentences, on one line each."""
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    yield from (" ".join(span.split()) for span in SPAN.findall(text))


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(document: Path) -> set[str]:
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def table(document: Path, section: str) -> list[list[str]]:
    """Cells of the first table below a heading, without its head."""
    below = re.split(rf"^#+ {re.escape(section)}.*$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    rows = re.findall(r"^\|(.+)\|$", below.split("\n#")[0], re.MULTILINE)
    return [[cell.strip() for cell in row.split(" | ")] for row in rows[2:]]


def commands(lines: Iterator[str]) -> list[list[str]]:
    """Command lines of this project's programs, without brackets around options and without what a pipe feeds."""
    own = (line.split(" | ")[0] for line in lines if line.startswith(tuple(PROGRAMS)))
    found_here = [shlex.split(re.sub(r"[\[\]]", "", line), comments=True) for line in own]
    return [words for words in found_here if words[0] in PROGRAMS]


# ---- links and names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_resolve(document: Path) -> None:
    for link in ("".join(groups) for groups in LINK.findall(document.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), f"{document.name} links to {link}, which is not there"
        assert not anchor or anchor in anchors(target), f"{document.name} links to {link}, a heading that is not there"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_that_are_named_exist(document: Path) -> None:
    for file in TEST_FILE.findall(document.read_text(encoding="utf-8")):
        assert (ROOT / file).exists(), f"{document.name} names {file}, which is not there"
    for name in filter(re.compile(r"test_\w+").fullmatch, spans(document)):
        assert name in TESTS, f"{document.name} names {name}, which is no test"


def test_every_decision_is_in_the_index_or_in_the_history() -> None:
    index = (ROOT / "docs/adr/README.md").read_text(encoding="utf-8")
    records = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    assert len(records) <= RECORDS_AT_MOST
    for record in records:
        title = record.read_text(encoding="utf-8").splitlines()[0]
        number, _, decision = title.removeprefix("# ").partition(": ")
        assert f"| [{number}]({record.name}) | {decision} |" in index
    history = re.findall(r"^## (\d{4})$", (ROOT / "docs/adr/history.md").read_text(encoding="utf-8"), re.MULTILINE)
    numbers = sorted([*(record.name[:4] for record in records), *history])
    assert numbers == [f"{number:04d}" for number in range(1, len(numbers) + 1)]


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        word
        for document in (README, ROOT / "CONTRIBUTING.md")
        for code in (*blocks(document), *spans(document))
        for word in re.findall(r"^make ([a-z]+)", code)
    }
    assert {"demo", "test"} <= named <= targets


def test_nothing_names_a_machine_or_a_registry() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        data = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
        leaks = [leak for leak in (*MACHINE_PATHS, *REGISTRIES) if leak.encode() in data and b"\0" not in data]
        assert not leaks, f"{name} contains {leaks}"


def test_every_page_is_in_the_site_and_there_are_few() -> None:
    listed = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in DOCUMENTS if page.is_relative_to(ROOT / "docs")}
    records = {page for page in pages if re.match(r"adr/\d", page)}  # listed by adr/README.md
    reference = {f"reference/{name}" for name in schemas.generate().pages()}
    assert sorted(listed) == sorted({*pages - records, *reference, "index.md", "api/index.md"})
    # One is made of figures, and one is a paper, made of what the others say.
    written = {page for page in pages if not page.startswith("adr/")} - {"measured.md", "report.md"}
    assert len(written) <= PAGES_AT_MOST


@pytest.mark.parametrize("file", sorted({*NAMING, *(str(one.relative_to(ROOT)) for one in DOCUMENTS)}), ids=str)
def test_pages_that_code_names_exist(file: str) -> None:
    for page, anchor in PAGE.findall((ROOT / file).read_text(encoding="utf-8")):
        target = ROOT / page
        assert target.exists(), f"{file} names {page}, which is not there"
        assert not anchor or anchor.removeprefix("#") in anchors(target), f"{file} names {page}{anchor}"


# ---- the code that documents point to ------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_is_named_stands_in_the_file_that_is_linked(document: Path) -> None:
    for name, file in NAMED.findall(document.read_text(encoding="utf-8")):
        assert name in defined(document.parent / file), f"{document.name}: {name} is not in {file}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_file_that_is_named_is_the_one_that_is_linked(document: Path) -> None:
    for name, target in FILE.findall(document.read_text(encoding="utf-8")):
        assert Path(name).name == Path(target).name, f"{document.name} calls {target} {name}"


def test_the_walks_name_functions_and_a_wrong_one_is_noticed() -> None:
    named = NAMED.findall(ARCHITECTURE.read_text(encoding="utf-8"))
    assert ("federated_week", "../provider_server/rounds/week.py") in named
    assert "Round.shut" not in defined(ROOT / "provider_server/rounds/round.py")


def test_the_picture_of_the_packages_has_all_of_them_and_no_others() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    picture = ARCHITECTURE.with_suffix(".svg").read_text(encoding="utf-8")
    drawn = re.findall(r'class="(?:head )?package"[^>]*>(\w+)<', picture)
    assert sorted(drawn) == sorted(settings["tool"]["importlinter"]["root_packages"])
    listed = [cells[0].strip("`") for cells in table(ARCHITECTURE, "Architecture")]
    assert sorted(listed) == sorted(drawn)


def defined(file: Path) -> set[str]:
    """Functions and classes of a module, and methods as Class.method."""
    found_here = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found_here.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (below for below in node.body if isinstance(below, ast.FunctionDef | ast.AsyncFunctionDef))
            found_here |= {f"{node.name}.{method.name}" for method in methods}
    return found_here


# ---- commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_are_what_the_programs_understand(document: Path) -> None:
    for words in commands(spans(document)):
        parse(words)
    if document.parent.name == "tutorials":
        return  # tests/system/test_tutorials.py runs them
    for words in commands(blocks(document)):
        command, values = parse(words)
        missing = [p.name for p in command.params if p.required and p.name and values.get(p.name) is None]
        assert not missing, f"{document.name}: {shlex.join(words)} lacks {missing}"


def shown() -> list[list[str]]:
    """The commands of README and of the page that goes on from it."""
    return [*commands(blocks(README)), *commands(blocks(COMMANDS))]


def test_every_verb_that_is_shown_has_help() -> None:
    for words in shown():
        result = CliRunner().invoke(PROGRAMS[words[0]], [*named(words)[1:], "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.stdout


PLUG_INS = tuple(DISTRIBUTIONS)


def named(words: list[str]) -> list[str]:
    """The program and the verb that a command line names, with the group of the verb."""
    command, found, rest = get_command(PROGRAMS[words[0]]), words[:1], words[1:]
    while isinstance(command, click.Group) and rest and rest[0] not in ("-h", "--help"):
        name, below, rest = command.resolve_command(click.Context(command), rest)
        assert below is not None
        command, found = below, [*found, name or ""]
    return found


def ends(words: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The verbs of a program, with the words that lead to each."""
    if isinstance(command, click.Group):
        for name, below in verbs_of(command).items():
            yield from ends((*words, name), below)
    else:
        yield words, command


def test_every_verb_is_shown() -> None:
    verbs = {tuple(named(words)) for words in shown()}
    for program in ("pharoah-tenant", "pharoah-trustee", "pharoah-provider"):
        ours = {words for words, verb in ends((program,), get_command(PROGRAMS[program])) if not verb.hidden}
        assert {words for words in ours if not ".".join(words).startswith(PLUG_INS)} <= verbs
    simulation = get_command(PROGRAMS["pharoah-sim"])
    assert isinstance(simulation, click.Group)
    assert {name for name, verb in verbs_of(simulation).items() if not verb.hidden} <= {
        words[1] for words in verbs if words[0] == "pharoah-sim"
    }


def test_readme_shows_what_diagnose_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    said = CliRunner().invoke(tenant_client.program.cli.app, ["diagnose", "tests/logs/nvlink_error_messy"]).stdout
    for line in next(block for block in outputs(README) if block[0].startswith("nvlink_error")):
        pattern = ".*".join(re.escape(piece.strip(" ")) for piece in line.split("…"))
        assert re.search(pattern, said), f"README shows {line!r}, but:\n{said}"


def test_readme_shows_what_check_says() -> None:
    asked, verdict, better = next(block for block in outputs(README) if "check" in block[0])
    pair = MismatchEntry(
        Token(bytes(16)),
        Token(bytes(16)),
        0.999,
        7.2,
        3.6,
        14.8,
        31.0,
        PairJudgement.WORSE,
        (Token.fromhex(better[-32:]),),
    )
    made = Check.of(1, pair, ())
    assert parse(shlex.split(asked.removeprefix("$ ")))
    assert verdict == f"{made.verdict.name.lower()}: {made.reason}"
    assert better == f"better hardware group for this workload: {made.better_context}"


def outputs(document: Path) -> list[list[str]]:
    """Blocks that show what a program printed."""
    text = document.read_text(encoding="utf-8")
    return [block.splitlines() for block in re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def test_cheap_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = PlanSettings(epsilon=1.0, delta=1e-8, cohort_minimum=1, noise_shares=1)
    lease = str(LeaseId(bytes(16)))
    with closing(found(HOMES, 1, settings, {"epsilon_per_window": 1.0})) as federation:
        federation.tenants[0].journal.add([Unit(lease, 0.0, {})], [])
    cheap = [words for words in shown() if str(HOMES) in " ".join(words) or words[1] == "scenarios"]
    codes = {" ".join(named(words)): called(words, lease).exit_code for words in cheap}
    assert codes == {
        "pharoah-tenant privacy budget": 0,
        "pharoah-tenant privacy preview": 3,
        "pharoah-tenant privacy sent": 3,
        "pharoah-tenant check fit": 3,
        "pharoah-provider rounds ledger": 0,
        "pharoah-provider rounds releases": 0,
        "pharoah-provider findings list": 3,
        "pharoah-sim scenarios": 0,
    }
    (line,) = [line for line in blocks(COMMANDS) if line.startswith("LEASE=")]
    script = shlex.split(line.removeprefix("LEASE=$(python ").removesuffix(")"))
    printed = subprocess.run([sys.executable, *script], capture_output=True, check=True, text=True)
    assert printed.stdout.strip() == lease


def called(words: list[str], lease: str) -> click.testing.Result:
    result = CliRunner().invoke(PROGRAMS[words[0]], [word.replace("$LEASE", lease) for word in words[1:]])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def parse(words: list[str]) -> tuple[click.Command, Mapping[str, object]]:
    """The verb that a command line names, and what it gives for each parameter; UsageError for what is unknown."""
    command, rest = get_command(PROGRAMS[words[0]]), words[1:]
    while isinstance(command, click.Group) and rest:
        _, below, rest = command.resolve_command(click.Context(command), rest)
        assert below is not None
        command = below
    values, left, _ = command.make_parser(click.Context(command)).parse_args(list(rest))
    assert not left, f"{shlex.join(words)} has arguments too many: {left}"
    return command, values


def test_forms_are_whole_and_name_commands_and_files_that_exist() -> None:
    forms = [yaml.safe_load(form.read_text(encoding="utf-8")) for form in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")]
    asked = [[part["id"] for part in form["body"] if part["type"] != "markdown"] for form in forms if "body" in form]
    assert len(asked) == 3
    assert all(ids and len(ids) == len(set(ids)) for ids in asked)
    for file in (*ROOT.glob(".github/**/*.yml"), *ROOT.glob(".github/*.md")):
        for words in commands(spans(file)):
            assert words[1:] == ["--version"] or parse(words)
        for name in re.findall(r"\b[A-Z_]+\.md\b", file.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{file.name} names {name}, which is not there"


def test_an_unknown_option_or_verb_is_noticed() -> None:
    with pytest.raises(click.UsageError):
        parse(["pharoah-tenant", "privacy", "budget", "--hom", "x"])
    with pytest.raises(click.UsageError):
        parse(["pharoah-sim", "reply"])
    with pytest.raises(AssertionError, match="too many"):
        parse(["pharoah-sim", "scenarios", "x"])


# ---- tables of keys and columns ------------------------------------------------------------------------------------


def test_scenario_keys_are_documented_and_no_others() -> None:
    documented = [cells[0].strip("`") for cells in table(ROOT / "docs/simulation.md", "Keys of a scenario")]
    assert documented == [field.name for field in fields(Scenario) if field.name != "name"]


def test_scenarios_that_come_with_the_program_are_named() -> None:
    assert set(names()) <= set(spans(ROOT / "docs/simulation.md"))


def test_columns_are_documented_and_no_others(tmp_path: Path) -> None:
    model = ROOT / "docs/architecture.md"
    provider_file = tmp_path / "provider.db"
    Store(provider_file).close()
    with closing(sqlite3.connect(":memory:")) as tenant_db, closing(sqlite3.connect(":memory:")) as trustee_db:
        tenant_db.executescript(SCHEMA)
        trustee_db.executescript(trustee._SCHEMA + meter.SCHEMA + places.SCHEMA + trustee_anchors.SCHEMA)
        assert documented_columns(model, "A tenant's home") == columns(tenant_db)
        assert documented_columns(model, "A trustee") == columns(trustee_db)
    with closing(sqlite3.connect(provider_file)) as provider_db:
        assert documented_columns(model, "The provider") == columns(provider_db)


def documented_columns(model: Path, section: str) -> dict[str, list[str]]:
    found_here: dict[str, list[str]] = {}
    name = ""
    for first, second, _ in table(model, section):
        name = first.strip("` |") or name
        found_here.setdefault(name, []).extend(SPAN.findall(second))
    return found_here


def columns(database: sqlite3.Connection) -> dict[str, list[str]]:
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return {
        name: [column for _, column, *_ in database.execute("SELECT * FROM pragma_table_info(?)", (name,))]
        for (name,) in tables
    }
