"""The provider's online service: the directory for everybody, a tenant's own leases for itself, the newest bundle.

The directory and the bundle are public and signed. Leases go to the tenant that signed the request and to nobody else.
"""

from crypto.errors import Refusal
from crypto.services import PROVIDER, ProviderMethod
from provider_server.provider import Provider
from transport.server import Method, Server, serve


class NothingPublished(Refusal):
    """There is no bundle yet."""

    default_hint = "ask again after the first round"


def serve_online(provider: Provider, address: str, certificate_pem: bytes, key_pem: bytes) -> Server:
    """Serves at host:port until the server is stopped."""

    def directory(_request: bytes) -> bytes:
        provider.refresh()
        return provider.directory_update()

    def bundle(_request: bytes) -> bytes:
        newest = provider.newest_bundle()
        if newest is None:
            raise NothingPublished("no bundle was published yet")
        return newest

    methods: dict[str, Method] = {
        ProviderMethod.DIRECTORY: directory,
        ProviderMethod.LEASES: provider.grants,
        ProviderMethod.BUNDLE: bundle,
    }
    return serve(PROVIDER, methods, address, certificate_pem, key_pem)
