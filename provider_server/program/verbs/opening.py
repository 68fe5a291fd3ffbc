"""The store of a home, its newest release that counts an optional subject, and names of hardware groups."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from federation.protocol.subjects import Subject
from provider_server.fleet.release import Release
from provider_server.program.verbs.console import nothing_yet
from provider_server.rounds import home as homes
from provider_server.rounds.home import founded
from provider_server.rounds.store.store import Store

if TYPE_CHECKING:
    from provider_server.rounds.provider import Provider
    from provider_server.rounds.settings import ProviderSettings


@contextmanager
def opened(home: Path | None, database: str | None, *, create: bool = False) -> Iterator[Store]:
    """The provider's store, closed afterwards."""
    where = _where(home, database)
    if create and isinstance(where, Path):
        where.parent.mkdir(parents=True, exist_ok=True)
    if home and not (database or create or (home / "provider.db").exists()):
        founded(home)
    with closing(Store(where, create=create)) as store:
        yield store


def _where(home: Path | None, database: str | None) -> Path | str:
    """The named database, or else the one in the home."""
    if database:
        return database
    if home is None:
        raise typer.BadParameter("pass --home or --database")
    return home / "provider.db"


def newest_counting(subject: Subject, home: Path, database: str | None, lacking: str) -> tuple[Release, dict[str, str]]:
    """The release, and the names of contexts by token, where provider.toml has them; exit 3 saying what is lacking."""
    settings = homes.settings_of(home)
    with closing(homes.open_provider(home, database, settings)) as provider:
        counted = [one for one in provider.store.releases() if one.counts(subject)]
        if not counted:
            raise nothing_yet(lacking)
        newest = counted[-1]
        names = group_names(home, provider, settings, newest.plan.start_hour)
    return newest, names


def group_names(home: Path, provider: "Provider", settings: "ProviderSettings", hour: float) -> dict[str, str]:
    """What the provider calls hardware groups, by their tokens at an hour, with and without a wear level."""
    from provider_server.fleet.learning import hardware
    from provider_server.rounds.context_names import names_by_label, names_by_token

    kept = hardware.load(home)
    names = names_by_label(provider.store, settings, kept)
    return names_by_token(partial(provider.context_labels, hour), names, hardware.levels_of(kept))
