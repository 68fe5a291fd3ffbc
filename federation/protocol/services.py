"""The methods of the online services, and the encoding of their errors.

- A trustee and the provider's online service answer calls under the paths below, bytes in, bytes out; only `Watch`
  answers with a stream. `CEILINGS` has the largest request of each, in bytes. Methods of `PUBLIC` need no caller
  identity.
- An error travels as a status, which names its family, and three lines: class, fact, hint. `told` encodes it and
  `heard` decodes it. Classes of `crypto.errors` are preserved; an unknown class becomes a PeerFault, and another
  subclass its nearest ancestor in the table.
- Of a bug only the fact that there was one leaves. Decoded texts are printable, short and on one line.
- Errors of a trustee and of the provider quote no data of tenants. A tenant's could, so a tenant answers no calls here;
  its replies through Flower follow the stricter rules of `federation.protocol.queries`.

    >>> heard(told(errors.QuotaExceeded("6 evaluations, 5 are granted")).message)
    QuotaExceeded('6 evaluations, 5 are granted')
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from crypto import errors
from crypto.errors import PeerFault, PharoahError
from federation.protocol.queries import Fault

TRUSTEE = "pharoah.Trustee"
PROVIDER = "pharoah.Provider"
MAX_FACT_CHARACTERS = 600
MAX_HINT_CHARACTERS = 200


class TrusteeMethod(StrEnum):
    """What a trustee is asked, by the path of the call."""

    FOLLOW = f"/{TRUSTEE}/Follow"
    EVALUATE = f"/{TRUSTEE}/Evaluate"
    ENDORSE = f"/{TRUSTEE}/Endorse"
    UNMASK = f"/{TRUSTEE}/Unmask"
    ANCHOR = f"/{TRUSTEE}/Anchor"


class ProviderMethod(StrEnum):
    """What the provider's online service is asked, by the path of the call."""

    DIRECTORY = f"/{PROVIDER}/Directory"
    LEASES = f"/{PROVIDER}/Leases"
    BUNDLE = f"/{PROVIDER}/Bundle"
    CATALOGUE = f"/{PROVIDER}/Catalogue"
    SIGN_IN = f"/{PROVIDER}/SignIn"
    CHECK = f"/{PROVIDER}/Check"
    WATCH = f"/{PROVIDER}/Watch"
    OUTCOME = f"/{PROVIDER}/Outcome"
    PASSES = f"/{PROVIDER}/Passes"
    ANONYMOUS_CHECK = f"/{PROVIDER}/AnonymousCheck"


MIB = 2**20
SMALL = 65_536
# What the largest honest question needs: 10,000 members of 350 bytes in a directory; for an endorsement the plan, and
# what each member signs that it owns; for unmasking the same, and the endorsements.
CEILINGS: Mapping[str, int] = MappingProxyType(
    {
        TrusteeMethod.FOLLOW: 8 * MIB,
        TrusteeMethod.EVALUATE: SMALL,
        TrusteeMethod.ANCHOR: SMALL,
        TrusteeMethod.ENDORSE: 8 * MIB,
        TrusteeMethod.UNMASK: 8 * MIB + SMALL,
        **dict.fromkeys(ProviderMethod, SMALL),
        ProviderMethod.ANONYMOUS_CHECK: 1024,  # a stranger's, and always of one length
    }
)
PUBLIC = frozenset(
    {ProviderMethod.DIRECTORY, ProviderMethod.BUNDLE, ProviderMethod.CATALOGUE, ProviderMethod.ANONYMOUS_CHECK}
)


class Status(StrEnum):
    """The gRPC status of each family, by gRPC's own name. gRPC itself says UNAVAILABLE and the like, none of these."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    ABORTED = "ABORTED"
    INTERNAL = "INTERNAL"


STATUS = MappingProxyType(
    {
        Fault.DECODE: Status.INVALID_ARGUMENT,
        Fault.PEER: Status.FAILED_PRECONDITION,
        Fault.REFUSAL: Status.PERMISSION_DENIED,
        Fault.OTHER: Status.ABORTED,
        Fault.BUG: Status.INTERNAL,
    }
)
CLASSES = MappingProxyType(
    {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, PharoahError) and kind.__module__ == errors.__name__
    }
)


@dataclass(frozen=True)
class Told:
    """An error as it crosses."""

    status: Status
    message: str


BUG = Told(STATUS[Fault.BUG], "")


def told(error: PharoahError) -> Told:
    """What a caller hears of `error`."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind in CLASSES.values())
    lines = (name, one_line(error.what, MAX_FACT_CHARACTERS), one_line(error.hint, MAX_HINT_CHARACTERS))
    return Told(STATUS[Fault.of(error)], "\n".join(lines))


def heard(message: str) -> PharoahError:
    """The error that a peer told, to be raised; PeerFault for a class that nobody here knows."""
    name, fact, hint = (*message.split("\n", 2), "", "")[:3]
    what, remedy = one_line(fact, MAX_FACT_CHARACTERS), one_line(hint, MAX_HINT_CHARACTERS)
    kind = CLASSES.get(name)
    if kind is None:
        return PeerFault(
            f"the peer reports {one_line(name, MAX_HINT_CHARACTERS)!r}, which is no error of this version: {what}",
            hint=remedy or "the peer speaks another version; compare the two",
        )
    return kind(what, hint=remedy)


def one_line(text: str, limit: int) -> str:
    """`text` in `limit` characters at most, without line breaks or anything that a terminal would obey."""
    printable = "".join(character if character.isprintable() else " " for character in text[: 2 * limit])
    line = " ".join(printable.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
