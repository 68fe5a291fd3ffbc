"""`replace`, for messages as well as for dataclasses."""

import dataclasses
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def replace(of: T, **changes: Any) -> T:
    """`of` with other values in the fields that are named."""
    if isinstance(of, msgspec.Struct):
        return msgspec.structs.replace(of, **changes)
    changed: T = dataclasses.replace(of, **changes)  # type: ignore[type-var]
    return changed
