"""The findings that operators see: of tenants' sums and of what the provider saw itself. Not for tenants.

    Publisher ─┬─ bundle: signed, sent to tenants
               └─ OperatorsSet: stored beside it under its number, read by the provider's page and `findings explain`

It has the entries of a bundle, so that pages read both alike. It is no message: nothing signs it, its bytes begin with
a mark that no decoder of messages takes, and no answer to a tenant reads its table.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from crypto.codec import decode, encode
from crypto.errors import DecodeError
from federation.protocol.bundle import Bundle

MARK = b"not for tenants\n"


@dataclass(frozen=True)
class OperatorsSet:
    """What stands beside the bundle of that number."""

    findings: Bundle

    @classmethod
    def beside(cls, bundle: Bundle, findings: Bundle) -> "OperatorsSet":
        """`findings` under the bundle's number, without what only tenants need."""
        return cls(replace(findings, number=bundle.number, catalogue=(), rules=bundle.rules, evidence=None))

    def to_bytes(self) -> bytes:
        """As it is stored."""
        return MARK + encode(self.findings)

    @classmethod
    def from_bytes(cls, data: bytes) -> "OperatorsSet":
        """DecodeError for anything else than `to_bytes` gave."""
        if not data.startswith(MARK):
            raise DecodeError("findings for operators lack their mark", hint="restore the store from a copy")
        return cls(decode(Bundle, data[len(MARK) :]))


def opened(stored: Mapping[int, bytes]) -> dict[int, Bundle]:
    """The stored sets, by the number of the bundle that each stands beside."""
    return {number: OperatorsSet.from_bytes(data).findings for number, data in stored.items()}


def as_operators_see(bundles: Iterable[Bundle], stored: Mapping[int, Bundle]) -> list[Bundle]:
    """For each bundle, oldest first, the set beside it; where none is stored, the bundle itself.

    A bundle that was published for its catalogue says of the same weeks what the one before said.
    """
    found: list[Bundle] = []
    before: Bundle | None = None
    for bundle in bundles:
        if bundle.number in stored:
            found.append(stored[bundle.number])
        elif before and (before.epoch, before.until_hour) == (bundle.epoch, bundle.until_hour):
            found.append(replace(found[-1], number=bundle.number))
        else:
            found.append(bundle)
        before = bundle
    return found
