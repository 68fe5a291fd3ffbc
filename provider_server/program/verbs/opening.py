"""The store of a home, and its newest release that counts an optional subject."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import typer

from federation.protocol.subjects import Subject
from provider_server.fleet.release import Release
from provider_server.program.verbs.console import nothing_yet
from provider_server.rounds import home as homes
from provider_server.rounds.home import founded
from provider_server.rounds.store.store import Store


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
        told = {*settings.names.contexts, *settings.leases.contexts.values()}
        names = {provider.context_labels(newest.plan.start_hour, name, 0)["context"]: name for name in told}
    return newest, names
