"""Access to the page: the printed address is valid once, and gives a cookie to the browser that opens it.

A loopback address alone does not protect the page: other users and programs of the machine can reach it too.
"""

import hmac
import threading


class Key:
    """The secret of the printed address, which opens once, and that of the browser that it opened for."""

    def __init__(self, address_secret: str, browser_secret: str) -> None:
        self._address_secret = address_secret
        self._browser_secret = browser_secret
        self._used = False
        self._lock = threading.Lock()

    def exchange(self, shown: str) -> str | None:
        """The browser's secret for the address's, the first time; None for another one, and ever after."""
        with self._lock:
            if self._used or not hmac.compare_digest(shown.encode(), self._address_secret.encode()):
                return None
            self._used = True
            return self._browser_secret

    def fits(self, shown: str) -> bool:
        """Whether this is the browser's secret, which there is none of before the exchange."""
        return self._used and hmac.compare_digest(shown.encode(), self._browser_secret.encode())
