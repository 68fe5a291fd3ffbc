"""What a cluster asks a tenant's webhook, and what its fabric is."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from crypto.errors import DecodeError
from fuzz.targets.target import require, target
from provider_server.fleet.fabric import Fabric, FabricHealth, routes
from provider_server.fleet.fabric_files import FabricError, cables_of
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


def fabrics() -> Iterator[bytes]:
    """One of each form."""
    port = {"id": {"type": "ifname", "value": "Eth1/1"}}
    yield json.dumps({"lldp": {"interface": {"eth0": {"chassis": {"leaf": {"id": {}}}, "port": port}}}}).encode()
    yield b"SwitchName=s0 Nodes=n[1-2]\nSwitchName=s1 Switches=s0\n"
    yield (
        b'Switch\t41 "S-e8eb"\t\t# "MF0;leaf1:MQM9700/U1" enhanced port 0\n'
        b'[1]\t"H-b8ce"[1](b8ce) \t# "n1 mlx5_0" lid 12\n\n'
        b'Ca\t1 "H-b8ce"\t\t# "n1 mlx5_0"\n[1](b8ce) \t"S-e8eb"[1]\t# lid 12 lmc 0 "MF0;leaf1:MQM9700/U1" lid 1\n'
    )


@target("fabric", "any bytes are cables, or FabricError", fabrics)
def check_fabric(data: bytes) -> None:
    """And between any two nodes of them is a route, be it one that is not known."""
    for name in ("n1.json", "topology.conf", "ib.txt"):
        with suppress(FabricError):
            cables, nodes = cables_of(Path(name), data.decode("utf-8", "replace"))
            known = Fabric.of(cables, nodes)
            for node in sorted(nodes)[:2]:
                require("a route", holds=len(routes(known, "n1", node, FabricHealth())) > 0)
