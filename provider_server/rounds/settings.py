"""The settings in provider.toml: every key with its default. See docs/operate.md."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from crypto.ids import TenantId
from federation.base.settings import BadSettings
from federation.protocol.bundle import LONGEST_NAME
from federation.protocol.plan import Mechanism
from federation.protocol.subjects import Subject
from federation.protocol.warnings import Claims, Share
from provider_server.rounds.schedule import Windows

if TYPE_CHECKING:
    from provider_server.rounds.planning import PlanSettings

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
PublicName = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Listen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the provider listens. Invitations contain `advertised_host` with the first two ports.

    On a `metrics_host` other than the loopback, metrics are served over TLS, to whoever asks.
    """

    host: str = "0.0.0.0"  # noqa: S104  # tenants come from elsewhere
    tenants_port: Port = 8443
    online_port: Port = 8444
    metrics_host: str = "127.0.0.1"
    metrics_port: Port = 8445
    advertised_host: str = "localhost"


class Rounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When rounds are held, and how long a round waits."""

    every: Literal["window", "manual"] = "window"
    settle_hours: Annotated[int, msgspec.Meta(ge=0)] = 24
    join_s: Seconds = 60.0
    deadline_s: Seconds = 3600.0
    poll_s: Seconds = 0.5
    retry_s: Seconds = 60.0


class PlanTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of every plan; read docs/privacy.md before changing them."""

    epsilon: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    delta: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 1e-8
    mechanism: Mechanism = Mechanism.DISCRETE_LAPLACE
    owners_minimum: Positive = 5
    cohort_minimum: Positive = 10
    noise_shares: Positive = 5
    honest_minimum: Annotated[int, msgspec.Meta(ge=0)] = 0
    failures_per_unit: Positive = 1
    weeks_per_epoch: Positive = 52
    windows: tuple[Positive, ...] = (13, 26, 39, 52)
    groups: Positive = 1
    votes_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    speed_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    goodput_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    warnings_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    claimed_precision: Share = 0.0
    claimed_recall: Share = 0.0

    def __post_init__(self) -> None:
        if self.noise_shares > self.cohort_minimum:
            raise ValueError("noise_shares is larger than cohort_minimum: a full cohort would lack noise")
        if 0 < self.honest_minimum < self.noise_shares:
            raise ValueError("honest_minimum is smaller than noise_shares: lower noise_shares to as many")
        Windows(self.windows, self.weeks_per_epoch)
        if self.mechanism is Mechanism.DISCRETE_GAUSSIAN and self.delta <= 0:
            raise ValueError("Gaussian noise needs a delta above 0")
        if sum(self.optional_shares.values()) >= 1:
            raise ValueError("votes_share, speed_share, goodput_share and warnings_share leave nothing for failures")

    @property
    def is_pilot(self) -> bool:
        """Whether rounds are held with fewer tenants than the defaults ask for."""
        usual = PlanTable()
        return self.owners_minimum < usual.owners_minimum or self.cohort_minimum < usual.cohort_minimum

    @property
    def optional_shares(self) -> dict[Subject, float]:
        """Of the budget, for each optional subject."""
        shares = self.votes_share, self.speed_share, self.goodput_share, self.warnings_share
        subjects = Subject.VOTES, Subject.SPEED, Subject.GOODPUT, Subject.WARNINGS
        return dict(zip(subjects, shares, strict=True))

    @property
    def settings(self) -> "PlanSettings":
        """As planning takes it."""
        from provider_server.rounds.planning import PlanSettings, with_optional

        return PlanSettings(
            epsilon=self.epsilon,
            delta=self.delta,
            cohort_minimum=self.cohort_minimum,
            noise_shares=self.noise_shares,
            owners_minimum=self.owners_minimum,
            failures_per_unit=self.failures_per_unit,
            mechanism=self.mechanism,
            windows=self.windows,
            weeks_per_epoch=self.weeks_per_epoch,
            groups=self.groups,
            honest_minimum=self.honest_minimum,
            marginals=with_optional(self.optional_shares),
            claims=Claims(self.claimed_precision, self.claimed_recall),
        )


class Telemetry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the provider's own telemetry comes from; see docs/nodes.md. Empty: not there.

    `fabric` are files or folders of cables, as `pharoah-provider nodes path` reads them, for `votes_share` in [plan].
    `recipe` is a file of the metrics to ask for, as `pharoah-provider nodes recipe` writes it; empty: all.
    Once it names a source, failures that are seen on leases are recorded every day, for the provider's operators.
    """

    prometheus_url: str = ""
    token_file: str = ""
    inventory: str = ""
    fabric: tuple[str, ...] = ()
    recipe: str = ""


class Live(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How running leases are watched; see docs/nodes.md. Reloaded on SIGHUP."""

    poll_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    within_hours: Annotated[float, msgspec.Meta(gt=0, le=168)] = 24.0


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Public names of contexts, which bundles show to all tenants beside the tokens. Empty: none.

    `contexts` maps a context, as leases name it, to its public name. A name reveals what its token stands for: see
    docs/threat-model.md.
    """

    contexts: dict[str, PublicName] = {}


class PassesTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Passes for anonymous checks; see docs/online.md. 0: none are issued.

    `batches_per_week` of 32 passes each are issued to every tenant; a change holds for weeks that have no key yet.
    """

    batches_per_week: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0


def tenants_by_name(ids: dict[str, str], key: str) -> dict[str, TenantId]:
    """The tenants by what a key of the settings calls each; BadSettings if one is no id."""
    try:
        return {name: TenantId(bytes.fromhex(tenant)) for name, tenant in ids.items()}
    except ValueError as error:
        raise BadSettings(f"{key}: {error}", hint="copy what `tenants list` shows") from error


class Leases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where events of leases are taken over HTTP, as host:port; see docs/operate.md. Empty: nowhere.

    Senders show the bearer token that lies in `token_file`. `contexts` maps a list of hosts to the context that they
    are, `slurm_accounts` an account of Slurm to the id of a tenant, for `pharoah-provider leases slurm`.
    """

    listen: str = ""
    token_file: str = ""
    contexts: dict[str, str] = {}
    slurm_accounts: dict[str, str] = {}

    def tenants(self) -> dict[str, TenantId]:
        """The tenants by account; BadSettings if one is no id."""
        told = tenants_by_name(self.slurm_accounts, "[leases] slurm_accounts")
        return {account.lower(): tenant for account, tenant in told.items()}  # Slurm's case, however they were typed


class Outputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where reports on the provider's own nodes go; see docs/nodes.md. Empty: nowhere.

    `node_metrics` shows nodes by name at the metrics port.
    """

    node_metrics: bool = False
    nvsentinel_socket: str = ""
    nvsentinel_strategy: Literal["STORE_ONLY", "EXECUTE_REMEDIATION"] = "STORE_ONLY"


class ProviderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of provider.toml."""

    listen: Listen = Listen()
    rounds: Rounds = Rounds()
    plan: PlanTable = PlanTable()
    telemetry: Telemetry = Telemetry()
    live: Live = Live()
    names: Names = Names()
    passes: PassesTable = PassesTable()
    leases: Leases = Leases()
    outputs: Outputs = Outputs()
