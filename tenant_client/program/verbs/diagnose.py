"""Verbs about why a job failed: `diagnose` and `patterns teach`."""

import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from federation.base.console import AsJson, InputFile
from federation.base.screen import say, show, show_json
from federation.base.visible import counted_as
from federation.protocol.causes import Domain
from tenant_client.doctor.advice.after_failure import next_command
from tenant_client.doctor.advice.incompatibilities import Known
from tenant_client.doctor.advice.log_scan import known_in
from tenant_client.doctor.advice.own_codes import NOTHING_OWN, JudgedLine, OwnCodes, judged, own_codes
from tenant_client.doctor.diagnosis.diagnose import Diagnosis, UnknownLine, explain, hints
from tenant_client.doctor.diagnosis.filter_rules import FILE, load_rules, pattern_of
from tenant_client.doctor.diagnosis.lessons import Lessons, bare, load_lessons, save_lessons
from tenant_client.doctor.diagnosis.log_templates import mask
from tenant_client.doctor.diagnosis.precedents import Precedent, like, telling_lines, unexplained_lines
from tenant_client.doctor.diagnosis.sureness import Sureness, sureness_of
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.incidents import Incidents
from tenant_client.doctor.run.diagnose_attempt import run_files
from tenant_client.doctor.run.plugins import gather_with_plugins
from tenant_client.doctor.sources.evidence import Evidence
from tenant_client.program.verbs.console import Home, job_of, warn


def diagnose(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|JOB...",
            click_type=InputFile(folders=True),
            help="Logs, flight recorder dumps, answers of NCCL's RAS, error files, stacks, what tools print of GPUs,"
            " links, jobs and nodes, or folders of these; or a job, for what its newest attempt has left.",
        ),
    ],
    home: Home,
    *,
    as_json: AsJson = False,
) -> None:
    """Diagnose why a job failed, from its logs and dumps.

    Nothing is sent. Where the logs name versions that are known to fail like this, it says so, with the source.

    Exit code 0: a cause was found. 2: no file could be read. 3: cause unknown; the most unusual log lines are shown.
    """
    job = job_of(home, paths[0])
    paths = [file for path in paths for file in _files(home, path)]
    gathered = gather_with_plugins(home, paths, lambda fault: warn(fault.what, fault.hint))
    lessons, rules = load_lessons(home / "lessons.json"), load_rules(home / FILE)
    for fault in gathered.faults:
        warn(str(fault), "" if Path(fault.file).exists() else _NO_FILE)
    if gathered.left_out:
        more = len(gathered.left_out) - 1
        warn(f"left out: {gathered.left_out[0]}" + (f"; and {counted_as(more, 'further file')}" if more else ""))
    unread = [fault for fault in gathered.faults if fault.file not in gathered.cut]
    if not gathered.evidence and (unread or (gathered.left_out and not gathered.taken_for)):
        raise typer.Exit(2)
    diagnosis = explain(gathered, lessons)
    unknown = diagnosis.reason == "unknown"
    dropped = rules.of(rules.fitting(map(pattern_of, unexplained_lines(gathered))))
    shown = hints(gathered, dropped=dropped) if unknown else ()
    own = {run.name.rpartition("-")[0] for path in paths for run in path.resolve().parents if _is_run(home, run)}
    precedents = _precedents(home, diagnosis.reason, telling_lines(diagnosis, gathered, dropped), own)
    known = known_in(paths, diagnosis.reason)
    evidence = judged(gathered.evidence, _own_codes(home), job or next(iter(own), ""))
    if as_json:
        show_json(Told.of(diagnosis, shown, precedents, known, gathered.taken_for, evidence))
    else:
        sure = sureness_of(diagnosis)
        show(diagnosis.sentence, *([f"  {sure.words}"] if sure else []))
        show(*([f"  do: {diagnosis.advice}"] if diagnosis.advice else []))
        show(*(f"  {sentence}" for sentence in dict.fromkeys(one.judgement for one in evidence if one.code)))
        show(*(f"  then {later.reason}, {later.where}: {later.text[:120]}" for later in diagnosis.cascade))
        show(*(f"  unusual line ({hint.count}×): {hint.example}" for hint in shown))
        show(*(f"  {line}" for line in like(precedents)))
        show(*(f"  {one.label} {one.words}" for one in known[:_MOST_KNOWN]))
        forms = Counter(gathered.taken_for.values())
        show(
            *(
                ["  read as " + ", ".join(f"{form} (×{n})" if n > 1 else form for form, n in forms.items())]
                if forms
                else []
            )
        )
        say(_next(job, unknown=unknown))
    raise typer.Exit(3 if unknown else 0)


def _files(home: Path, path: Path) -> list[Path]:
    """The file itself, or what the newest attempt of the job of this name has left."""
    job = job_of(home, path)
    return (run_files(home, job) if job else []) or [path]


def _next(job: str, *, unknown: bool) -> str:
    """How to go on: of a file, to teach what it means, or to let `run` keep what the next attempt leaves."""
    if job:
        return next_command(job)
    return f"next: pharoah-tenant {'patterns teach REASON LINE' if unknown else 'run -- COMMAND'}"


def _precedents(home: Path, reason: str, lines: Sequence[str], but: Collection[str]) -> tuple[Precedent, ...]:
    """The nearest incidents that the home has kept; none where it has no journal or it cannot be read."""
    try:
        if not (home / "tenant.db").exists():
            return ()
        with closing(open_database(home / "tenant.db")) as connection:
            return Incidents(connection).nearest(reason, lines, but=but)
    except (OSError, sqlite3.DatabaseError) as error:
        warn(f"the journal cannot be read, going on without precedents: {error}")
        return ()


