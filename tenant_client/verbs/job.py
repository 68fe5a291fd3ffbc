"""The verbs around a running job: run, attach, diagnose, teach."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import click
import typer

from crypto.errors import PharoahError
from federation.runtime.console import AsJson, InputFile, Verb
from federation.runtime.screen import say, show, show_json
from tenant_client.verbs.console import Home, failing, warn

Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The job, as it would be started alone.")]
Lease = Annotated[
    str,
    typer.Option(
        envvar="PHAROAH_LEASE",
        help="The lease that the job runs on; by default the scheduler's name of the allocation, else a random one.",
        show_default=False,
    ),
]
Watch = Annotated[bool, typer.Option("--watch/--no-watch", envvar="PHAROAH_WATCH", help="Watch the job's progress.")]
Sample = Annotated[
    bool,
    typer.Option("--sample/--no-sample", envvar="PHAROAH_SAMPLE", help="Follow steps within the job's processes."),
]
Quiet = Annotated[bool, typer.Option("--quiet", envvar="PHAROAH_QUIET", help="Say nothing on stderr.")]
Logs = Annotated[
    list[Path] | None,
    typer.Option(
        "--log", envvar="PHAROAH_LOG", help="A further log to read after a failure (kernel, NCCL); repeatable."
    ),
]
HangFactor = Annotated[
    float,
    typer.Option(
        envvar="PHAROAH_HANG_FACTOR", min=1.0, help="A job hangs that stands still for this many usual steps,"
    ),
]
HangFloor = Annotated[
    float, typer.Option(envvar="PHAROAH_HANG_FLOOR_S", min=0.0, help="and for no less than these seconds.")
]
StartTimeout = Annotated[
    float, typer.Option(envvar="PHAROAH_START_TIMEOUT_S", min=0.0, help="Seconds allowed for the first steps.")
]
AsideTimeout = Annotated[
    float,
    typer.Option(envvar="PHAROAH_ASIDE_TIMEOUT_S", min=0.0, help="Seconds allowed for a checkpoint or an evaluation."),
]
SpoolMib = Annotated[
    int, typer.Option(envvar="PHAROAH_SPOOL_MIB", min=1, help="MiB of each output that are kept at least.")
]
Poll = Annotated[float, typer.Option(envvar="PHAROAH_POLL_S", min=0.05, help="Seconds between two looks.")]
Grace = Annotated[
    float, typer.Option(envvar="PHAROAH_GRACE_S", min=0.0, help="Seconds that the diagnosis may take after the job.")
]


class JobCommand(Verb):
    """Where the words after `--` are a job, it runs whatever is wrong with our options: the wrong ones are left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, but a wrong option before `--`, or in the environment, is warned about and left out."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except _WRONG:
            if "--" not in given[:-1]:
                raise
        at = given.index("--")
        words, variables = [], {one: one.envvar for one in self.params}
        for one in variables:
            one.envvar = None
        if self._objection(ctx, []):  # there is not even a home by default
            words = ["--home", tempfile.mkdtemp(prefix="pharoah-home-")]
        for one, variable in variables.items():
            one.envvar = variable
            if variable and (objection := self._objection(ctx, words)):
                one.envvar = None
                _leave_out(str(variable), objection)
        for option in _options(given[:at]):
            if objection := self._objection(ctx, words + option):
                _leave_out(" ".join(option), objection)
            else:
                words += option
        ctx.params.clear()
        return super().parse_args(ctx, [*words, *given[at:]])

    def _objection(self, ctx: click.Context, words: list[str]) -> str:
        """What would be wrong with these options, or nothing."""
        trial = click.Context(self, info_name=ctx.info_name, parent=ctx.parent)
        trial.allow_interspersed_args = False
        try:
            super().parse_args(trial, [*words, "--", "job"])
        except _WRONG as error:
            return error.format_message() if isinstance(error, click.ClickException) else str(error)
        return ""


_WRONG = click.UsageError, PharoahError, OSError, RuntimeError


def _options(words: list[str]) -> list[list[str]]:
    """Words by the option that they belong to."""
    options: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    return options


def _leave_out(option: str, objection: str) -> None:
    warn(f"{objection.rstrip('.')}; the job runs all the same, without {option}")


