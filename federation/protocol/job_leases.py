"""Lease ids by a scheduler's job: provider and tenant compute the same id, and nobody else can tell the job from it.

    provider's secret, tenant ──▶ lease key    handed to that tenant alone
    lease key, cluster, job, restarts ──▶ lease id

Guarantees. A scheduler's job ids are small numbers in sequence, which tell how busy a cluster is; under a key of 32
bytes they cannot be tried out. Each tenant has a key of its own, so none computes the leases of another. A job that is
requeued gets another lease each time, and so does each component of a heterogeneous job, by its own job id.

Not promised: that ids differ once the scheduler's job ids begin anew.

>>> key = lease_key(bytes(32), TenantId(bytes(16)))
>>> lease_of_job(key, "alps", 81, 0) == lease_of_job(key, "alps", 81, 1)
False
"""

import hashlib
import hmac

from crypto.ids import LeaseId, TenantId


def lease_key(secret: bytes, tenant: TenantId) -> bytes:
    """The key of one tenant, 32 bytes, derived from a secret of the provider's home."""
    return hmac.digest(secret, b"pharoah/lease-key/1\0" + tenant, hashlib.sha256)


def lease_of_job(key: bytes, cluster: str, job: int, restarts: int) -> LeaseId:
    """The lease of one start of a job; `restarts` counts from 0."""
    told = f"{cluster}\0{job}\0{restarts}".encode()
    return LeaseId(hmac.digest(key, b"pharoah/job-lease/1\0" + told, hashlib.sha256)[: LeaseId.length])
