"""What the webhook does with what it knows."""

from enum import StrEnum


class AdmissionMode(StrEnum):
    """Prefer: other nodes where there are any. Require: no bad ones. Refuse: a pod that selects a bad one is denied."""

    OFF = "off"
    PREFER = "prefer"
    REQUIRE = "require"
    REFUSE = "refuse"
