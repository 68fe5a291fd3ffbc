"""The provider's metrics for Prometheus; docs/operate.md says what to watch and what to do.

Names follow Prometheus' conventions: base units, `_total` for counters. No label contains a tenant, a token or a lease,
since more people read metrics than releases.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

STAGE_SECONDS = (0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0, 7200.0)


class Metrics:
    """The metrics of one provider, in a registry of their own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.rounds = Counter(
            "pharoah_rounds_total", "Attempts to finish a round, by outcome.", ["outcome"], registry=registry
        )
        self.stage_seconds = Histogram(
            "pharoah_stage_seconds",
            "Duration of each stage of a weekly round.",
            ["stage"],
            buckets=STAGE_SECONDS,
            registry=registry,
        )
        self.contributions = Gauge("pharoah_contributions", "Contributions in the newest release.", registry=registry)
        self.cohort_minimum = Gauge(
            "pharoah_cohort_minimum", "Contributions that each group of the next round needs.", registry=registry
        )
        self.silences = Counter(
            "pharoah_silences_total", "Requests that a node did not answer, by cause.", ["why"], registry=registry
        )
        self.nodes = Gauge("pharoah_nodes", "Tenants' nodes, online or offline.", ["state"], registry=registry)
        self.trustees = Gauge(
            "pharoah_trustee_up", "1 if the trustee answered its last request, else 0.", ["trustee"], registry=registry
        )
        self.certificate_end_s = Gauge(
            "pharoah_certificate_end_seconds",
            "Expiry of the TLS certificate, in seconds since 1970.",
            registry=registry,
        )
        self.waiting = Gauge(
            "pharoah_round_waiting", "1 if a round waits for a tenant or a trustee, else 0.", registry=registry
        )
        self.release_end_hour = Gauge(
            "pharoah_release_end_hour", "End of the newest release, in hours since 1970.", registry=registry
        )
        self.release_due_hour = Gauge(
            "pharoah_release_due_hour",
            "When the next release is due: the end of its window, and settle_hours; in hours since 1970.",
            registry=registry,
        )
        self.lacking = Gauge(
            "pharoah_round_lacking",
            "How many things the next round lacks that somebody must act on; status and readyz name them.",
            registry=registry,
        )
        self.epsilon = Gauge("pharoah_epsilon", "Privacy budget per unit of the newest release.", registry=registry)
        self.alarms = Gauge("pharoah_alarms", "Drift alarms raised by the newest window.", registry=registry)
        self.parts_suspected = Gauge(
            "pharoah_parts_suspected", "Parts of the fabric that votes in the newest release name.", registry=registry
        )
        self.contexts_slow = Gauge(
            "pharoah_contexts_slow", "Contexts that the newest release names as slower.", registry=registry
        )
        self.held_back = Gauge(
            "pharoah_bundle_held_back", "1 if the newest bundle was held back, else 0.", registry=registry
        )
        self.suspects = Gauge("pharoah_suspects", "Tenants that may have sent false counts.", registry=registry)
        self.left_out = Gauge(
            "pharoah_contributions_left_out",
            "Contributions of the newest release in groups that were left out.",
            registry=registry,
        )
        self.live_leases = Gauge(
            "pharoah_live_leases",
            "Running leases at the last poll, by whether they could be judged.",
            ["state"],
            registry=registry,
        )
        self.live_nodes_unheard = Gauge(
            "pharoah_live_nodes_unheard",
            "Nodes of running leases without telemetry in the newest hour.",
            registry=registry,
        )
        self.fleet_shift = Gauge(
            "pharoah_fleet_shift",
            "By how much the median of a group of nodes is above its own past, in units of buildup.toml.",
            ["group", "metric"],
            registry=registry,
        )
        self.live_polls = Counter(
            "pharoah_live_polls_total",
            "Polls of telemetry, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.telemetry_age_s = Gauge(
            "pharoah_telemetry_age_seconds",
            "Seconds since the end of the newest hour of telemetry that was read.",
            registry=registry,
        )
        self.hints = Counter("pharoah_hints_total", "Hints sent to tenants, by state.", ["state"], registry=registry)
        self.episodes_open = Gauge("pharoah_episodes_open", "Leases with an open hint.", registry=registry)
        self.passes = Counter(
            "pharoah_passes_total",
            "Passes for anonymous checks, by what became of them: issued, redeemed, refused.",
            ["event"],
            registry=registry,
        )
