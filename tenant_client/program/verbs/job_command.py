"""How the command line of `run` is read: the job comes first."""

import tempfile

import click

from crypto.errors import PharoahError
from federation.base.console import Console, Verb


class JobCommand(Verb):
    """Runs the job after `--` even if Pharoah's own options are wrong; wrong options are ignored with a warning."""

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As in click, but a wrong option before `--` or in the environment is ignored with a warning."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except _WRONG:
            if "--" not in given[:-1]:
                raise
        at = given.index("--")
        words, variables = [], {parameter: parameter.envvar for parameter in self.params}
        for parameter in variables:
            parameter.envvar = None
        if self._objection(ctx, []):  # the default home cannot be used either
            words = ["--home", tempfile.mkdtemp(prefix="pharoah-home-")]
        for parameter, variable in variables.items():
            parameter.envvar = variable
            if variable and (objection := self._objection(ctx, words)):
                parameter.envvar = None
                _leave_out(str(variable), objection)
        for option in _options(given[:at]):
            if objection := self._objection(ctx, words + option):
                _leave_out(" ".join(option), objection)
            else:
                words += option
        ctx.params.clear()
        return super().parse_args(ctx, [*words, *given[at:]])

    def _objection(self, ctx: click.Context, words: list[str]) -> str:
        """The error that these options would cause, or an empty string."""
        trial = click.Context(self, info_name=ctx.info_name, parent=ctx.parent)
        trial.allow_interspersed_args = False
        try:
            super().parse_args(trial, [*words, "--", "job"])
        except _WRONG as error:
            return error.format_message() if isinstance(error, click.ClickException) else str(error)
        return ""


_WRONG = click.UsageError, PharoahError, OSError, RuntimeError


def _options(words: list[str]) -> list[list[str]]:
    """Groups the words by option."""
    options: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    return options


def _leave_out(option: str, objection: str) -> None:
    Console("pharoah-tenant").warn(f"{objection.rstrip('.')}; ignored {option}, the job runs")
