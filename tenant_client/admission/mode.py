"""What the webhook does with what it knows."""

from enum import StrEnum


class AdmissionMode(StrEnum):
    """Off: nothing. Prefer: other nodes where there are any. Require: other nodes only. Refuse: as require, and a pod
    that selects such nodes itself is denied.
    """

    OFF = "off"
    PREFER = "prefer"
    REQUIRE = "require"
    REFUSE = "refuse"
