"""A pilot: rounds with fewer tenants than the defaults ask for, and every week, as keys of [plan] in provider.toml.

Tenants refuse its plans unless their own policy.toml lets them through (`pharoah-tenant join --pilot`). Windows stay
within an epoch as its first plan had them, so a pilot's weeks end with the epoch.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from federation.base.settings import BadSettings
from federation.protocol.plan import PILOT_COHORT, PILOT_NOISE_SHARES, PILOT_OWNERS
from federation.protocol.toml_tables import loads
from provider_server.rounds.settings import PlanTable

LESS = (
    f"a row may stand for {PILOT_OWNERS} tenants and a sum for {PILOT_COHORT}, by default 5 and 10: a count hides among"
    " fewer, and each tenant's full noise makes it less exact",
    "a round is held every week, by default every quarter: a job pays epsilon in each week that it runs in",
)


def begin(home: Path, weeks_per_epoch: int) -> None:
    """Lowers the minimums in provider.toml to those of a pilot; BadSettings where the file cannot be rewritten."""
    weekly = [*range(1, weeks_per_epoch + 1)]
    least = {"owners_minimum": PILOT_OWNERS, "cohort_minimum": PILOT_COHORT, "noise_shares": PILOT_NOISE_SHARES}
    _rewrite(home, {**least, "windows": weekly})


def end(home: Path, weeks_per_epoch: int) -> None:
    """Raises them to the defaults; windows too, unless the epoch has a length of its own."""
    usual = PlanTable()
    names = ["cohort_minimum", "owners_minimum", "noise_shares"]
    if weeks_per_epoch == usual.weeks_per_epoch:
        names.append("windows")
    _rewrite(home, {name: getattr(usual, name) for name in names})


def _rewrite(home: Path, plan: Mapping[str, object]) -> None:
    file = home / "provider.toml"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    for name, value in plan.items():
        text = _with(text, name, list(value) if isinstance(value, tuple) else value)
    table = loads(text, file, BadSettings).get("plan", {})
    if any(table.get(name) != (list(value) if isinstance(value, tuple) else value) for name, value in plan.items()):
        raise BadSettings(f"[plan] of {file} cannot be rewritten", hint="write each key of it on one line")
    file.write_text(text, encoding="utf-8")


def _with(text: str, name: str, value: object) -> str:
    """The text with one key of [plan] set; what stands behind it stays."""
    line = re.compile(rf"(?m)^{name}\s*=\s*(?:\[[^\]\n]*\]|[^#\n]*?)(\s*(?:#.*)?)$")
    if line.search(text):
        return line.sub(lambda found: f"{name} = {value}{found[1]}", text, count=1)
    if re.search(r"(?m)^\[plan\]", text):
        return re.sub(r"(?m)^\[plan\].*$", lambda found: f"{found[0]}\n{name} = {value}", text, count=1)
    return f"{text}\n[plan]\n{name} = {value}\n"
