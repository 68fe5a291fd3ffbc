"""The settings of a tenant: all keys of tenant.toml with their defaults."""

from pathlib import Path
from typing import Annotated

import msgspec

SAMPLE = Path(__file__).with_name("tenant.toml")

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class ProviderTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the provider is, host:port; `join` fills it in from the invitation."""

    superlink: str = ""
    online: str = ""


class NodeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the node polls and answers. Replies leave on ticks of `tick_s`, so that their timing reveals nothing."""

    tick_s: NotNegative = 5.0
    busy_poll_s: Seconds = 0.2
    idle_poll_s: Seconds = 3.0
    heartbeat_s: Annotated[float, msgspec.Meta(ge=10, le=1800)] = 10.0


class ClaimsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often trustees anchor the journal, so that claims can be made of it; 0 never."""

    anchor_days: Annotated[int, msgspec.Meta(ge=0, le=7)] = 7


class ChecksTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the node buys passes for `check --online --anonymous`, a week ahead; see docs/online.md."""

    anonymous: bool = False


class DecisionsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decisions rest on that reach the provider: `check --gate`, `check gate`, `check exclude`, in job scripts.

    With `own_history`, the provider sees of a job that does not start, or of a node that is left out, a function of
    exact outcomes of yours, without noise and outside of the budget. Without, decisions rest on the bundle alone.
    """

    own_history: bool = False


Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class ExpectationsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is expected of leases: the targets of `show --only expectations` and of the page. They change nothing else.

    Shares: of lease time that training keeps, of training time at the usual speed, of watched time without a hang, and
    of restarts that take at most `restart_s`. `window_days` is how far back the error budget looks.
    """

    goodput: Share = 0.9
    steady: Share = 0.95
    hang_free: Share = 0.99
    restarts: Share = 0.9
    restart_s: Seconds = 600.0
    window_days: Annotated[int, msgspec.Meta(ge=1, le=366)] = 30


class PluginsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Distributions whose log formats and watchers are loaded, by the names that pip knows.

    What is enabled runs with the rights of these programs, which hold keys.
    """

    enable: tuple[str, ...] = ()


class NamesTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What your page calls workloads: a name by the first digits of a token (6 or more), or by the name of a job."""

    workloads: dict[str, str] = {}


class TenantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of tenant.toml."""

    provider: ProviderTable = ProviderTable()
    node: NodeTable = NodeTable()
    claims: ClaimsTable = ClaimsTable()
    checks: ChecksTable = ChecksTable()
    decisions: DecisionsTable = DecisionsTable()
    expectations: ExpectationsTable = ExpectationsTable()
    names: NamesTable = NamesTable()
    plugins: PluginsTable = PluginsTable()
