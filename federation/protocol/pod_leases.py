"""Lease ids by pods of Kubernetes: provider and tenant compute the same id from the UIDs that a pod is told.

A gang is pods that work together: those of a JobSet's restart, of an indexed Job, or one pod alone. UIDs are random, so
nobody finds a lease by trying them; under the tenant's lease key (`federation.protocol.job_leases`) ids of leases
tell nothing of UIDs either.

>>> lease_of_gang(bytes(32), Gang("job", "u1")) == lease_of_gang(bytes(32), Gang("pod", "u1"))
False
"""

import hashlib
import hmac
from typing import Literal, NamedTuple

from crypto.ids import LeaseId


class Gang(NamedTuple):
    """Pods that work together: the UID of their JobSet, Job or pod, and the JobSet's restart, from 0."""

    kind: Literal["jobset", "job", "pod"]
    uid: str
    restart: int = 0


def lease_of_gang(key: bytes, gang: Gang) -> LeaseId:
    """The lease of a gang, under the tenant's lease key."""
    told = f"{gang.kind}\0{gang.uid}\0{gang.restart}".encode()
    return LeaseId(hmac.digest(key, b"pharoah/pod-lease/1\0" + told, hashlib.sha256)[: LeaseId.length])


# ---- labels of nodes -------------------------------------------------------------------------------------------------
#
# The provider writes it (`pharoah-provider kubernetes`), tenants name it in the affinity of pods (`pharoah-tenant
# admission`). It is the token that a lease on the node comes with; a value of 32 letters fits a label, which has 63.


CONTEXT_LABEL = "pharoah.dev/context"
