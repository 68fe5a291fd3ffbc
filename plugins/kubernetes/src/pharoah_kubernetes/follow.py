"""Follows a cluster: what its watches show becomes events of leases, recorded as any others.

    watches, one thread a kind ─▶ Cluster ─ standings ─▶ Follower.look ─▶ LeaseRecorder

A gang (`gangs`) begins a lease of the tenant whose namespace it is in, under the id that its own pods compute
(`federation.protocol.pod_leases`). Which leases run is kept in `kubernetes.json` in the home, so that after a break
those whose pods are gone are ended, at the last time that the cluster was looked at. Where Kueue evicted the job, it
is a requeue. What cannot be recorded now (a node without context) is said once and tried again at each look; whatever
is wrong with one gang, the others are recorded.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from crypto.errors import PharoahError
from federation.base import json_files
from federation.base.visible import counted_as
from federation.protocol.job_leases import lease_key
from federation.protocol.pod_leases import lease_of_gang
from pharoah_kubernetes.api import Api, VersionGone
from pharoah_kubernetes.gangs import Cluster, Standing, Workloads, gangs, standing
from pharoah_kubernetes.objects import PATHS, Pod, Watched
from pharoah_kubernetes.settings import Kubernetes
from provider_server.rounds.intake.lease_events import FAULTS, Begin, Change, End, Requeue, why
from provider_server.rounds.intake.recorder import LeaseRecorder, Recorded

logger = logging.getLogger(__name__)

STATE = "kubernetes.json"
RETRY_S = 5.0
ABSENT_S = 600.0  # a kind that the cluster does not have is asked for again
LOOK_S = 1.0
KEEP_S = 10.0
STOP_S = 2.0


class _Running(msgspec.Struct, frozen=True):
    """A lease that runs, its planned end as it was told, and the UIDs of what its pods belong to in their namespace."""

    lease: str
    until: datetime | None
    owners: tuple[str, ...]
    namespace: str = ""


class _Kept(msgspec.Struct, frozen=True):
    """The leases that run, and when the cluster was last looked at. Older versions have other keys of `running`."""

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
        self._kept = json_files.load(
            self._file, _Kept, _Kept(), hint="delete it; leases that ended meanwhile must be ended by hand"
        )
        self._running, self._looked_at = {one.lease: one for one in self._kept.running.values()}, self._kept.at
        self._done: set[str] = set()  # leases that are over, while their pods are still listed
        self._said: dict[str, str] = {}  # what was wrong, by lease
        self._startless: frozenset[str] = frozenset()  # pods of which it was said that they tell no start

    def look(self, cluster: Cluster, now: datetime) -> list[Recorded]:
        """Records what changed, and returns it; each kind of the cluster must have been listed."""
        workloads = cluster.workloads()
        recorded: list[Recorded] = []
        found: set[str] = set()
        members = gangs(cluster, self._tenants, self._resources)
        self._tell_startless([pod for pods in members.values() for pod in pods if pod.lacks_start])
        for (namespace, gang), pods in members.items():
            lease = str(lease_of_gang(self._keys[self._tenants[namespace]], gang))
            if lease not in found and lease not in self._done:
                with self._guarding(lease, f"{namespace}/{pods[0].metadata.name}"):
                    one = standing(gang, pods, cluster, workloads)
                    recorded += self._begun(lease, one)
                    recorded += self._over(lease, one, workloads, now)
            found.add(lease)
        self._done &= found
        self._said = {lease: what for lease, what in self._said.items() if lease in found}
        for lease in self._running.keys() - found:
            gone = self._running.pop(lease)
            with self._guarding(lease, f"{gone.namespace}/{lease}"):
                kind = _end_of(gone.namespace, gone.owners, workloads)
                recorded.append(self._recorder.take(kind(lease, min(self._looked_at or now, now))))
        self._looked_at = now
        self._keep()
        return [one for one in recorded if one is not Recorded.KNOWN]

    def _begun(self, lease: str, one: Standing) -> Iterator[Recorded]:
        """Records that a gang has begun, or that its planned end is another one."""
        tenant, known = self._tenants[one.namespace], self._running.get(lease)
        if known is None and one.since is not None:
            event: Begin | Change = Begin(lease, str(tenant), one.since, one.until, one.nodes)
        elif known is not None and one.until is not None and one.until != known.until and not one.is_over:
            event = Change(lease, one.until)
        else:
            return
        yield self._recorder.take(event)
        self._running[lease] = _Running(lease, one.until, one.owners, one.namespace)

    def _over(self, lease: str, one: Standing, workloads: Workloads, now: datetime) -> Iterator[Recorded]:
        """Records that a gang is over."""
        if not one.is_over:
            return
        self._done.add(lease)
        if self._running.pop(lease, None) is not None:
            kind = _end_of(one.namespace, one.owners, workloads)
            yield self._recorder.take(kind(lease, max(one.over_at or now, one.since or now)))

    def _tell_startless(self, pods: Sequence[Pod]) -> None:
        """Says once how many pods are left out since nothing tells their start, with the name of the first."""
        names = sorted(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods)
        if not self._startless.issuperset(names):
            told = f"{counted_as(len(names), 'pod')}, the first {names[0]}"
            fields = {"event": "kubernetes", "error": "", "hint": "the kubelet writes status.startTime"}
            logger.warning(
                "left out: %s: neither status.startTime nor a container tells since when", told, extra=fields
            )
        self._startless = frozenset(names)

    @contextmanager
    def _guarding(self, lease: str, name: str) -> Iterator[None]:
        """Whatever is wrong with one gang is said once, and ends here: it may not keep the others from their leases."""
        try:
            yield
        except FAULTS as error:
            what = why(error)
            if self._said.get(lease) != what:
                hint = error.hint if isinstance(error, PharoahError) else ""
                fields = {"event": "kubernetes", "error": type(error).__name__, "hint": hint}
                logger.warning("a lease of %s is not recorded: %s", name, what, extra=fields)
                self._said[lease] = what

    def _keep(self) -> None:
        """Writes what the next look after a break needs, if it changed or some seconds have passed."""
        kept, now = self._kept, self._looked_at
        if now and (kept.at is None or self._running != kept.running or (now - kept.at).total_seconds() >= KEEP_S):
            self._kept = _Kept(now, dict(self._running))
            json_files.keep(self._file, self._kept, indent=-1)


def _end_of(namespace: str, owners: tuple[str, ...], workloads: Workloads) -> type[End]:
    """Whether Kueue took the pods of these owners away, to admit them again, or they ended."""
    is_evicted = any((namespace, uid) in workloads and workloads[namespace, uid].is_evicted for uid in owners)
    return Requeue if is_evicted else End


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
