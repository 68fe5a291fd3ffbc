"""Writes docs/reference/ from the code: commands, settings, what crosses the wire. `make docs` runs it."""

import inspect
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from pkgutil import walk_packages
from typing import Annotated, Any, Union, get_args, get_origin

import click
import msgspec
from typer.main import get_command

import crypto
import federation.protocol
import provider_server
import provider_server.program.cli
import simulation.cli
import tenant_client
import tenant_client.program.cli
import trustee.cli
import trustee.handover_verbs
import trustee.home
import trustee.overview
import trustee.verbs
from crypto.codec import Count, Message, Number, Secret, Text
from crypto.ids import SignatureBytes
from federation.base import route
from federation.base.console import verbs_of
from federation.base.settings_schema import schema
from federation.protocol import anchors, change_rules
from pharoah_benchmarks.run import Ran
from pharoah_benchmarks.runner.settings import BenchmarkSettings
from pharoah_benchmarks.runner.verbs import NextRow, RunRow, StatusView
from pharoah_benchmarks.verb import JobRow
from pharoah_benchmarks.versions import Report
from pharoah_claims.verb import EvidenceView
from pharoah_confirm import machine_verbs
from pharoah_confirm.pairwise import NodeVerdict
from pharoah_kubernetes.settings import KubernetesSettings
from pharoah_kubernetes.verb import KubernetesRow
from pharoah_nodes.check import NodeCheck
from pharoah_slurm.verb import SlurmRow
from provider_server.fleet import node_codes
from provider_server.fleet.hints import node_probes
from provider_server.fleet.telemetry import inventory, recipe as fleet_recipe
from provider_server.program.operations import admin, overview as provider_overview, preflight
from provider_server.program.reporting import findings_text, hazard_text, outage_text
from provider_server.program.verbs import (
    contexts,
    expectations as provider_expectations,
    findings,
    init,
    learning,
    lease_events as events_verb,
    leases,
    missing_metrics,
    nodes,
    recipe,
    rounds,
    slow,
    spares,
    tenants,
    trustees,
    votes,
)
from provider_server.rounds import home as homes, own_events
from provider_server.rounds.intake import lease_events, lines
from provider_server.rounds.settings import ProviderSettings
from simulation.judge import score, sweep
from simulation.replay import brca, lung, lung_times, philly, titan, titan_times
from simulation.run import processes
from simulation.studies import (
    aggregation,
    attendance,
    check as check_study,
    experiments,
    field,
    first_weeks,
    impact,
    learning as learning_study,
    risk,
    scale,
    world,
)
from simulation.verbs import look
from tenant_client.doctor.advice import (
    changes,
    expectations,
    explanation,
    hints,
    provider_report,
    replacement,
    resources,
)
from tenant_client.doctor.diagnosis.stragglers import waits, what_if
from tenant_client.doctor.records import fixes
from tenant_client.doctor.settings import SAMPLE, TenantSettings
from tenant_client.doctor.workload import compare
from tenant_client.program.verbs import (
    check,
    diagnose,
    exclude,
    federation as joining,
    gate,
    incidents,
    owner,
    restart,
    show,
    workload,
)
from tenant_client.rounds.disclosure import happened, overview as tenant_overview, owner_view
from tenant_client.rounds.policy import SAMPLE as POLICY, Policy
from trustee.settings import TrusteeSettings

