"""Checks what `serve` needs, without starting it: settings, keys, certificate, database, ports."""

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from crypto.errors import PharoahError
from federation.base.addresses import listening_socket
from federation.base.clock import SECONDS_PER_HOUR, date
from federation.base.key_files import HomeError, read, read_key
from federation.base.visible import reason
from federation.transport.certificates import EXPIRES_SOON_D, days_left, ends
from provider_server.program.operations.overview import is_serving
from provider_server.rounds.home import open_provider, settings_of
from provider_server.rounds.looking import look
from provider_server.rounds.readiness import Lack, lacking
from provider_server.rounds.settings import ProviderSettings


@dataclass(frozen=True)
class Checked:
    """The result of one check. `lacking` is what keeps the next round from success, and `serve` from nothing."""

    name: str
    fine: bool
    text: str
    lacking: tuple[Lack, ...] = ()


@dataclass(frozen=True)
class Preflight:
    """All results, and whether `serve` can start."""

    version: int
    fine: bool
    checks: tuple[Checked, ...]


def looked_at(home: Path, database: str | None, now: datetime) -> Preflight:
    """Runs all checks."""
    checks = tuple(preflight(home, database, now))
    return Preflight(1, all(one.fine for one in checks), checks)


def preflight(home: Path, database: str | None, now: datetime) -> Iterator[Checked]:
    """The checks in the order in which `serve` depends on them. Starts nothing, and closes every port again."""
    settings: list[ProviderSettings] = []

    def read_settings() -> str:
        settings.append(settings_of(home))
        return f"rounds are held: {settings[0].rounds.every}"

    yield _checked("settings", read_settings)
    yield _checked("keys", lambda: _keys(home))
    yield _checked("certificate", lambda: _certificate(home, now))
    if not settings:
        return
    yield _checked("database", lambda: _database(home, database, settings[0]))
    yield _next_round(home, database, settings[0], now)
    if is_serving(home):
        yield Checked("ports", fine=False, text="a provider is already running on this home")
        return
    listen = settings[0].listen
    yield _checked("tenants_port", lambda: _port(listen.host, listen.tenants_port))
    yield _checked("online_port", lambda: _port(listen.host, listen.online_port))
    yield _checked("metrics_port", lambda: _port(listen.metrics_host, listen.metrics_port))


def _checked(name: str, look: Callable[[], str]) -> Checked:
    try:
        return Checked(name, fine=True, text=look())
    except PharoahError as error:
        return Checked(name, fine=False, text=": ".join(filter(None, (error.what, error.hint))))
    except OSError as error:
        return Checked(name, fine=False, text=reason(error))


def _keys(home: Path) -> str:
    for name in ("signing.key", "context.key"):
        read_key(home / name)
        if (home / name).stat().st_mode & 0o077:
            raise HomeError(f"other accounts can read {name}", hint=f"chmod 600 {name}")
    return "signing.key and context.key"


def _certificate(home: Path, now: datetime) -> str:
    certificate = read(home / "tls.pem")
    end = ends(certificate)
    if days_left(certificate, now) < EXPIRES_SOON_D:
        raise HomeError(f"tls.pem expires on {end:%Y-%m-%d}", hint="run `pharoah-provider renew-certificate`")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(home / "tls.pem", home / "tls.key")
    except ssl.SSLError as error:
        raise HomeError("tls.key does not match tls.pem", hint="restore both from one backup") from error
    return f"tls.pem is valid until {end:%Y-%m-%d}"


def _database(home: Path, database: str | None, settings: ProviderSettings) -> str:
    with closing(open_provider(home, database, settings)) as provider:
        members, trustees = len(provider.directory.members), len(provider.directory.trustees)
    return f"tenants {members}, trustees {trustees}"


def _next_round(home: Path, database: str | None, settings: ProviderSettings, now: datetime) -> Checked:
    lacks: list[Lack] = []

    def look_at() -> str:
        with closing(open_provider(home, database, settings)) as provider:
            known = look(home, provider.store, provider.directory, settings, now.timestamp() / SECONDS_PER_HOUR)
        lacks.extend(lack for lack in lacking(known) if lack.urgent)
        return "; ".join(map(str, lacks)) or f"due on {date(known.due_hour)} UTC"

    return replace(_checked("next_round", look_at), lacking=tuple(lacks))


def _port(host: str, port: int) -> str:
    try:
        listening_socket(host, port).close()
    except OSError as error:
        cause = os.strerror(error.errno).lower() if error.errno else str(error)
        raise HomeError(f"{cause}: {host}:{port}", hint="see [listen] in provider.toml") from error
    return f"{host}:{port} is free" if port else "any free port"
