"""What the webhook does with what it knows."""

from enum import StrEnum


class AdmissionMode(StrEnum):
    """Prefer: other nodes where there are any. Require: none but those. Refuse: a pod that selects bad ones is denied."""

    OFF = "off"
    PREFER = "prefer"
    REQUIRE = "require"
    REFUSE = "refuse"