HERE = Path(__file__).resolve().parent / "reference"
PROGRAMS = {
    "pharoah-tenant": tenant_client.program.cli.app,
    "pharoah-trustee": trustee.cli.app,
    "pharoah-provider": provider_server.program.cli.app,
    "pharoah-sim": simulation.cli.app,
}
SETTINGS: dict[str, list[Any]] = {
    "provider.toml": [ProviderSettings, KubernetesSettings, BenchmarkSettings],
    "tenant.toml": [TenantSettings],
    "trustee.toml": [TrusteeSettings],
}
# A verb by its name; where what it prints depends on its options, those that make the difference are added.
JSON: dict[str, Any] = {
    "pharoah-tenant watch": hints.HintObject,
    "pharoah-tenant status": tenant_overview.TenantStatus,
    "pharoah-tenant jobs": tenant_overview.Leases,
    "pharoah-tenant show summary": show.ShownJob,
    "pharoah-tenant show summary --report": provider_report.ProviderReport,
    "pharoah-tenant show --only cause": show.ShownCause,
    "pharoah-tenant show --only evidence": show.ShownEvidence,
    "pharoah-tenant show --only precedents": show.ShownPrecedents,
    "pharoah-tenant show --only journal": happened.Happened,
    "pharoah-tenant patterns fix": fixes.Fixed,
    "pharoah-tenant show --only expectations": expectations.Report,
    "pharoah-tenant show --only resources": resources.Resources,
    "pharoah-tenant diagnose": diagnose.Told,
    "pharoah-tenant show --only explain": explanation.Explanation,
    "pharoah-tenant show --only path": route.Routes,
    "pharoah-tenant show --only replacement": replacement.ReplacementPlan,
    "pharoah-tenant show --only stragglers": what_if.WhatIf,
    "pharoah-tenant show --only stragglers LOGS": waits.Waits,
    "pharoah-tenant show --only restart": restart.Restart,
    "pharoah-tenant patterns rules": incidents.RulesObject,
    "pharoah-tenant patterns rules LOG": incidents.Unusual,
    "pharoah-tenant patterns reasons": tenant_overview.Reasons,
    "pharoah-tenant check fit": check.CheckObject,
    "pharoah-tenant check gate": gate.GateObject,
    "pharoah-tenant check exclude": exclude.ExcludeObject,
    "pharoah-tenant show --only changes": changes.Changes,
    "pharoah-tenant show --only changes --rules": change_rules.Judgement,
    "pharoah-tenant workload describe": workload.Described,
    "pharoah-tenant workload tokens": workload.Tokens,
    "pharoah-tenant workload compare": compare.Comparison,
    "pharoah-tenant join": joining.Carded,
    "pharoah-tenant join INVITATION": joining.Joined,
    "pharoah-tenant privacy budget": owner_view.Budget,
    "pharoah-tenant privacy preview": owner_view.Preview,
    "pharoah-tenant privacy evidence": EvidenceView,
    "pharoah-tenant privacy sent": owner_view.Sent,
    "pharoah-tenant privacy sent --round": owner.SentParts,
    "pharoah-tenant confirm test": machine_verbs.Confirmed,
    "pharoah-tenant confirm determinism": machine_verbs.Determinism,
    "pharoah-tenant confirm learn": machine_verbs.Learnt,
    "pharoah-tenant confirm pairs": NodeVerdict[str],
    "pharoah-trustee init": trustee.verbs.Card,
    "pharoah-trustee keys renew-certificate": trustee.verbs.Certificate,
    "pharoah-trustee ceremony deal": trustee.verbs.Dealt,
    "pharoah-trustee ceremony combine": trustee.verbs.Combined,
    "pharoah-trustee keys renew-mask-key": trustee.handover_verbs.RenewedMask,
    "pharoah-trustee handover give": trustee.handover_verbs.HandedOver,
    "pharoah-trustee handover take": trustee.handover_verbs.TakenOver,
    "pharoah-trustee join": trustee.verbs.Joined,
    "pharoah-trustee log": trustee.verbs.Log,
    "pharoah-trustee status": trustee.overview.TrusteeStatus,
    "pharoah-provider init": list[init.InitRow],
    "pharoah-provider tenants list": list[tenants.TenantRow],
    "pharoah-provider tenants enrol": list[tenants.EnrolRow],
    "pharoah-provider tenants revoke": list[tenants.RevokeRow],
    "pharoah-provider trustees reseat": list[trustees.ReseatRow],
    "pharoah-provider renew-certificate": list[init.CertificateRow],
    "pharoah-provider serve --check": preflight.Preflight,
    "pharoah-provider status": provider_overview.ProviderStatus,
    "pharoah-provider rounds hold": list[admin.HeldRound],
    "pharoah-provider rounds hold --give-up": list[admin.GivenUp],
    "pharoah-provider trustees keys": anchors.VerificationKeys,
    "pharoah-provider leases record": list[leases.LeaseRow],
    "pharoah-provider leases events": list[events_verb.EventsRow],
    "pharoah-provider leases slurm": list[SlurmRow],
    "pharoah-provider leases key": list[leases.LeaseKeyRow],
    "pharoah-provider benchmark list": list[JobRow],
    "pharoah-provider benchmark plan": list[NextRow],
    "pharoah-provider benchmark run": Ran,
    "pharoah-provider benchmark start": list[RunRow],
    "pharoah-provider benchmark status": StatusView,
    "pharoah-provider benchmark versions": Report,
    "pharoah-provider kubernetes": list[KubernetesRow],
    "pharoah-provider nodes contexts": list[contexts.ContextRow],
    "pharoah-provider nodes recipe": list[recipe.RecipeRow],
    "pharoah-provider nodes recipe --missing": list[missing_metrics.ExporterRow],
    "pharoah-provider nodes spares": list[spares.SparesObject],
    "pharoah-provider nodes hazard": list[hazard_text.HazardRow],
    "pharoah-provider nodes hazard --events": list[outage_text.OutagesRow],
    "pharoah-provider nodes repaired": list[contexts.RepairedRow],
    "pharoah-provider nodes changes": change_rules.Judgement,
    "pharoah-provider nodes path": route.Routes,
    "pharoah-provider nodes check": NodeCheck,
    "pharoah-provider nodes risk": nodes.RisksObject,
    "pharoah-provider nodes probes": list[node_probes.ProbeVisit],
    "pharoah-provider nodes own-failures": list[own_events.OwnFailuresRow],
    "pharoah-provider nodes codes": list[node_codes.NodeCodeRow],
    "pharoah-provider rounds releases": list[rounds.ReleaseRow],
    "pharoah-provider rounds releases ROUND_ID": list[rounds.CellRow],
    "pharoah-provider rounds ledger": list[rounds.LedgerRow],
    "pharoah-provider rounds pilot": list[rounds.PilotRow],
    "pharoah-provider rounds move-store": list[rounds.MovedRow],
    "pharoah-provider findings learn": list[findings_text.LearntRow],
    "pharoah-provider findings explain": list[findings_text.ExplanationRow],
    "pharoah-provider findings publish": list[learning.PublishRow],
    "pharoah-provider findings catalogue": list[learning.CatalogueRow],
    "pharoah-provider findings votes": votes.SuspectsView,
    "pharoah-provider findings slow": slow.PacesView,
    "pharoah-provider findings expectations": provider_expectations.ExpectationsView,
    "pharoah-provider findings list": list[findings.FindingRow],
    "pharoah-sim run": score.Summary,
    "pharoah-sim sweep": sweep.SweepResult,
    "pharoah-sim federation": processes.HeldHere,
    "pharoah-sim status": look.RunStatus,
    "pharoah-sim replay titan": titan.TitanResult,
    "pharoah-sim replay titan --holdout": titan.HoldoutResult,
    "pharoah-sim replay titan --hide-times": titan_times.TitanTimesResult,
    "pharoah-sim replay philly": philly.PhillyResult,
    "pharoah-sim replay lung": lung.LungResult,
    "pharoah-sim replay lung --hide-times": lung_times.LungTimesResult,
    "pharoah-sim replay brca": brca.BrcaResult,
    "pharoah-sim study aggregation": aggregation.Rows,
    "pharoah-sim study attendance": attendance.AttendanceFigures,
    "pharoah-sim study field": field.FieldRows,
    "pharoah-sim study experiments": experiments.ExperimentRows,
    "pharoah-sim study first-weeks": first_weeks.Found,
    "pharoah-sim study risk": risk.RiskFigures,
    "pharoah-sim study world": world.WorldFigures,
    "pharoah-sim study scale": scale.ScaleFigures,
    "pharoah-sim study learning": dict[str, learning_study.LearningFigures],
    "pharoah-sim study check": check_study.CheckFigures,
    "pharoah-sim study impact": dict[str, dict[str, impact.Range | None]],
}
_SEVERAL: Any = tuple
INVENTORY = msgspec.defstruct(
    "Inventory",
    [(kind, _SEVERAL[thing, ...], ()) for kind, thing in inventory.KINDS.items()],
    forbid_unknown_fields=True,
)
# Files that people write: the types that read them, and the sample that describes their keys.
SCHEMAS: dict[str, tuple[list[Any], Path | None]] = {
    "provider": (SETTINGS["provider.toml"], homes.SAMPLE),
    "tenant": ([TenantSettings], SAMPLE),
    "trustee": ([TrusteeSettings], trustee.home.SAMPLE),
    "policy": ([Policy], POLICY),
    "inventory": ([INVENTORY], None),
    "recipe": ([fleet_recipe.File], None),
}
WRITTEN = "Written by `make reference` from the code; do not edit.\n"


