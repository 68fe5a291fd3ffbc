"""Runs a trustee: opens its home and serves it until stopped."""

import math
import os
import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from federation.base.clock import now_hour
from federation.base.key_files import read
from federation.base.service_manager import announced
from federation.base.settings import BadSettings
from federation.transport.certificates import WARN_EVERY_S, warn_of_end
from federation.transport.introductions import parties
from trustee import home as trustee_home
from trustee.server import serve_trustee
from trustee.settings import TrusteeSettings
from trustee.trustee import TrusteeLimits

SETTLE_EVERY_S = 60.0  # so long old keys stay, once the directory shows new ones


def serve(home: Path, settings: TrusteeSettings, stop: threading.Event) -> None:
    """Answers tenants and the provider until `stop` is set."""
    own = settings.trustee
    limits = TrusteeLimits(own.evaluations_per_epoch, own.evaluations_floor, own.cohort_minimum, now_hour)
    certificate, key = read(home / trustee_home.TLS_CERTIFICATE), read(home / trustee_home.TLS_KEY)
    with closing(trustee_home.open_trustee(home, os.urandom, limits)) as trustee:
        known = parties(lambda: trustee.chain.directory)
        try:
            server = serve_trustee(trustee, own.listen, certificate, key, known=known)
        except OSError as error:
            raise BadSettings(
                f"[trustee] listen: {error}", hint="check that no other program uses this port"
            ) from error
        with server, announced(trustee.rounds):
            warn_next_s = -math.inf
            while True:
                trustee_home.settle(home, trustee.chain.directory)
                trustee_home.erase_spent(home, trustee)
                if time.monotonic() >= warn_next_s:
                    warn_of_end(certificate, datetime.now(UTC))
                    warn_next_s = time.monotonic() + WARN_EVERY_S
                if stop.wait(SETTLE_EVERY_S):
                    break
