"""Milliseconds of CPU to decode a directory of 1,000 members and a contribution of 100,000 cells, canonical form too.

    python benchmarks/codec.py      one JSON object on stdout

Beside them, in the same run: msgpack alone, which builds untyped lists, checks nothing and knows of no signature. The
codec before this one read value by value in Python: 14.8 ms and .135 ms for the same messages on the machine where this
one takes 1.43 ms and .0037 ms.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

import msgpack

from crypto.codec import Message, decode, encode
from crypto.ids import Digest, EncodedElement, Nonce, RoundId
from crypto.masking import MaskKey
from crypto.signing import SigningKey
from federation.protocol.directory import NOTHING_BEFORE, DirectoryEntry, Member
from federation.protocol.round_messages import Contribution, ContributionHeader
from federation.protocol.seats import TrusteeRecord

MEMBERS, CELLS, RUNS = 1_000, 100_000, 60


def a_directory() -> DirectoryEntry:
    """As it is founded."""
    signing, mask, share = SigningKey.generate(os.urandom), MaskKey.generate(os.urandom), EncodedElement(os.urandom(32))
    members = [Member.of(SigningKey.generate(os.urandom), MaskKey.generate(os.urandom), 0) for _ in range(MEMBERS)]
    trustee = TrusteeRecord.of(1, signing, mask, share, made_hour=0)
    return DirectoryEntry(0, NOTHING_BEFORE, signing.public, 1, share, (trustee,), 52, tuple(members), ())


def a_contribution() -> Contribution:
    """As it travels; its signature is not looked at here."""
    key = SigningKey.generate(os.urandom)
    tenant = Member.of(key, MaskKey.generate(os.urandom), 0).tenant
    named = Digest(bytes(32))
    header = ContributionHeader(tenant, RoundId(bytes(16)), named, 0, Nonce(os.urandom(16)), named)
    return Contribution(key.sign(header), memoryview(os.urandom(8 * CELLS)))


def fastest_ms(work: Callable[[], Any]) -> float:
    """Of many runs, in CPU time."""
    taken = []
    for _ in range(RUNS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return 1e3 * min(taken)


def figure(message: Message) -> dict[str, float]:
    """Decoding, and the peer beside it."""
    data = encode(message)
    return {
        "bytes": len(data),
        "decode_ms": fastest_ms(lambda: decode(type(message), data)),
        "msgpack_alone_ms": fastest_ms(lambda: msgpack.unpackb(data, raw=False)),
    }


def main() -> None:
    """Prints the figures."""
    print(json.dumps({"directory": figure(a_directory()), "contribution": figure(a_contribution())}))


if __name__ == "__main__":
    main()