def pages() -> dict[str, str]:
    """Every page of the reference by its file name."""
    return {
        "commands.md": "\n".join(["# Commands\n", WRITTEN, *_commands()]),
        "settings.md": "\n".join(["# Settings\n", WRITTEN, *_settings()]),
        "leases.md": "\n".join(["# Events of leases\n", WRITTEN, *_lease_events()]),
        "json.md": "\n".join(["# JSON of verbs\n", WRITTEN, *_json()]),
        "messages.md": "\n".join(["# Messages\n", WRITTEN, *_messages()]),
    }


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(head)} |"
        yield f"|{'---|' * len(head)}"
        yield from (f"| {' | '.join(map(_cell, row))} |" for row in rows)
        yield ""


# ---- commands ------------------------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    for program, app in PROGRAMS.items():
        yield f"## {program}\n"
        yield from _verbs(program, get_command(app))


def _verbs(words: str, command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        yield f"{command.help}\n"
        yield from _options(command, click.Context(command, info_name=words, **command.context_settings))
        for name, verb in verbs_of(command).items():
            yield from () if verb.hidden else _verbs(f"{words} {name}", verb)
        return
    context = click.Context(command, info_name=words, **command.context_settings)
    yield f"### {words}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    yield f"```text\nusage: {' '.join([words, *command.collect_usage_pieces(context)])}\n```\n"
    yield from _options(command, context)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    shown = [one for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
    yield from _table(("", "", "by default"), [_parameter(one, context) for one in shown])


def _parameter(one: click.Parameter, context: click.Context) -> tuple[str, str, str]:
    told = getattr(one, "help", None) or ""
    if isinstance(one, click.Option):
        name = " / ".join(f"`{text}`" for text in (*one.opts, *one.secondary_opts))
    else:
        name = f"`{(one.metavar or one.name or '').upper().strip('[].')}`"
    if one.envvar:
        variables = [one.envvar] if isinstance(one.envvar, str) else one.envvar
        told += f" Also {', '.join(f'`{variable}`' for variable in variables)}."
    if isinstance(one.type, click.Choice):
        choices = (getattr(choice, "value", choice) for choice in one.type.choices)
        told += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
    default = one.get_default(context, call=False)
    plain = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    shown = f"`{getattr(default, 'value', default)}`" if plain else "required" if one.required else ""
    return name, told, shown


# ---- settings ------------------------------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    for file, kinds in SETTINGS.items():
        yield f"## {file}\n"
        yield f"[Schema]({file.partition('.')[0]}.schema.json) for editors.\n"
        for section in chain.from_iterable(map(_keys, kinds)):
            yield f"### [{section.name}] of {file}\n"
            yield f"{inspect.getdoc(section.type)}\n"
            rows = [
                (f"`{key.name}`", f"`PHAROAH_{section.name.upper()}_{key.name.upper()}`", _range(key.type), _value(key))
                for key in _keys(section.type)
            ]
            yield from _table(("key", "variable", "value", "by default"), rows)
    yield f"## policy.toml\n\n[Schema](policy.schema.json) for editors.\n\n{inspect.getdoc(Policy)}\n"
    limits = [(f"`{key.name}`", _range(key.type), _value(key)) for key in _keys(Policy)]
    yield from _table(("key", "value", "by default"), limits)
    yield "## Other files\n"
    others = ((name, kinds[0]) for name, (kinds, sample) in SCHEMAS.items() if sample is None)
    yield from _table(
        ("file", "schema"),
        [(f"{name}: {_first_paragraph(kind)}", f"[{name}.schema.json]({name}.schema.json)") for name, kind in others],
    )


def schemas() -> dict[str, str]:
    """JSON Schemas of files that people write, by their file names."""
    return {
        f"{name}.schema.json": json.dumps(schema(kinds, sample.read_text(encoding="utf-8") if sample else ""), indent=1)
        for name, (kinds, sample) in SCHEMAS.items()
    }


def _keys(section: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    fields_of: Any = msgspec.structs.fields
    return tuple(fields_of(section))


def _range(kind: Any) -> str:
    """The type of a setting and its bounds."""
    told = msgspec.inspect.type_info(kind)
    bounds = [
        f"{word} {_whole(bound)}"
        for name, word in _BOUNDS.items()
        if (bound := getattr(told, name, None)) is not None and bound != sys.float_info.max  # finite, that says
    ]
    choices = " or ".join(f"`{value}`" for value in getattr(told, "values", ()))
    enum = " or ".join(f"`{value.value}`" for value in getattr(told, "cls", ()) or ())
    return choices or enum or " ".join([type(told).__name__.removesuffix("Type").lower(), *bounds])


def _whole(bound: float) -> float:
    """0.0 as 0: typing keeps one of two annotations that are equal, whichever was made first."""
    return int(bound) if bound == int(bound) else bound


_BOUNDS = {"gt": "above", "ge": "from", "lt": "below", "le": "to"}


def _value(key: msgspec.structs.FieldInfo) -> str:
    if key.default_factory is not msgspec.NODEFAULT:
        return "empty"
    default = getattr(key.default, "value", key.default)
    return "empty" if default == "" else f"`{default}`"


# ---- JSON of verbs ---------------------------------------------------------------------------------------------------


def _json() -> Iterator[str]:
    yield (
        "What every verb with `--json` prints, as JSON Schema. Keys are added within a version, and never renamed.\n"
        "`watch` prints one such object for each hint, on a line of its own. Of `pharoah-sim run` the schema has the\n"
        "top-level keys and the scores; `study learning` and `study impact` have a key for each level of privacy.\n"
    )
    for verb, kind in JSON.items():
        yield f"## {verb}\n"
        yield f"```json\n{json.dumps(msgspec.json.schema(kind), indent=2)}\n```\n"


# ---- events of leases ----------------------------------------------------------------------------------------------


def _lease_events() -> Iterator[str]:
    yield f"{_first_paragraph(lease_events)} One object a line, for `pharoah-provider leases events` and the webhook.\n"
    yield f"```json\n{json.dumps(msgspec.json.schema(lease_events.LeaseEvent), indent=2)}\n```\n"
    yield "## What the webhook answers\n"
    yield f"```json\n{json.dumps(msgspec.json.schema(lines.Taken), indent=2)}\n```\n"


# ---- messages ------------------------------------------------------------------------------------------------------


def _messages() -> Iterator[str]:
    yield (
        "Each message is a msgpack array: its label, then its fields in order, decoded strictly by `crypto.codec`.\n"
        "A type that ends in `Id`, `Key`, `Token`, `Nonce` or `Digest` is a byte string of fixed length; a key is\n"
        "canonical and of large order. `Count` is an integer from 0 to 2^63 - 1, `Number` finite, `Text` has at most\n"
        "4,096 characters. Lists have at most 2^22 entries where nothing else is said.\n"
    )
    for module, kinds in _by_module().items():
        yield f"## {module}\n"
        for kind in kinds:
            yield f"### {kind.__name__}\n"
            yield f"`{kind.LABEL}` · {_first_paragraph(kind)}\n"
            yield from _table(("field", "type"), [(f"`{one.name}`", f"`{_named(one.type)}`") for one in _keys(kind)])


def _by_module() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for package in (crypto, federation.protocol, provider_server):
        for info in walk_packages(package.__path__, f"{package.__name__}."):
            if info.name.endswith("__main__"):
                continue
            kinds = vars(import_module(info.name)).values()
            own = [kind for kind in kinds if isinstance(kind, type) and kind.__module__ == info.name]
            messages = [kind for kind in own if issubclass(kind, Message) and kind not in (Message, Secret)]
            labelled = [leaf for kind in messages for leaf in kind.__subclasses__() or [kind]]
            if labelled:
                found[info.name] = labelled
    return found


def _first_paragraph(kind: object) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _named(kind: Any) -> str:
    """A type as its annotation reads."""
    if get_origin(kind) is Annotated:
        base, rule = get_args(kind)
        return _ALIASES.get(kind) or f"{_named(base)}{_length(rule)}"
    arguments = get_args(kind)
    if not arguments:
        return "None" if kind is type(None) else str(getattr(kind, "__name__", kind))
    inner = ["…" if one is Ellipsis else _named(one) for one in arguments]
    if get_origin(kind) is Union or re.search("UnionType", str(type(kind))):
        return " or ".join(inner)
    return f"{kind.__origin__.__name__}[{', '.join(inner)}]"


MANY = 2**22
_ALIASES = {Count: "Count", Number: "Number", Text: "Text", SignatureBytes: "Signature"}


def _length(rule: msgspec.Meta) -> str:
    """The bounds of a list's or a number's size."""
    low, high = (rule.min_length, rule.max_length) if rule.ge is None else (rule.ge, rule.le)
    if high == MANY:
        return ""
    told = [f"at least {low}"] if low is not None else []
    return f" ({', '.join([*told, *([f'at most {high}'] if high is not None else [])])})"


# ---- manual pages --------------------------------------------------------------------------------------------------


def manuals() -> dict[str, str]:
    """A manual page in roff for each program, by its file name."""
    return {f"{program}.1": "\n".join(_manual(program, get_command(app))) + "\n" for program, app in PROGRAMS.items()}


def _manual(program: str, command: click.Command) -> Iterator[str]:
    made = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), UTC)
    yield f'.TH {_roff(program.upper())} 1 {made:%Y-%m-%d} "Pharoah {version("pharoah")}"'
    yield from (".SH NAME", _roff(f"{program} - {command.help}"), ".SH COMMANDS")
    yield from _manual_verbs(program, command)


def _manual_verbs(words: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=words, **command.context_settings)
    usage = f'.SS "{_roff(" ".join([words, *command.collect_usage_pieces(context)]))}"'
    if not isinstance(command, click.Group):
        yield from (usage, _roff(command.help or ""))
    for one in command.params:
        if one.name != "help" and not getattr(one, "hidden", False):
            name, told, default = _parameter(one, context)
            more = f" By default {default}." if default.startswith("`") else ""
            yield from (".TP", f".B {_roff(name.replace('`', ''))}", _roff(f"{told}{more}".replace("`", "")))
    if isinstance(command, click.Group):
        for name, verb in verbs_of(command).items():
            yield from () if verb.hidden else _manual_verbs(f"{words} {name}", verb)


def _roff(text: str) -> str:
    """A text on one line that roff takes for a text."""
    line = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    line = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in line)
    return f"\\&{line}" if line.startswith((".", "'")) else line


def main() -> None:
    """Writes the pages, or with `--man FOLDER` the manual pages."""
    if sys.argv[1:2] == ["--man"]:
        folder = Path(sys.argv[2])
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in manuals().items():
            (folder / name).write_text(text, encoding="utf-8")
        return
    HERE.mkdir(parents=True, exist_ok=True)
    for name, text in (pages() | schemas()).items():
        (HERE / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        sys.stdout.write(f"docs/reference/{name}\n")


if __name__ == "__main__":
    main()
