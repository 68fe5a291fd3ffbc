"""The provider's side of the federation: its keys, its records, and the steps of a week in which it acts.

`provider_server.week` narrates the week; every method here is one step of it. A tenant's bad answer costs that
tenant its place in the round and nobody else anything.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from crypto.bundle import Bundle, CatalogueEntry
from crypto.errors import PharoahError
from crypto.ids import RoundId
from crypto.masking import Words
from crypto.messages import Directory, Registration, RegistrationRequest
from crypto.plan import HOURS_PER_WEEK, MaskTrustee, Plan
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey, open_signed, open_signed_by
from provider_server import leases as exposure, release as gate
from provider_server.learning import Findings, learn
from provider_server.leases import Lease, Slices
from provider_server.planning import PlanSettings, make_plan
from provider_server.publication import compose
from provider_server.rounds import Round
from provider_server.store import Store

logger = logging.getLogger(__name__)

Window = tuple[int, int]


class Provider:
    """Holds the provider's signing key and the secret of its context tokens, and shows neither."""

    def __init__(
        self,
        signing_key: SigningKey,
        context_secret: bytes,
        directory: Directory,
        settings: PlanSettings,
        store: Store,
        random_bytes: RandomBytes,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self._signing_key = signing_key
        self._context_secret = context_secret
        self._store = store
        self._random_bytes = random_bytes

    def close(self) -> None:
        """Closes the store."""
        self._store.close()

    def epoch(self, hour: float) -> int:
        """The epoch that an hour lies in; tokens change with it."""
        return int(hour // (HOURS_PER_WEEK * self.settings.weeks_per_epoch))

    def context_labels(self, hour: float, context: str, level: int) -> dict[str, str]:
        """The tokens that a tenant gets with a lease on this context at this build-up level."""
        return exposure.context_tokens(self._context_secret, self.epoch(hour), context, level)

    def record_leases(self, leases: Iterable[Lease]) -> None:
        """Keeps leases that were granted."""
        self._store.add_leases(leases)

    def leases(self, start_hour: float, end_hour: float) -> list[Lease]:
        """Leases that overlap [start_hour, end_hour)."""
        return self._store.leases(start_hour, end_hour)

    def registration_request(self, window: Window) -> bytes:
        """The question that opens a week: what runs on your leases that began in the window?"""
        return self._signing_key.sign(RegistrationRequest(self.epoch(window[0]), *window))

    def register(self, answer: bytes) -> None:
        """Keeps a tenant's tokens for its own leases; a bad answer is logged and dropped."""
        with _dropping_bad_answers():
            self._store.register(open_signed_by(Registration, answer, self.directory.verify_key))

    def plan(self, window: Window) -> Plan:
        """The plan for a window, with the rows that the epoch's leases support."""
        epoch_start = self.epoch(window[0]) * self.settings.weeks_per_epoch * HOURS_PER_WEEK
        leases = self._store.leases(epoch_start, window[1])
        return make_plan(self.settings, self.new_round_id(), window, leases, self.mask_trustees())

    def new_round_id(self) -> RoundId:
        """A fresh random name for a round."""
        return RoundId(self._random_bytes(RoundId.length))

    def mask_trustees(self) -> tuple[MaskTrustee, ...]:
        """The trustees that mask: the last three of the directory, so that of five, three sign and three mask."""
        return tuple(MaskTrustee(trustee.index, trustee.mask_key) for trustee in self.directory.trustees[-3:])

    def open_round(self, plan: Plan) -> Round:
        """Signs the plan and begins to collect."""
        return Round(plan, self._signing_key, self.directory)

    def receive(self, round_: Round, answer: bytes) -> None:
        """Takes a contribution; a bad one is logged and dropped."""
        with _dropping_bad_answers():
            round_.receive(answer)

    def release(self, round_: Round, noisy_sum: Words) -> gate.Release:
        """Passes the sum through the gate and keeps the release."""
        plan = round_.plan
        slices = Slices.of(
            self._store.leases(plan.start_hour, plan.end_hour), plan.start_hour, plan.end_hour, plan.band_edges_hours
        )
        made = gate.release(plan, noisy_sum, len(round_.contributors), exposure.expose(plan, slices))
        self._store.add_release(plan.round_id, gate.to_bytes(made))
        return made

    def releases(self) -> list[gate.Release]:
        """Everything that went through the gate, oldest first."""
        return [gate.from_bytes(data) for data in self._store.releases()]

    def learn(self, releases: Sequence[gate.Release]) -> Findings:
        """What `releases` say together, with this provider's own exposure."""
        leases = self._store.leases(releases[0].plan.start_hour, releases[-1].plan.end_hour)
        return learn(releases, leases)

    def publish_catalogue(self, catalogue: Sequence[CatalogueEntry]) -> bytes:
        """Bundle 0: a catalogue and no findings."""
        return self._publish(Bundle(0, 0, 0, tuple(catalogue), (), (), None))

    def publish(self, releases: Sequence[gate.Release], findings: Findings) -> bytes:
        """The next bundle, signed and kept."""
        newest = self._store.newest_bundle()
        number, before = (0, None) if newest is None else (newest[0] + 1, self._open(newest[1]))
        return self._publish(compose(number, before.catalogue if before else (), releases, findings))

    def newest_bundle(self) -> bytes | None:
        """The signed bytes of the newest bundle."""
        newest = self._store.newest_bundle()
        return None if newest is None else newest[1]

    def _publish(self, bundle: Bundle) -> bytes:
        signed = self._signing_key.sign(bundle)
        self._store.add_bundle(bundle.number, signed)
        return signed

    def _open(self, signed_bundle: bytes) -> Bundle:
        return open_signed(Bundle, signed_bundle, self._signing_key.public)


@contextmanager
def _dropping_bad_answers() -> Iterator[None]:
    """One tenant's refusal or fault must not stop the round of the others; it is logged by class and fact."""
    try:
        yield
    except PharoahError as error:
        logger.warning("an answer was dropped: %s: %s", type(error).__name__, error.what)
