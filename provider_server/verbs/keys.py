"""The verb that prints the keys by which claims of tenants are verified: `keys`."""

from contextlib import closing

from federation.runtime.screen import show_json
from provider_server.verbs.console import Database, Home, failing, required


def keys(home: Home = None, database: Database = None) -> None:
    """Print the keys by which a tenant's claim is verified, as JSON: the provider's, and those of all trustees."""
    from federation.protocol.anchors import verification_keys
    from provider_server import home as homes

    place = required(home)
    with failing(), closing(homes.open_provider(place, database, homes.settings_of(place))) as provider:
        show_json(verification_keys(provider.chain))
