"""Follows a cluster: what its watches show becomes events of leases, recorded as any others.

    watches, one thread a kind ─▶ Cluster ─ standings ─▶ Follower.look ─▶ LeaseRecorder

A gang (`gangs`) begins a lease of the tenant whose namespace it is in, under the id that its own pods compute
(`federation.protocol.pod_leases`). Which leases run is kept in `kubernetes.json` in the home, so that after a break
those whose pods are gone are ended, at the last time that the cluster was looked at. Where Kueue evicted the job, it
is a requeue. What cannot be recorded now (a node without context) is said once and tried again at each look.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from crypto.errors import DecodeError, PharoahError
from federation.protocol.job_leases import lease_key
from federation.protocol.pod_leases import lease_of_gang
from provider_server.intake.kubernetes.api import Api, VersionGone
from provider_server.intake.kubernetes.gangs import Cluster, Standing, standings
from provider_server.intake.kubernetes.objects import PATHS, Watched
from provider_server.intake.lease_events import BadLeases, Begin, Change, End, LeaseEvent, Requeue
from provider_server.intake.recorder import LeaseRecorder, Recorded
from provider_server.settings import Kubernetes

logger = logging.getLogger(__name__)

STATE = "kubernetes.json"
RETRY_S = 5.0
ABSENT_S = 600.0  # a kind that the cluster does not have is asked for again
LOOK_S = 1.0
KEEP_S = 10.0
STOP_S = 2.0


class _Running(msgspec.Struct, frozen=True):
    """A lease that runs, its planned end as it was told, and the UIDs of what its pods belong to."""

    lease: str
    until: datetime | None
    owners: tuple[str, ...]


class _Kept(msgspec.Struct, frozen=True):
    """The leases that run by their gangs, and when the cluster was last looked at."""

    at: datetime | None = None
    running: dict[str, _Running] = {}


class Follower:
    """Records what became of gangs since the last look. `secret` is that of the provider's home."""

    def __init__(self, recorder: LeaseRecorder, home: Path, secret: bytes, settings: Kubernetes) -> None:
        self._recorder = recorder
        self._file = home / STATE
        self._tenants = settings.tenants()
        self._keys = {tenant: lease_key(secret, tenant) for tenant in self._tenants.values()}
        self._resources = settings.resources
        self._kept = _load(self._file)
        self._running, self._looked_at = dict(self._kept.running), self._kept.at
        self._done: set[str] = set()  # gangs that are over, while their pods are still listed
        self._said: set[str] = set()

    def look(self, cluster: Cluster, now: datetime) -> list[Recorded]:
        """Records what changed, and returns it; each kind of the cluster must have been listed."""
        found = {"/".join(map(str, one.gang)): one for one in standings(cluster, self._tenants, self._resources)}
        self._done &= found.keys()
        recorded: list[Recorded] = []
        for name, one in found.items():
            if name not in self._done:
                recorded += self._begun(name, one) + self._over(name, one, cluster, now)
        for name in self._running.keys() - found.keys():
            gone = self._running.pop(name)
            kind = Requeue if cluster.is_evicted(gone.owners) else End
            recorded += self._taken(kind(gone.lease, min(self._looked_at or now, now)))
        self._looked_at = now
        self._keep()
        return [one for one in recorded if one is not Recorded.KNOWN]

    def _begun(self, name: str, one: Standing) -> list[Recorded]:
        """Records that a gang has begun, or that its planned end is another one."""
        tenant, known = self._tenants[one.namespace], self._running.get(name)
        lease = str(lease_of_gang(self._keys[tenant], one.gang))
        if known is None and one.since is not None:
            recorded = self._taken(Begin(lease, str(tenant), one.since, one.until, one.nodes))
        elif known is not None and one.until not in (None, known.until) and not one.is_over:
            recorded = self._taken(Change(lease, one.until))
        else:
            return []
        if recorded:
            self._running[name] = _Running(lease, one.until, one.owners)
        return recorded

    def _over(self, name: str, one: Standing, cluster: Cluster, now: datetime) -> list[Recorded]:
        """Records that a gang is over."""
        if not one.is_over:
            return []
        self._done.add(name)
        known = self._running.pop(name, None)
        if known is None:
            return []
        kind = Requeue if cluster.is_evicted(one.owners) else End
        return self._taken(kind(known.lease, max(one.over_at or now, one.since or now)))

    def _taken(self, event: LeaseEvent) -> list[Recorded]:
        """What the event was, alone in a list; none where it was refused, which is said once."""
        try:
            return [self._recorder.take(event)]
        except BadLeases as error:
            if error.what not in self._said:
                fields = {"event": "kubernetes", "error": "BadLeases", "hint": error.hint}
                logger.warning("a lease of the cluster is not recorded: %s", error.what, extra=fields)
                self._said.add(error.what)
            return []

    def _keep(self) -> None:
        """Writes what the next look after a break needs, if it changed or some seconds have passed."""
        kept, now = self._kept, self._looked_at
        if now and (kept.at is None or self._running != kept.running or (now - kept.at).total_seconds() >= KEEP_S):
            self._kept = _Kept(now, dict(self._running))
            new = self._file.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(self._kept))
            new.replace(self._file)


