"""The settings of a trustee: all keys of trustee.toml with their defaults."""

from typing import Annotated

import msgspec


class TrusteeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of a trustee and its listening address; the address that others use is on its card."""

    listen: str = "0.0.0.0:7100"
    evaluations_per_epoch: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    evaluations_floor: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    cohort_minimum: Annotated[int, msgspec.Meta(ge=2)] = 2


class TrusteeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of trustee.toml."""

    trustee: TrusteeTable = TrusteeTable()
