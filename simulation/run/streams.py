"""Masks where nobody has a directory: a few clients, numbered, and the trustees of one experiment."""

from collections.abc import Sequence

from crypto.ids import Digest, MaskPublicKey, Nonce, RoundId, TenantId
from crypto.masking import MaskStream


def streams(
    round_id: RoundId, plan: Digest, clients: Sequence[tuple[int, MaskPublicKey]], trustees: Sequence[MaskPublicKey]
) -> list[list[MaskStream]]:
    """By trustee, the masks that it shares with each client, which is a number and a key."""
    return [
        [
            MaskStream(round_id, plan, TenantId(number.to_bytes(TenantId.length)), key, Nonce(round_id), index, trustee)
            for number, key in clients
        ]
        for index, trustee in enumerate(trustees, start=1)
    ]
