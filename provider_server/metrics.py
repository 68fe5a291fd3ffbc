"""What Prometheus scrapes from the provider. docs/operate.md tells what to watch and what to do.

Names follow Prometheus' conventions: base units, `_total` for counters. No label holds a tenant, a token or a lease: a
metric is read by more people than a release.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

STAGE_SECONDS = (0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0, 7200.0)


class Metrics:
    """The metrics of one provider, in a registry of their own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.rounds = Counter("pharoah_rounds_total", "Rounds that ended, by outcome.", ["outcome"], registry=registry)
        self.stage_seconds = Histogram(
            "pharoah_stage_seconds",
            "How long the stages of a week took.",
            ["stage"],
            buckets=STAGE_SECONDS,
            registry=registry,
        )
        self.contributions = Gauge("pharoah_contributions", "Contributions in the newest release.", registry=registry)
        self.silences = Counter(
            "pharoah_silences_total", "Questions that a node did not answer, by cause.", ["why"], registry=registry
        )
        self.nodes = Gauge(
            "pharoah_nodes", "Tenants' nodes, by whether they are connected.", ["state"], registry=registry
        )
        self.trustees = Gauge(
            "pharoah_trustee_up", "Whether a trustee answered when it was last asked.", ["trustee"], registry=registry
        )
        self.certificate_end_s = Gauge(
            "pharoah_certificate_end_seconds",
            "When the TLS certificate ends, seconds since 1970.",
            registry=registry,
        )
        self.waiting = Gauge(
            "pharoah_round_waiting", "Whether a round is open and waits for somebody.", registry=registry
        )
        self.release_end_hour = Gauge(
            "pharoah_release_end_hour", "Hour since 1970 until which releases go.", registry=registry
        )
        self.epsilon = Gauge("pharoah_epsilon", "What a job-week paid for the newest release.", registry=registry)
        self.alarms = Gauge("pharoah_alarms", "Alarms that the newest week raised.", registry=registry)
        self.suspects = Gauge("pharoah_suspects", "Tenants that may have sent false counts.", registry=registry)
        self.left_out = Gauge(
            "pharoah_contributions_left_out", "Contributions in groups that do not count.", registry=registry
        )
        self.live_leases = Gauge(
            "pharoah_live_leases",
            "Leases at the newest look, by how they stand.",
            ["state"],
            registry=registry,
        )
        self.live_nodes_unheard = Gauge(
            "pharoah_live_nodes_unheard",
            "Nodes of running leases that said nothing.",
            registry=registry,
        )
        self.live_polls = Counter(
            "pharoah_live_polls_total",
            "Polls of telemetry, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.telemetry_age_s = Gauge(
            "pharoah_telemetry_age_seconds", "Time since the end of the newest hour that was read.", registry=registry
        )
        self.hints = Counter("pharoah_hints_total", "Hints to tenants, by state.", ["state"], registry=registry)
        self.episodes_open = Gauge("pharoah_episodes_open", "Leases about which a hint stands.", registry=registry)
