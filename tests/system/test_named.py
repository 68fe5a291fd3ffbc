"""What pages name is there: verbs, options, settings, numbers of things. What lineage says is not there is not."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from msgspec.structs import fields
from typer.main import get_command

from docs.measured import TAKEN_DOWN
from federation.protocol.causes import CAUSES
from federation.protocol.change_rules import Rule
from provider_server.fleet.analysis.buildup import signals
from simulation.cloud.scenario import load, names
from simulation.run.federation import TRUSTEES
from tests.system.test_docs import (
    ARCHITECTURE,
    DOCUMENTS,
    FENCED,
    INDENTED,
    PROGRAMS,
    README,
    ROOT,
    ends,
    spans,
    table,
)
from tests.system.test_operate import FILES

MENTION = re.compile(r"(?<![\w/.@-])(pharoah-(?:tenant|provider|trustee|sim))(?= )([^|;&()<>`\"'#\n]*)")
LONE = re.compile(r"--[a-z][a-z-]+(?= |$)")
SETTING = re.compile(r"^\[(\w+)\] (\w+)(?= =|$)")
FOREIGN = {"--exclude", "--order-seed"}  # of sbatch and pytest
CHECK = ROOT / "docs/check.md"
WORDS = {"three": 3, "four": 4, "five": 5, "six": 6, "eight": 8, "ten": 10, "twenty": 20}


VERBS = dict(pair for program, app in PROGRAMS.items() for pair in ends((program,), get_command(app)))


def options(command: click.Command) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "--version"}


def wrong_in(program: str, rest: str) -> str:
    """What a mention of a program names that is not there; empty where all of it is."""
    command, words = get_command(PROGRAMS[program]), rest.split()
    words = words[: words.index("--")] if "--" in words else words
    while isinstance(command, click.Group) and words and words[0][0].isalpha():
        old: list[str] = [one for one in getattr(command, "renamed", ()) if words[: len(one.split())] == one.split()]
        if old:
            return max(old)  # the longest old spelling
        try:
            _, below, words = command.resolve_command(click.Context(command), words)
        except click.UsageError:
            return words[0]
        assert below is not None
        command = below
    asked = [word.strip("[],.:").partition("=")[0] for word in words if word.startswith(("--", "[--"))]
    known = options(command)
    if isinstance(command, click.Group):  # one of its verbs may be meant
        known |= {name for words, verb in VERBS.items() if words[0] == program for name in options(verb)}
    return next((name for name in asked if name not in known), "")


def code(document: Path) -> Iterator[str]:
    """Blocks and spans, with continued lines as one."""
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    yield from (line for block in FENCED.findall(text) for line in block.splitlines())
    yield from INDENTED.findall(text)
    yield from spans(document)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_verbs_and_options_are_there_wherever_they_are_named(document: Path) -> None:
    for line in code(document):
        for program, rest in MENTION.findall(line) if TAKEN_DOWN not in line else ():
            assert not (wrong := wrong_in(program, rest)), f"{document.name}: {program}{rest} has no {wrong}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_verb_or_an_option_by_itself_is_there(document: Path) -> None:
    every = set().union(*map(options, VERBS.values())) | FOREIGN
    for span in spans(document):
        first, _, rest = span.partition(" ")
        asked = set(LONE.findall(rest.partition(" -- ")[0]))
        named = [options(verb) for words, verb in VERBS.items() if first in words[1:]]
        if LONE.fullmatch(first):
            assert first in every, f"{document.name}: no verb has {first}"
        elif named:
            assert any(asked <= known for known in named), f"{document.name}: `{span}`"


@pytest.mark.parametrize("document", [one for one in DOCUMENTS if one.parent.name != "adr"], ids=lambda path: path.name)
def test_settings_by_section_are_there(document: Path) -> None:
    known = {
        (section, key) for _, kind in FILES for section, keys in msgspec.to_builtins(kind()).items() for key in keys
    }
    for span in spans(document):
        for setting in SETTING.findall(span):
            assert setting in known, f"{document.name}: `{span}`"


def test_what_is_not_there_is_noticed() -> None:
    assert wrong_in("pharoah-tenant", " chek LEASE") == "chek"
    assert wrong_in("pharoah-tenant", " check LEASE --onlin") == "--onlin"
    assert wrong_in("pharoah-tenant", " show LEASE --only path --from 3 --too 4") == "--too"
    assert wrong_in("pharoah-tenant", " journal fix LEASE network_error") == "journal fix"
    assert not wrong_in("pharoah-tenant", " show LEASE --only path --from 3 --to 4")
    assert not wrong_in("pharoah-tenant", " confirm memory --seconds 2 --json")
    assert not wrong_in("pharoah-tenant", " run --describe now -- python train.py --any")


# ---- numbers of things ---------------------------------------------------------------------------------------------


def said(document: Path, pattern: str) -> int:
    """The number that a sentence gives."""
    text = " ".join(document.read_text(encoding="utf-8").split())
    (number,) = set(re.findall(pattern, text))
    return WORDS.get(number) or int(number)


def test_readme_counts_the_programs_and_what_its_commands_play() -> None:
    scripts = [name for project in projects() for name in project.get("scripts", ())]
    text = README.read_text(encoding="utf-8")
    assert said(README, r"makes the (\w+) programs available") == len(scripts)
    assert all(f"`{name}`" in text for name in scripts)
    quickstart = load("quickstart")
    assert said(README, r"plays (\w+) weeks of") == quickstart.weeks
    assert said(README, r"weeks of (\w+) tenants") == quickstart.tenants
    assert said(README, r"tenants, (\w+) trustees and a provider") == TRUSTEES
    federation = {one.name: one.default for one in VERBS[("pharoah-sim", "federation")].params}
    assert said(README, r"a provider, (\w+) trustees and \w+ tenants as programs") == federation["trustees"]
    assert said(README, r"trustees and (\w+) tenants as programs") == federation["tenants"]


def test_the_page_of_the_simulation_counts_the_tenants_of_each_scenario() -> None:
    text = " ".join((ROOT / "docs/simulation.md").read_text(encoding="utf-8").partition("### Keys")[0].split())
    counted = {name: int(n.replace(",", "")) for name, n in re.findall(r"`(\w+)` \([^)]*?([\d,]+) tenants", text)}
    assert counted == {name: load(name).tenants for name in names()}


def test_numbers_in_pages_are_those_of_the_program() -> None:
    failures = tomllib.loads((ROOT / "simulation/studies/gpu/failures.toml").read_text(encoding="utf-8"))
    verifier = (ROOT / "plugins/claims/src/pharoah_claims/verify_claim.py").read_text(encoding="utf-8")
    assert said(CHECK, r"\| (\w+) jobs that fail behind") == len(failures)
    assert said(CHECK, r"offline with \[(\w+) lines\]") >= len(verifier.splitlines())
    assert said(ROOT / "docs/nodes.md", r"Levels are made of (\w+) metrics") == len(signals())
    assert said(ROOT / "docs/causes.md", r"There are (\w+): \| term") == len(fields(Rule)) - 1  # the other is its name
    for page in ("start", "architecture", "tutorials/engineer"):
        assert said(ROOT / f"docs/{page}.md", r"(\d+) reasons\b") == len(CAUSES)


# ---- lineage -------------------------------------------------------------------------------------------------------

# What would be found in the help of a verb, or in the name of a setting, if it were there after all.
NOT_THERE = {
    "a language model that reads logs": r"language model|\bLLM",
    "restarting by itself": r"restarts? (the job|it) (by itself|automatically)|auto-?restart",
    "its suite of benchmarks": r"superbench|benchmark suite",
    "hardware counters of a job's functions": r"hardware counter|utili[sz]ation of functions",
    "a matrix of delays between ranks": r"matrix of delays|delay matrix",
    "planning paths through the network": r"plans? (a |the )?(path|route)|traffic engineering",
    "running the tests": r"runs? the (planned )?tests|starts? the tests",
    "changes of network paths": r"changes? of (network )?paths|paths? changed",
    "repair from the nearest passing configuration": r"nearest passing|repair hint",
    "lengths of requests": r"lengths? of requests?|request lengths?",
    "cover traffic": r"cover traffic|dummy (messages|traffic)",
    "anonymity of who contributes": r"contribut\w+ anonymously|anonymous contribution",
    "moving a job": r"\b(moves|migrates?) (a|the) (running )?job",
    "warming of standby machines": r"warm(s|ing)? (up )?(a )?standby|standby",
    "votes for single links": r"votes? for (a |single )?links?",
    "a public benchmark of diagnosis": r"public benchmark",
    "a dependency graph of services": r"dependency graph",
    "its SecAgg+": r"\bSecAgg\b(?!.*(beside|compared))",
}


def helps() -> dict[str, str]:
    """What each verb says of itself and of its options."""
    return {
        " ".join(words): " ".join([verb.help or "", *(str(getattr(one, "help", "") or "") for one in verb.params)])
        for words, verb in VERBS.items()
        if words[0] != "pharoah-sim"  # which measures others beside ours
    }


def missing(rows: Sequence[Sequence[str]]) -> list[str]:
    return [one.strip() for *_, cell in rows for one in cell.strip(" |").split(";") if one.strip()]


def test_what_lineage_calls_not_there_is_not_there() -> None:
    assert sorted(missing(table(ARCHITECTURE, "Lineage"))) == sorted(NOT_THERE)
    for words, told in helps().items():
        for name, sign in NOT_THERE.items():
            assert not re.search(sign, told, re.IGNORECASE), f"{words} has {name!r}, which lineage says is not there"


# ---- dependencies --------------------------------------------------------------------------------------------------


def projects() -> list[dict[str, Any]]:
    """The tables `project` of all distributions."""
    members = [file for folder in ("distributions", "plugins") for file in ROOT.glob(f"{folder}/*/pyproject.toml")]
    files = [ROOT / "pyproject.toml", *members]
    return [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]


def test_every_direct_dependency_has_its_line_and_no_other() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    wanted = [*groups["dev"]]
    for project in projects():
        wanted += project["dependencies"]
        wanted += [one for extra in project.get("optional-dependencies", {}).values() for one in extra]
    asked = {re.match(r"[\w-]+", one)[0] for one in wanted}  # type: ignore[index]
    listed = [
        name
        for section in ("Dependencies", "For development")
        for first, *_ in table(ARCHITECTURE, section)
        for name in re.findall(r"`([\w-]+)`", first.partition("(")[0])
    ]
    assert len(listed) == len(set(listed))
    assert set(listed) == {name for name in asked if not name.startswith("pharoah")}