# ---- watches ---------------------------------------------------------------------------------------------------------


class Watches:
    """What the API shows of each kind, kept up to date by a thread for each."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.changed = threading.Condition()
        self.cluster = Cluster()
        self._listed: set[type[Watched]] = set()
        self._stopping = threading.Event()

    @property
    def is_whole(self) -> bool:
        """Whether each kind was listed, so that what is not there is gone."""
        return len(self._listed) == len(PATHS)

    def run(self, kind: type[Watched]) -> None:
        """Lists and watches one kind until stopped; failures are logged and tried again."""
        while not self._stopping.is_set():
            try:
                wait_s = self._follow(kind)
            except PharoahError as error:
                if self._stopping.is_set():
                    return
                fields = {"event": "kubernetes", "error": type(error).__name__, "hint": error.hint}
                logger.warning("%s: %s", kind.__name__, error.what, extra=fields)
                wait_s = RETRY_S
            self._stopping.wait(wait_s)

    def _follow(self, kind: type[Watched]) -> float:
        """One list and the watches that go on from it; seconds to wait before the next."""
        try:
            listed = self._api.list(kind)
            with self.changed:
                self.cluster.of[kind] = {one.metadata.uid: one for one in listed.objects}
                self._note(kind)
            if listed.version is None:
                return ABSENT_S
            version = listed.version
            while not self._stopping.is_set():
                for seen in self._api.watch(kind, version):
                    version = seen.version or version
                    if seen.found is None:
                        continue
                    with self.changed:
                        self.cluster.see(kind, seen.found, is_gone=seen.is_gone)
                        self._note(kind)
        except VersionGone:
            logger.info("%s is listed anew", kind.__name__)
        return 0.0

    def _note(self, kind: type[Watched]) -> None:
        self._listed.add(kind)
        self.changed.notify_all()

    def stop(self) -> None:
        """Ends the threads."""
        self._stopping.set()


@contextmanager
def watching(api: Api) -> Iterator[Watches]:
    """Within it each kind is watched in a thread of its own."""
    watches = Watches(api)
    threads = [threading.Thread(target=watches.run, args=(kind,), daemon=True) for kind in PATHS]
    with closing(api):
        for thread in threads:
            thread.start()
        try:
            yield watches
        finally:
            watches.stop()
    for thread in threads:
        thread.join(STOP_S)


def follow(watches: Watches, follower: Follower, told: Callable[[list[Recorded]], None], *, once: bool = False) -> None:
    """Looks whenever something changed; with `once`, as soon as each kind was listed, and no more."""
    while True:
        with watches.changed:
            watches.changed.wait(LOOK_S)
            if not watches.is_whole:
                continue
            cluster = watches.cluster.copied()
        told(follower.look(cluster, datetime.now(UTC)))
        if once:
            return


def _load(file: Path) -> _Kept:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Kept)
    except FileNotFoundError:
        return _Kept()
    except msgspec.MsgspecError as error:
        raise DecodeError(
            f"{error}: {file}", hint="delete it; leases that ended meanwhile must be ended by hand"
        ) from error
