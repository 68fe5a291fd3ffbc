"""A diagnosis for programs: what `pharoah-tenant diagnose --json` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from federation.protocol.causes import Domain
from tenant_client.doctor.advice.incompatibilities import Known
from tenant_client.doctor.diagnosis.diagnose import Diagnosis, UnknownLine
from tenant_client.doctor.diagnosis.precedents import Precedent
from tenant_client.doctor.diagnosis.sureness import Sureness, sureness_of
from tenant_client.doctor.sources.evidence import Evidence


@dataclass(frozen=True)
class Told:
    """`place` is the file and line of the root, `sure` is None where nobody measured it, `hints` are for unknown.

    `known` is what is known of the versions that the logs name, `taken_for` what each file was read as.
    """

    reason: str
    sure: Sureness | None
    domain: Domain | None
    rank: int | None
    host: str
    gpu: str
    sentence: str
    advice: str
    place: str
    cascade: tuple[Evidence, ...]
    symptom: Evidence | None
    hints: tuple[UnknownLine, ...]
    precedents: tuple[Precedent, ...]
    known: tuple[Known, ...]
    taken_for: Mapping[str, str]

    @classmethod
    def of(
        cls,
        diagnosis: Diagnosis,
        hints: Sequence[UnknownLine],
        precedents: Sequence[Precedent],
        known: Sequence[Known],
        taken_for: Mapping[str, str],
    ) -> "Told":
        """The same diagnosis, spelt out."""
        return cls(
            reason=diagnosis.reason,
            sure=sureness_of(diagnosis),
            domain=diagnosis.domain,
            rank=diagnosis.rank,
            host=diagnosis.host,
            gpu=diagnosis.gpu,
            sentence=diagnosis.sentence,
            advice=diagnosis.advice,
            place=diagnosis.root.where if diagnosis.root else "",
            cascade=diagnosis.cascade,
            symptom=diagnosis.symptom,
            hints=tuple(hints),
            precedents=tuple(precedents),
            known=tuple(known),
            taken_for=dict(taken_for),
        )
