"""What the provider tells a cluster of its nodes: the context that each is in, and devices that show signs of failure.

    contexts of nodes, tokens of this epoch ─▶ label pharoah.dev/context of nodes         [kubernetes] label_nodes
    risks of nodes ─▶ label pharoah.dev/risk-24h, a taint of those at high risk           [kubernetes] risk
    nodes.json, raised nodes ─▶ DeviceTaintRule, effect None, on devices of the node      [kubernetes] taint_driver

- All are off by default. A mark goes once it no longer holds; a node that is silent, or whose newest report is old,
  is not marked.
- Effect None schedules nothing and evicts nothing; what somebody else made of an effect, or of other rules, stays.
- A failure is logged, and tried again at the next look; leases go on.

A taint with the effect NoSchedule keeps new pods away and evicts none. Kueue takes a node with it for unhealthy, and
looks for another one for the workloads on it (`status.unhealthyNodes`; TASReplaceNodeOnNodeTaints, on since 0.17).

A rule is on the pool that has the node's name, as drivers of devices within nodes name theirs. Effect None is known to
Kubernetes from 1.35 on (resource.k8s.io v1alpha3; v1beta2 from 1.36, v1 from 1.37).
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from crypto.errors import PharoahError
from federation.base.hostlist import hostlist
from federation.base.meanwhile import meanwhile
from federation.protocol.pod_leases import CONTEXT_LABEL
from pharoah_kubernetes.api import Api, VersionGone
from pharoah_kubernetes.objects import DeviceTaintRule, Node, Taint
from pharoah_kubernetes.settings import Kubernetes
from provider_server.fleet.hints import node_reports, node_risk
from provider_server.fleet.hints.node_reports import STALE_H, NodeReport, NodeStanding
from provider_server.fleet.hints.node_risk import Facts
from provider_server.fleet.learning import hardware
from provider_server.fleet.learning.hardware import Kept, label_of

logger = logging.getLogger(__name__)

LOOK_S = 60.0
STOP_S = 5.0
HOUR_S = 3600.0
NODES = "/api/v1/nodes"
GROUP, VERSIONS = "resource.k8s.io", ("v1", "v1beta2", "v1alpha3")
TAINT, EFFECT = "pharoah.dev/build-up-level", "None"
RISK, HIGH = "pharoah.dev/risk-24h", "high"
OURS = {"app.kubernetes.io/managed-by": "pharoah"}
NAME = "pharoah-{}"
NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,240}[a-z0-9])?")  # no other is one of Kubernetes

TokenOf = Callable[[str], str]


class Rule(NamedTuple):
    """A mark on the devices of a driver that a node has."""

    node: str
    driver: str
    level: int

    @property
    def spec(self) -> dict[str, dict[str, str]]:
        """The rule without its effect."""
        return {
            "deviceSelector": {"driver": self.driver, "pool": self.node},
            "taint": {"key": TAINT, "value": str(self.level)},
        }

    def made(self, version: str) -> dict[str, object]:
        """The rule, new."""
        return {
            "apiVersion": f"{GROUP}/{version}",
            "kind": "DeviceTaintRule",
            "metadata": {"name": NAME.format(self.node), "labels": OURS},
            "spec": {**self.spec, "taint": {**self.spec["taint"], "effect": EFFECT}},
        }

    def is_said_by(self, known: DeviceTaintRule) -> bool:
        """Whether the rule in the cluster is this one, whatever its effect."""
        at, taint = known.spec.device_selector, known.spec.taint
        return at is not None and (at.driver, at.pool, taint.key, taint.value) == (
            self.driver,
            self.node,
            TAINT,
            str(self.level),
        )


def rules(reports: Iterable[NodeReport], now_s: float, driver: str, least_level: int) -> dict[str, Rule]:
    """The rules for raised nodes, by name."""
    return {
        NAME.format(one.node): Rule(one.node, driver, one.level)
        for one in reports
        if one.standing(least_level) is NodeStanding.RAISED
        and now_s / HOUR_S - one.hour <= STALE_H
        and NODE_NAME.fullmatch(one.node)
    }


def labels(nodes: Iterable[str], named: Mapping[str, str], kept: Kept | None, token: TokenOf) -> dict[str, str]:
    """The label of each node by the context of which leases on it are; empty for one without context."""
    found = {}
    for node in nodes:
        number = kept.contexts.of(node) if kept else None
        context = named.get(node) or (None if number is None else label_of(number))
        found[node] = token(context) if context else ""
    return found


def risk_change(node: Node, bucket: str, effect: str) -> dict[str, object]:
    """The patch by which a node tells its bucket, with a taint of this effect where it is high; empty where it does.

    A patch replaces all taints, so it names the version that they were read at: another writer's are never lost.
    """
    change: dict[str, object] = {}
    metadata: dict[str, object] = {}
    if node.metadata.label(RISK) != bucket:
        metadata["labels"] = {RISK: bucket or None}
    taints = node.spec.taints or ()
    wanted = [one for one in taints if one.key != RISK]
    wanted += [Taint(RISK, effect, HIGH)] if effect and bucket == HIGH else []
    if [(one.key, one.effect) for one in wanted] != [(one.key, one.effect) for one in taints]:
        metadata["resourceVersion"] = node.metadata.resource_version
        change["spec"] = {"taints": wanted or None}
    return change | ({"metadata": metadata} if metadata else {})


class Marks:
    """Marks the nodes of a cluster for the provider of a home.

    `token` is of a context at an hour; `contexts` names those of lists of hosts, as [leases] does.
    """

    def __init__(
        self,
        api: Api,
        home: Path,
        token: Callable[[float, str], str],
        settings: Kubernetes,
        contexts: Mapping[str, str],
    ) -> None:
        self._api = api
        self._home = home
        self._token = token
        self._settings = settings
        self._named = {node: context for hosts, context in contexts.items() for node in hostlist(hosts)}
        self._said: dict[str, str] = {}

    def look(self, now_s: float) -> None:
        """Writes what the cluster does not say yet, and takes back what no longer holds.

        Failures are logged, each once until it goes well.
        """
        if self._settings.label_nodes:
            self._tried("nodes are not labelled", self._label, now_s)
        if self._settings.risk:
            self._tried("risks are not told", self._tell_risks, now_s)
        if self._settings.taint_driver:
            self._tried("devices are not marked", self._taint, now_s)

    def _tried(self, otherwise: str, step: Callable[[float], None], now_s: float) -> None:
        what = ""
        try:
            step(now_s)
        except (PharoahError, VersionGone, OSError) as error:
            what = error.what if isinstance(error, PharoahError) else type(error).__name__
            if what != self._said.get(otherwise):
                hint = error.hint if isinstance(error, PharoahError) else ""
                fields = {"event": "kubernetes", "error": type(error).__name__, "hint": hint}
                logger.warning("%s: %s", otherwise, what, extra=fields)
        self._said[otherwise] = what

    def _label(self, now_s: float) -> None:
        listed, _ = self._api.objects(NODES, Node)
        of = {one.metadata.name: one.metadata.label(CONTEXT_LABEL) for one in listed}
        wanted = labels(of, self._named, hardware.load(self._home), lambda one: self._token(now_s / HOUR_S, one))
        for node in sorted(wanted):
            if wanted[node] != of[node]:
                change = {"metadata": {"labels": {CONTEXT_LABEL: wanted[node] or None}}}
                self._api.change(f"{NODES}/{node}", change)

    def _tell_risks(self, now_s: float) -> None:
        """Labels and taints of nodes that were heard lately; none of others. What others tainted stays."""
        reports = node_reports.load(self._home / node_reports.FILE)
        found = node_risk.risks(reports, Facts.of_home(self._home, now_s / HOUR_S))
        heard = {one.node for one in reports if one.is_heard and now_s / HOUR_S - one.hour <= STALE_H}
        buckets = {one.node: one.bucket for one in found if one.node in heard}
        effect = "" if self._settings.risk == "label" else self._settings.risk
        for node in sorted(self._api.objects(NODES, Node)[0], key=lambda one: one.metadata.name):
            if change := risk_change(node, buckets.get(node.metadata.name, ""), effect):
                self._api.change(f"{NODES}/{node.metadata.name}", change)

    def _taint(self, now_s: float) -> None:
        wanted = rules(
            node_reports.load(self._home / node_reports.FILE),
            now_s,
            self._settings.taint_driver,
            self._settings.taint_level,
        )
        version, known = self._rules()
        path = f"/apis/{GROUP}/{version}/devicetaintrules"
        for rule in known:
            of_node = wanted.pop(rule.metadata.name, None)
            if of_node is None:
                self._api.delete(f"{path}/{rule.metadata.name}")
            elif not of_node.is_said_by(rule):
                self._api.change(f"{path}/{rule.metadata.name}", {"spec": of_node.spec})
        for name in sorted(wanted):
            self._api.create(path, wanted[name].made(version))

    def _rules(self) -> tuple[str, Sequence[DeviceTaintRule]]:
        """The newest version of the API that the cluster has, and our rules."""
        chosen = ",".join(f"{key}={value}" for key, value in OURS.items())
        for version in VERSIONS:
            known, at = self._api.objects(f"/apis/{GROUP}/{version}/devicetaintrules", DeviceTaintRule, chosen)
            if at is not None:
                return version, known
        raise NoDeviceTaints("the cluster has no DeviceTaintRule")


class NoDeviceTaints(PharoahError):
    """Devices cannot be marked in this cluster."""

    default_hint = "they need Kubernetes 1.35 or later with DRADeviceTaintRules, or an empty [kubernetes] taint_driver"


@contextmanager
def marking(marks: Marks, *, once: bool) -> Iterator[None]:
    """Within it a thread looks every minute; with `once`, one look is taken and no more."""
    if once:
        marks.look(time.time())
        yield
        return
    stop = threading.Event()
    with meanwhile(lambda: _run(marks, stop), stop.set, "pharoah-marks", STOP_S):
        yield


def _run(marks: Marks, stop: threading.Event) -> None:
    while not stop.is_set():
        marks.look(time.time())
        stop.wait(LOOK_S)
