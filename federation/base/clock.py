"""The time of plans, leases and hints: hours since 1970, by this machine's clock."""

import time

SECONDS_PER_HOUR = 3600.0


def now_hour() -> float:
    """Hours since 1970, fractions too."""
    return time.time() / SECONDS_PER_HOUR
