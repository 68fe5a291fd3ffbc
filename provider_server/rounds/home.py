"""The provider's home directory: keys, certificate, settings and, unless a URL names another, the store.

    provider.toml            settings, see `provider_server.rounds.settings`; provider.schema.json is for editors
    signing.key context.key  32 bytes each, mode 0600
    tls.pem tls.key          the certificate, and its key, mode 0600; `renew_certificate` replaces both
    benchmarks.jsonl         benchmark jobs that it ran itself, see `provider_server.fleet.learning.benchmark_jobs`
    provider.db              the store; provider.db.lock: held by whoever holds a round
    superlink.db             Flower's own state, with the nodes that may connect
    control.sock             while the provider runs: where its command line reaches it, mode 0600

The directory itself has mode 0700. Without signing.key the federation cannot go on: keep a copy of the home that only
its owner can read.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from crypto.ids import Token
from crypto.ristretto import RandomBytes
from crypto.signing import SigningKey
from federation.base.clock import SECONDS_PER_HOUR
from federation.base.key_files import HomeError, new_key, read, read_key, replace_secret, write_secret
from federation.base.plugin_verbs import plug_ins
from federation.base.settings import BadSettings, load
from federation.base.settings_schema import write_schema
from federation.base.visible import short
from federation.protocol.versions import OLDEST
from provider_server.fleet.leases import Lease, context_links, context_tokens
from provider_server.rounds.lease_book import LeaseBook
from provider_server.rounds.settings import ProviderSettings
from provider_server.rounds.store.store import Store, StoreNotEmpty

if TYPE_CHECKING:  # what learns takes a second to import, and rounds a tenth: verbs that record leases do without
    from federation.protocol.ceremony import Committee
    from federation.protocol.life_table import LifeTable
    from federation.protocol.plan import Plan
    from federation.transport.certificates import Certificate
    from provider_server.fleet.learning.benchmark_jobs import BenchmarkJob
    from provider_server.fleet.learning.findings import Findings
    from provider_server.fleet.learning.kin import Features
    from provider_server.fleet.own_failures import OwnRecord
    from provider_server.fleet.parts import FabricParts
    from provider_server.fleet.release import Release
    from provider_server.rounds.provider import Provider
    from provider_server.rounds.publisher import Publisher

CONTROL = "control.sock"
Book = TypeVar("Book", bound=LeaseBook)
SAMPLE = Path(__file__).with_name("provider.toml")


def create(home: Path, hosts: Sequence[str], random_bytes: RandomBytes, now: datetime) -> None:
    """Makes a home: fresh keys, a certificate for `hosts`, the sample settings; FileExistsError if it has keys."""
    from federation.transport.certificates import issue

    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    new_key(home / "signing.key", random_bytes)
    new_key(home / "context.key", random_bytes)
    certificate = issue(SigningKey(read_key(home / "signing.key")), hosts, now)
    write_secret(home / "tls.key", certificate.key_pem)
    (home / "tls.pem").write_bytes(certificate.certificate_pem)
    if not (home / "provider.toml").exists():
        (home / "provider.toml").write_text(SAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    complete_settings(home)


def complete_settings(home: Path) -> None:
    """Lets editors complete provider.toml as this version reads it; of plug-ins they learn which sections there are."""
    write_schema(home, ProviderSettings, SAMPLE, plug_ins("pharoah-provider"))


def renew_certificate(home: Path, hosts: Sequence[str], now: datetime, lifetime_d: int) -> "Certificate":
    """Replaces TLS key and certificate, for `hosts` or, without any, for the hosts of the old certificate."""
    from federation.transport.certificates import hosts_of, issue

    names = hosts or hosts_of(read(home / "tls.pem"))
    certificate = issue(SigningKey(read_key(home / "signing.key")), names, now, lifetime_d)
    replace_secret(home / "tls.key", certificate.key_pem)
    replace_secret(home / "tls.pem", certificate.certificate_pem)
    return certificate


def found(home: Path, database: str | None, committee: "Committee") -> None:
    """Begins the directory of a new federation in a new store."""
    signing_key = SigningKey(read_key(home / "signing.key"))
    settings = settings_of(home)
    store = Store(database or home / "provider.db")
    try:
        if store.entries():
            raise StoreNotEmpty("the database already contains the directory of a federation")
        entry = committee.founding_entry(signing_key.public, settings.plan.weeks_per_epoch, ())
        store.add_entry(0, signing_key.sign(entry, OLDEST))
    finally:
        store.close()


def founded(home: Path) -> None:
    """HomeError where no provider was founded."""
    if not any((home / name).exists() for name in ("signing.key", "provider.toml", "provider.db")):
        raise HomeError(
            f"no provider in this home: {short(home)}",
            hint="pass --home, or found a federation with `pharoah-provider init`",
        )


def settings_of(home: Path) -> ProviderSettings:
    """The settings of a home, overridden by the environment; sections of plug-ins are theirs to read."""
    return load(ProviderSettings, home / "provider.toml", os.environ, lambda: plug_ins("pharoah-provider"))


def settings_to_watch(home: Path) -> ProviderSettings:
    """The settings of a folder that needs no federation; HomeError where it has none."""
    if not (home / "provider.toml").exists():
        raise HomeError(
            f"no provider.toml in {short(home)}", hint="write one: [telemetry] says where the nodes' telemetry is"
        )
    return settings_of(home)


def founded_hour(home: Path) -> float:
    """When the home was founded, in hours since 1970: the modification time of signing.key, which is written once."""
    return (home / "signing.key").stat().st_mtime / SECONDS_PER_HOUR


def open_provider(home: Path, database: str | None, settings: ProviderSettings) -> "Provider":
    """The provider that lives in `home`; HomeError, BadDatabase and BadSettings name what is missing or wrong."""
    from provider_server.rounds.provider import Provider

    def provider(key: SigningKey, context_key: bytes, store: Store, parts: "FabricParts | None") -> Provider:
        return Provider(key, context_key, settings.plan.settings, store, os.urandom, parts=parts)

    return _opened(home, database, settings, provider)


def open_leases(home: Path, database: str | None, settings: ProviderSettings) -> LeaseBook:
    """The leases of that provider, for verbs that only record them; the same errors."""

    def leases(key: SigningKey, context_key: bytes, store: Store, parts: "FabricParts | None") -> LeaseBook:
        return LeaseBook(key, context_key, settings.plan.weeks_per_epoch, store, parts=parts)

    return _opened(home, database, settings, leases)


def _opened(
    home: Path,
    database: str | None,
    settings: ProviderSettings,
    of: "Callable[[SigningKey, bytes, Store, FabricParts | None], Book]",
) -> Book:
    founded(home)
    signing_key, context_key = SigningKey(read_key(home / "signing.key")), read_key(home / "context.key")
    with ExitStack() as until_open:
        store = until_open.enter_context(closing(Store(database or home / "provider.db", create=False)))
        if not store.entries():
            raise HomeError("the database contains no directory", hint="found a federation: `pharoah-provider init`")
        try:
            parts = fabric_parts(settings)
            book = of(signing_key, context_key, store, parts)
        except ValueError as error:
            raise BadSettings(f"[plan] weeks_per_epoch: {error}", hint="restore its former value") from error
        until_open.pop_all()
    return book


def fabric_parts(settings: ProviderSettings) -> "FabricParts | None":
    """The parts that tenants vote for; BadSettings where votes are asked for and no file names a leaf."""
    if not settings.plan.votes_share:
        return None
    from provider_server.fleet.fabric_files import load_fabric
    from provider_server.fleet.parts import FabricParts
    from provider_server.fleet.telemetry.inventory import Inventory, load as load_inventory

    told = settings.telemetry
    inventory = load_inventory(Path(told.inventory)) if told.inventory else Inventory()
    parts = FabricParts.of(load_fabric([Path(name) for name in told.fabric], inventory))
    if not parts.leaves:
        raise BadSettings(
            "[plan] votes_share: no file names the switch of any node",
            hint="name files of cables by `fabric` in [telemetry], or an inventory with switches: docs/fabric.md",
        )
    return parts


def open_publisher(home: Path, store: Store) -> "Publisher":
    """The publisher that lives in `home`, on the store of its provider."""
    from federation.protocol.bundle import ContextName
    from provider_server.fleet.learning import hardware
    from provider_server.fleet.learning.findings import learn
    from provider_server.fleet.learning.links import agreed
    from provider_server.rounds.publisher import Publisher

    settings = settings_of(home)
    context_key, public = read_key(home / "context.key"), settings.names.contexts

    def named(epoch: int) -> list[ContextName]:
        tokens = {name: context_tokens(context_key, epoch, name, 0)["context"] for name in public}
        return [ContextName(Token.fromhex(tokens[name]), told) for name, told in sorted(public.items())]

    def linked(before: int, now: int) -> dict[str, str]:
        kept = hardware.load(home)
        own = (hardware.label_of(one.number) for one in kept.contexts.contexts) if kept else ()
        return context_links(context_key, before, now, {*public, *own}, hardware.levels_of(kept))

    def learner(releases: "Sequence[Release]", leases: Sequence[Lease], own: "OwnRecord | None") -> "Findings":
        plan = releases[-1].plan
        trials = _trials(home, context_key, plan, agreed(store.links(plan.epoch), plan.owners_minimum))
        return learn(releases, leases, own, _features(home, context_key, plan.epoch), trials)

    return Publisher(store, SigningKey(read_key(home / "signing.key")), learner, named, linked)


def _trials(home: Path, context_key: bytes, plan: "Plan", workloads: Mapping[str, str]) -> "LifeTable | None":
    """What the provider's own benchmark jobs say, by the tokens of an epoch; `workloads` has those of older epochs."""
    from provider_server.fleet.learning import benchmark_jobs, hardware

    if not (home / benchmark_jobs.FILE).exists():
        return None
    jobs = benchmark_jobs.read(home / benchmark_jobs.FILE)

    def by_token(job: "BenchmarkJob") -> "BenchmarkJob":
        name = hardware.label_of(job.context) if isinstance(job.context, int) else job.context
        context = context_tokens(context_key, plan.epoch, name, 0)["context"]
        return msgspec.structs.replace(job, context=context, archetype=workloads.get(job.archetype, job.archetype))

    return benchmark_jobs.evidence([by_token(job) for job in jobs])


def _features(home: Path, context_key: bytes, epoch: int) -> "Features":
    """Features of the contexts that telemetry knows, by their tokens in an epoch."""
    from provider_server.fleet.learning import hardware
    from provider_server.fleet.learning.kin import features_of

    known = hardware.load(home)
    of = features_of(known.contexts) if known else {}
    return {context_tokens(context_key, epoch, hardware.label_of(one), 0)["context"]: own for one, own in of.items()}


def invitation(home: Path, provider: "Provider", settings: ProviderSettings) -> bytes:
    """What tenants and trustees need to join, signed."""
    from federation.protocol.invitation import Invitation

    host = settings.listen.advertised_host
    invited = Invitation(
        provider.directory.provider,
        provider.members.chain.entries,
        f"{host}:{settings.listen.tenants_port}",
        f"{host}:{settings.listen.online_port}",
    )
    return SigningKey(read_key(home / "signing.key")).sign(invited, OLDEST)
