"""The section kubernetes of provider.toml: every key with its default. See docs/clusters.md."""

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from crypto.ids import TenantId
from federation.base.settings import load
from provider_server.rounds.settings import tenants_by_name


class Kubernetes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pods of a cluster are leases, for `pharoah-provider kubernetes`; see docs/clusters.md.

    `namespaces` says by its id which tenant a namespace is; `resources` are what leased pods ask for, by how the names
    begin. Without `server` it is the cluster in which the provider runs; the files are those of a service account.
    `label_nodes` writes the token of its context to each node. `taint_driver` is the DRA driver whose devices are
    marked on nodes at build-up level `taint_level` or above; empty: none are. `risk` writes to each node how likely it
    fails within a day, as low, raised or high, where it is `label`; where it is an effect, high ones get a taint, too.
    """

    namespaces: dict[str, str] = {}
    resources: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ("nvidia.com/", "amd.com/")
    server: str = ""
    token_file: str = ""
    ca_file: str = ""
    label_nodes: bool = False
    taint_driver: str = ""
    taint_level: Annotated[int, msgspec.Meta(ge=1, le=3)] = 2
    risk: Literal["", "label", "PreferNoSchedule", "NoSchedule"] = ""

    def tenants(self) -> dict[str, TenantId]:
        """The tenants by namespace; BadSettings for what is no id."""
        return tenants_by_name(self.namespaces, "[kubernetes] namespaces")


class KubernetesSettings(msgspec.Struct, frozen=True):
    """This plug-in's part of provider.toml; the provider reads the rest."""

    kubernetes: Kubernetes = Kubernetes()


def settings_of(home: Path) -> Kubernetes:
    """The settings of a home, overridden by the environment."""
    return load(KubernetesSettings, home / "provider.toml", os.environ).kubernetes