def _own_codes(home: Path) -> OwnCodes:
    """Where own runs saw error codes of GPUs; nothing where the home has no journal or it cannot be read."""
    try:
        if not (home / "tenant.db").exists():
            return NOTHING_OWN
        with closing(open_database(home / "tenant.db")) as connection:
            return own_codes(connection)
    except (OSError, sqlite3.DatabaseError) as error:
        warn(f"the journal cannot be read, judging error codes without it: {error}")
        return NOTHING_OWN


def teach(
    home: Home,
    reason: Annotated[
        str, typer.Argument(help="One of the reasons that `patterns reasons` lists, such as network_error.")
    ] = "",
    line: Annotated[
        str, typer.Argument(help="A part of a log line that shows this reason; its numbers match any number.")
    ] = "",
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            click_type=InputFile(),
            help="Logs in which to show what matches; by default the kept logs of past attempts.",
            show_default=False,
        ),
    ] = None,
    forget: Annotated[str, typer.Option(help="Remove this pattern.", show_default=False)] = "",
    *,
    regex: Annotated[bool, typer.Option("--regex", help="LINE is a regular expression.")] = False,
    as_list: Annotated[bool, typer.Option("--list", help="List the patterns that were taught.")] = False,
) -> None:
    """Add an error pattern for `diagnose`, and show which lines of FILE or of past attempts' logs match it.

    The pattern is a part of a line: times, ranks and levels at its beginning are left out. It is stored in the home.
    Built-in patterns win.
    """
    path = home / "lessons.json"
    if as_list:
        known = load_lessons(path)
        show(*(f"{known.reasons[part]:<22} {part}" for part in known.reasons))
        show(*(f"{known.regexes[text]:<22} --regex {text}" for text in known.regexes))
        return
    if not forget and not (reason and line):
        raise typer.BadParameter("pass a reason and a part of a line, --list or --forget", param_hint="REASON LINE")
    known = load_lessons(path)
    lessons = known.forget(forget) if forget else known.teach(line, reason, regex=regex)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    save_lessons(lessons, path)
    if forget:
        say(f"pharoah-tenant: removed the pattern {forget!r}")
        return
    say(f"pharoah-tenant: added the pattern {line if regex else mask(bare(line))!r} for {reason}")
    _show_matches(Lessons().teach(line, reason, regex=regex), files or _kept_logs(home))


def _is_run(home: Path, folder: Path) -> bool:
    return folder.parent == (home / "runs").resolve()


def _kept_logs(home: Path) -> list[Path]:
    """The logs of past attempts that are still there."""
    return sorted(path for path in (home / "runs").glob("*/*.log*") if path.is_file())


def _show_matches(lesson: Lessons, files: list[Path]) -> None:
    """The first lines that a pattern matches, and how many there are."""
    many, within = 0, 0
    for file in files:
        with file.open(encoding="utf-8", errors="replace") as lines:
            found = [text for text in (line[:_MOST_LINE] for line in lines) if lesson.reason_of(text)]
        show(*(f"  {file.name}: {text.strip()[:_MOST_SHOWN]}" for text in found[: max(0, _MOST_MATCHES - many)]))
        many, within = many + len(found), within + bool(found)
    say(f"pharoah-tenant: it matches {counted_as(many, 'line')} in {within} of {counted_as(len(files), 'log')}")


_NO_FILE = "pass a file, or a job: `pharoah-tenant jobs` lists them"
_MOST_LINE, _MOST_SHOWN, _MOST_MATCHES, _MOST_KNOWN = 4096, 160, 5, 3

# ---- for programs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """`place` is the file and line of the root, `sure` is None where nobody measured it, `hints` are for unknown.

    `known` is what is known of the versions that the logs name, `taken_for` what each file was read as. `evidence` is
    all of it, with what an error code of a GPU says of the hardware.
    """

    reason: str
    sure: Sureness | None
    domain: Domain | None
    rank: int | None
    host: str
    gpu: str
    sentence: str
    advice: str
    place: str
    cascade: tuple[Evidence, ...]
    symptom: Evidence | None
    hints: tuple[UnknownLine, ...]
    precedents: tuple[Precedent, ...]
    known: tuple[Known, ...]
    taken_for: Mapping[str, str]
    evidence: tuple[JudgedLine, ...]

    @classmethod
    def of(
        cls,
        diagnosis: Diagnosis,
        hints: Sequence[UnknownLine],
        precedents: Sequence[Precedent],
        known: Sequence[Known],
        taken_for: Mapping[str, str],
        evidence: tuple[JudgedLine, ...],
    ) -> "Told":
        """The same diagnosis, spelt out."""
        return cls(
            reason=diagnosis.reason,
            sure=sureness_of(diagnosis),
            domain=diagnosis.domain,
            rank=diagnosis.rank,
            host=diagnosis.host,
            gpu=diagnosis.gpu,
            sentence=diagnosis.sentence,
            advice=diagnosis.advice,
            place=diagnosis.root.where if diagnosis.root else "",
            cascade=diagnosis.cascade,
            symptom=diagnosis.symptom,
            hints=tuple(hints),
            precedents=tuple(precedents),
            known=tuple(known),
            taken_for=dict(taken_for),
            evidence=evidence,
        )