def run(
    command: Command,
    home: Home,
    lease: Lease = "",
    logs: Logs = None,
    hang_factor: HangFactor = 10.0,
    hang_floor_s: HangFloor = 120.0,
    start_timeout_s: StartTimeout = 1800.0,
    aside_timeout_s: AsideTimeout = 3600.0,
    spool_mib: SpoolMib = 4,
    poll_s: Poll = 1.0,
    grace_s: Grace = 30.0,
    *,
    watch: Watch = True,
    sample: Sample = True,
    quiet: Quiet = False,
) -> None:
    """Run a job under watch: put this in front of torchrun, python or srun, and forget it.

    The job's output, signals and exit code stay as they are, whatever happens to us. Once it has failed, the reason is
    looked for and journalled. Nothing is sent.
    """
    from tenant_client.run.attempt import run as narrated
    from tenant_client.run.run_directory import job_name, lease_name
    from tenant_client.run.settings import RunSettings
    from tenant_client.run.watchdog import WatchLimits

    narrated(
        command,
        RunSettings(
            home=home.absolute(),
            lease=lease or lease_name(os.environ),
            job=job_name(command, os.environ),
            watch=watch,
            sample=sample,
            quiet=quiet,
            logs=tuple(path.absolute() for path in logs or ()),
            limits=WatchLimits(start_timeout_s, hang_floor_s, hang_factor, aside_timeout_s),
            spool_bytes=spool_mib << 20,
            poll_s=poll_s,
            grace_s=grace_s,
        ),
    )


def attach(
    target: Annotated[str, typer.Argument(help="The process id of a running job, or a log directory of torchrun.")],
    home: Home,
    lease: Lease = "",
    logs: Logs = None,
    poll_s: Poll = 1.0,
    *,
    watch: Watch = True,
    quiet: Quiet = False,
) -> None:
    """Watch a job that runs already, or journal what a log directory tells. Nothing is sent.

    How a process ended that is not ours is known only if the kernel still says so when we look; else it is unknown.
    """
    from tenant_client.run.attach import attach as attached
    from tenant_client.run.run_directory import lease_name
    from tenant_client.run.settings import RunSettings

    name = lease or lease_name(os.environ)
    settings = RunSettings(home.absolute(), name, watch=watch, quiet=quiet, logs=tuple(logs or ()), poll_s=poll_s)
    with failing():
        attached(target, settings)


def diagnose(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            click_type=InputFile(folders=True),
            help="Logs, flight recorder dumps, error files, or folders of them.",
        ),
    ],
    home: Home,
    *,
    as_json: AsJson = False,
) -> None:
    """Say why a job failed, from what it left behind. Answered on this machine.

    Exit code 0: a reason was found. 2: nothing could be read. 3: unknown; then the oddest lines are shown as hints.
    """
    from dataclasses import asdict

    from tenant_client.diagnosis.diagnose import explain, gather, hints
    from tenant_client.diagnosis.log_templates import load_lessons

    with failing():
        gathered, lessons = gather(paths), load_lessons(home / "lessons.json")
    for fault in gathered.faults:
        warn(str(fault))
    if not gathered.evidence and gathered.faults:
        raise typer.Exit(2)
    found = explain(gathered, lessons)
    unknown = found.reason == "unknown"
    shown = hints(gathered) if unknown else ()
    if as_json:
        fields = ("reason", "domain", "rank", "host", "gpu", "sentence", "advice")
        place = found.root.where if found.root else ""
        cascade = [asdict(seen) for seen in found.cascade]
        rest = {"place": place, "cascade": cascade, "hints": [asdict(hint) for hint in shown]}
        show_json({name: getattr(found, name) for name in fields} | rest)
    else:
        show(found.sentence, *([f"  do: {found.advice}"] if found.advice else []))
        show(*(f"  then {seen.reason}, {seen.where}: {seen.text[:120]}" for seen in found.cascade))
        show(*(f"  perhaps ({hint.count}×) {hint.example}" for hint in shown))
    raise typer.Exit(3 if unknown else 0)


def teach(
    reason: Annotated[str, typer.Argument(help="One of the 29 reasons, such as network_error.")],
    line: Annotated[str, typer.Argument(help="A line of a log that means it; numbers in it may be any.")],
    home: Home,
) -> None:
    """Teach what a line means that no cue knows. Kept in the home, tried after all cues, and sent nowhere."""
    from tenant_client.diagnosis.log_templates import load_lessons, mask, save_lessons

    path = home / "lessons.json"
    with failing():
        lessons = load_lessons(path).teach(line, reason)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        save_lessons(lessons, path)
    say(f"pharoah-tenant: from now on {mask(line)!r} means {reason}")
