"""What a cluster asks a tenant's webhook."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from crypto.errors import DecodeError
from fuzz.targets.target import require, target
from tenant_client.admission.affinity import kept_from, names_context
from tenant_client.admission.review import PREFERRED, REQUIRED, read_review

RULE = {"key": "zone", "operator": "In", "values": ["a"]}
AFFINITY = {
    REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [RULE]}, {"matchFields": [RULE]}, {}]},
    PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [RULE]}}],
}


def reviews() -> Iterator[bytes]:
    """Of a pod with much, and of one with little."""
    container = {
        "name": "a",
        "command": ["pharoah-tenant", "run", "--"],
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    much = {"containers": [container], "affinity": {"nodeAffinity": AFFINITY}, "nodeSelector": {"zone": "a"}}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    specs: list[dict[str, Any]] = [much, {"containers": []}]
    for spec in specs:
        pod = {"metadata": {"annotations": {"pharoah.dev/like": "81"}}, "spec": spec}
        request = {"uid": "u", "kind": kind, "operation": "CREATE", "object": pod}
        told = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        yield json.dumps(told).encode()


@target("admission", "any bytes are a review of a pod that can be patched, or DecodeError", reviews)
def check_admission(data: bytes) -> None:
    """A patch adds to the pod's affinity, and to nothing else."""
    with suppress(DecodeError):
        spec = read_review(data).pod().spec
        spec.asks_for(("nvidia.com/",))
        names_context(spec)
        for one in kept_from(spec, ["x"], [(10, ["y"])]):
            require("an addition", holds=one["op"] == "add" and one["path"].startswith("/spec/affinity"))
