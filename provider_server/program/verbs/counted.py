"""The newest release that counts an optional subject, for the verbs that show one by context."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from federation.protocol.subjects import Subject
from provider_server.program.verbs.console import failing, nothing_yet

if TYPE_CHECKING:
    from provider_server.fleet.release import Release


def newest_counting(
    subject: Subject, home: Path, database: str | None, lacking: str
) -> tuple["Release", dict[str, str]]:
    """The release, and the names of contexts by token, where provider.toml has them; exit 3 saying what is lacking."""
    from provider_server.rounds import home as homes

    with failing():
        settings = homes.settings_of(home)
        with closing(homes.open_provider(home, database, settings)) as provider:
            counted = [one for one in provider.store.releases() if one.counts(subject)]
            if not counted:
                raise nothing_yet(lacking)
            newest = counted[-1]
            told = {*settings.names.contexts, *settings.leases.contexts.values()}
            names = {provider.context_labels(newest.plan.start_hour, name, 0)["context"]: name for name in told}
    return newest, names
