"""What a trustee sets: trustee.toml, every key of it, with its default."""

from typing import Annotated

import msgspec


class TrusteeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a trustee grants, and where it listens; the address that others use stands in its card."""

    listen: str = "0.0.0.0:7100"
    evaluations_per_epoch: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    evaluations_floor: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    cohort_minimum: Annotated[int, msgspec.Meta(ge=2)] = 2


class TrusteeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of trustee.toml."""

    trustee: TrusteeTable = TrusteeTable()
