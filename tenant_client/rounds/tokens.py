"""Gets the tokens of a workload from the trustees: the tenant's side of the threshold VOPRF.

- The tenant blinds its inputs, asks as many trustees as the key needs, verifies each proof, combines and unblinds.
- The provider has no share, and no trustee sees an input. A wrong answer is logged with the trustee's number and
  replaced by another trustee's.
- Tokens are cached for their epoch, so that a workload uses the quota once, not once per job.
- Requests are padded to the size of a whole workload, so that their size does not reveal the cache.
- Every request is recorded before it is sent, answered or not.
"""

import hashlib
import logging
from collections.abc import Sequence
from typing import Protocol

import msgpack

from crypto import threshold, voprf
from crypto.codec import decode
from crypto.errors import DecodeError, PeerFault, PharoahError
from crypto.ids import MAX_BATCH, EncodedElement, Token
from crypto.ristretto import Element, RandomBytes
from crypto.signing import SigningKey, tenant_id
from federation.base.sqlite import Connection, transaction
from federation.protocol.directory import Directory
from federation.protocol.round_messages import EvaluationRequest, EvaluationResponse, Ladder
from federation.protocol.versions import OLDEST
from tenant_client.doctor.workload.descriptor import Rungs

logger = logging.getLogger(__name__)

_RUNG_LABEL = "pharoah/rung/1"
_FILL_BYTES = 32


class TrusteeService(Protocol):
    """What tenants need of a trustee, in process or over a network."""

    @property
    def index(self) -> int:
        """Its number in the directory, from 1."""

    def evaluate(self, request: bytes) -> bytes:
        """Signed EvaluationRequest in, EvaluationResponse out."""


class TokenSource:
    """Evaluates rungs under the trustees' key, with a cache in the tenant's database."""

    def __init__(
        self,
        directory: Directory,
        trustees: Sequence[TrusteeService],
        signing_key: SigningKey,
        connection: Connection,
        random_bytes: RandomBytes,
    ) -> None:
        self._directory = directory
        self._trustees = trustees
        self._signing_key = signing_key
        self._connection = connection
        self._random_bytes = random_bytes

    def follow(self, directory: Directory) -> None:
        """Verifies answers by the share keys of a newer directory from now on."""
        self._directory = directory

    def ladder(self, rungs: Rungs, epoch: int) -> Ladder:
        """The tokens of a workload in `epoch`; asks the trustees only for what is not cached."""
        inputs = [_voprf_input(epoch, rung) for rung in rungs.inputs]
        cached = self._cached(epoch)
        missing = [value for value in dict.fromkeys(inputs) if _name(value) not in cached]
        size = min(len(inputs), MAX_BATCH)
        for at in range(0, len(missing), size):
            cached.update(self._evaluate(missing[at : at + size], epoch, size))
        family, archetype, subarchetype, exact = (cached[_name(value)] for value in inputs)
        return Ladder(family, archetype, subarchetype, exact)

    def known_ladder(self, rungs: Rungs, epoch: int) -> Ladder | None:
        """The tokens of a workload in `epoch` if they are cached; asks nobody."""
        names, cached = [_name(_voprf_input(epoch, rung)) for rung in rungs.inputs], self._cached(epoch)
        return Ladder(*(cached[name] for name in names)) if cached.keys() >= set(names) else None

    def evaluations(self) -> dict[tuple[int, int], int]:
        """How many blinded elements left, answered or not, by epoch and trustee."""
        rows = self._connection.execute("SELECT epoch, trustee, elements FROM asked ORDER BY epoch, trustee")
        return {(epoch, trustee): elements for epoch, trustee, elements in rows}

    def _evaluate(self, inputs: Sequence[bytes], epoch: int, size: int) -> dict[bytes, Token]:
        """The tokens of `inputs`, in a request of `size` elements: how many were cached is nobody's business."""
        fill = [self._random_bytes(_FILL_BYTES) for _ in range(size - len(inputs))]
        blinding = voprf.blind([*inputs, *fill], self._random_bytes)
        evaluated = self._combined(epoch, blinding)
        tokens = {
            _name(value): Token(output[: Token.length])
            for value, output in zip(inputs, voprf.finalize(blinding, evaluated), strict=False)
        }
        with transaction(self._connection):
            rows = [(epoch, name, bytes(token)) for name, token in tokens.items()]
            self._connection.executemany("INSERT OR IGNORE INTO tokens VALUES (?, ?, ?)", rows)
        return tokens

    def _combined(self, epoch: int, blinding: voprf.Blinding) -> voprf.Elements:
        """Asks trustee after trustee until enough of them gave a valid answer; a wrong one is replaced."""
        key, own = _group_key(self._directory), tenant_id(self._signing_key.public)
        elements = tuple(EncodedElement(element.encoded) for element in blinding.elements)
        answers: dict[int, voprf.Evaluation] = {}
        faults: list[str] = []
        for trustee in self._trustees:
            self._note(epoch, trustee.index, len(elements))
            request = self._signing_key.sign(EvaluationRequest(own, trustee.index, epoch, elements), OLDEST)
            try:
                answers[trustee.index] = _evaluation(trustee.index, trustee.evaluate(request))
                if len(answers) == key.threshold:
                    return threshold.combine_evaluations(key, blinding.elements, answers)
            except threshold.TrusteeFault as fault:
                answers.pop(fault.trustee)
                faults.append(_named(fault.trustee, fault))
            except PharoahError as fault:
                faults.append(_named(trustee.index, fault))
        raise PeerFault(
            f"only {len(answers)} of {key.threshold} trustees evaluated the tokens ({'; '.join(faults)})",
            hint="nothing was registered; try again when more trustees are reachable",
        )

    def _note(self, epoch: int, trustee: int, elements: int) -> None:
        with transaction(self._connection):
            self._connection.execute(
                "INSERT INTO asked VALUES (?, ?, ?)"
                " ON CONFLICT (epoch, trustee) DO UPDATE SET elements = elements + excluded.elements",
                (epoch, trustee, elements),
            )

    def _cached(self, epoch: int) -> dict[bytes, Token]:
        rows = self._connection.execute("SELECT input, token FROM tokens WHERE epoch = ?", (epoch,))
        return {name: Token(token) for name, token in rows}


def _named(trustee: int, fault: PharoahError) -> str:
    """What one trustee did wrong, also for the log: its place is taken by another, and its owner should hear of it."""
    said = f"trustee {trustee}: {type(fault).__name__}: {fault.what}"
    logger.warning("%s", said)
    return said


def _group_key(directory: Directory) -> threshold.GroupKey:
    shares = sorted(directory.trustees, key=lambda trustee: trustee.index)
    return threshold.GroupKey(
        directory.threshold,
        Element.decode(directory.group_key),
        tuple(Element.decode(trustee.share_key) for trustee in shares),
    )


def _evaluation(index: int, data: bytes) -> voprf.Evaluation:
    response = decode(EvaluationResponse, data)
    if response.trustee != index:
        raise DecodeError(f"trustee {index} answered as trustee {response.trustee}")
    elements = tuple(Element.decode(element) for element in response.elements)
    return voprf.Evaluation(elements, voprf.Proof.decode(response.proof))


def _voprf_input(epoch: int, rung: bytes) -> bytes:
    packed: bytes = msgpack.packb([_RUNG_LABEL, epoch, rung], use_bin_type=True)
    return packed


def _name(value: bytes) -> bytes:
    """What the cache files an input under; the input itself is in the journal's descriptor, not here."""
    return hashlib.sha256(value).digest()
