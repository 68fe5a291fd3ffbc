"""AdmissionReview messages of Kubernetes, with those of their fields that are read.

Sources: admission.k8s.io/v1 (k8s.io/api/admission/v1/types.go) and core/v1 Pod of Kubernetes 1.34; JSON Patch is
RFC 6902. Fields that are not named here are ignored; a field of another type than the published one is a DecodeError.

>>> request = read_review(b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u"}}')
>>> Answer(request.uid).encoded()[-38:]
b'"response":{"uid":"u","allowed":true}}'
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from crypto.errors import DecodeError

VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
FORBIDDEN = 403
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Operation = Mapping[str, Any]  # of a JSON Patch: op, path, value


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a message."""


Part = TypeVar("Part", bound=_Read)


class Expression(_Read, frozen=True):
    """What is asked of a label of nodes."""

    key: str


class Term(_Read, frozen=True):
    """Expressions that hold together; one without any fits no node."""

    match_expressions: tuple[Expression, ...] | None = None
    match_fields: tuple[Expression, ...] | None = None


class NodeSelector(_Read, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[Term, ...] | None = None


class PreferredTerm(_Read, frozen=True):
    """A term that counts for a node."""

    preference: Term = Term()


class NodeAffinity(_Read, frozen=True):
    """Which nodes a pod must have, and which it had better have."""

    required: NodeSelector | None = msgspec.field(name=REQUIRED, default=None)
    preferred: tuple[PreferredTerm, ...] | None = msgspec.field(name=PREFERRED, default=None)


class Affinity(_Read, frozen=True):
    """Where a pod belongs."""

    node_affinity: NodeAffinity | None = None


class Resources(_Read, frozen=True):
    """What a container asks for; quantities are not read."""

    requests: dict[str, str | float] | None = None
    limits: dict[str, str | float] | None = None


class Container(_Read, frozen=True):
    """A container of a pod."""

    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    resources: Resources | None = None


class ClaimReference(_Read, frozen=True):
    """A claim of a pod for devices (dynamic resource allocation)."""

    name: str


class PodSpec(_Read, frozen=True):
    """What a pod shall be."""

    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    resource_claims: tuple[ClaimReference, ...] | None = None

    def asks_for(self, resources: Sequence[str]) -> bool:
        """Whether a container asks for a resource whose name begins like one of these, or the pod claims devices."""
        asked = {
            name
            for container in (*self.containers, *(self.init_containers or ()))
            if container.resources
            for part in (container.resources.requests, container.resources.limits)
            for name in part or {}
        }
        return bool(self.resource_claims) or any(name.startswith(tuple(resources)) for name in asked)


class Metadata(_Read, frozen=True):
    """What a pod says of itself."""

    annotations: dict[str, str] | None = None


class Pod(_Read, frozen=True):
    """A pod that is about to be made."""

    spec: PodSpec
    metadata: Metadata = Metadata()


class ObjectKind(_Read, frozen=True):
    """Of which kind an object is."""

    group: str = ""
    version: str = ""
    kind: str = ""


class Request(_Read, frozen=True):
    """What the API server asks about."""

    uid: str
    kind: ObjectKind = ObjectKind()
    operation: str = ""
    namespace: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def makes_pod(self) -> bool:
        """Whether a pod is about to be made."""
        return (self.kind.group, self.kind.kind, self.operation) == ("", "Pod", "CREATE")

    def pod(self) -> Pod:
        """The pod; DecodeError where it is none."""
        return _read(Pod, self.object, "no pod in this review")


class _Review(_Read, frozen=True):
    api_version: Literal["admission.k8s.io/v1"]
    kind: Literal["AdmissionReview"]
    request: Request


def read_review(body: bytes) -> Request:
    """The request of a review; DecodeError where the body is no review."""
    return _read(_Review, body, f"no {KIND} of {VERSION}").request


@dataclass(frozen=True)
class Answer:
    """The answer to the request of this uid: allowed, with a patch, unless `denial` says why not."""

    uid: str
    patch: Sequence[Operation] = ()
    warnings: Sequence[str] = ()
    denial: str = ""

    def encoded(self) -> bytes:
        """As the API server reads it."""
        response: dict[str, Any] = {"uid": self.uid, "allowed": not self.denial}
        if self.patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(msgspec.json.encode(self.patch)).decode()
        if self.warnings:
            response["warnings"] = self.warnings
        if self.denial:
            response["status"] = {"code": FORBIDDEN, "message": self.denial}
        return msgspec.json.encode({"apiVersion": VERSION, "kind": KIND, "response": response})


def _read(kind: type[Part], told: msgspec.Raw | bytes, otherwise: str) -> Part:
    try:
        return msgspec.json.decode(told, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DecodeError(f"{otherwise}: {type(error).__name__}") from error
