"""A provider with one tenant whose leases begin and end, and two nodes in a context."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from crypto.ids import LeaseId
from provider_server.fleet.analysis.buildup import BuildUp
from provider_server.fleet.analysis.contexts import Context, ContextMap
from provider_server.fleet.learning.hardware import Kept, keep
from provider_server.rounds.intake.lines import Taken, take_each, total
from provider_server.rounds.intake.recorder import LeaseRecorder
from provider_server.rounds.provider import Provider
from tests.support.federations import Grounds

NAME = "0a" * 16


def at(hour: float) -> str:
    return datetime.fromtimestamp(hour * 3600, UTC).isoformat()


@dataclass
class Scene:
    """A provider with one tenant and two nodes of a context, and what is told to it."""

    home: Path
    provider: Provider
    tenant: str

    def line(self, event: str, **keys: Any) -> bytes:
        base: dict[str, Any] = {"event": event, "lease": NAME}
        if event == "begin":
            base |= {"tenant": self.tenant, "at": at(10.0), "until": at(50.0), "node_names": ["n1", "n2"]}
        line = base | keys
        return json.dumps({key: value for key, value in line.items() if value is not None}).encode()

    def told(self, *lines: bytes) -> Taken:
        return total(take_each(lines, LeaseRecorder(self.provider, self.home)))

    def end_h(self) -> float:
        lease = self.provider.store.lease(LeaseId(bytes.fromhex(NAME)))
        assert lease is not None
        return lease.end_h


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Grounds]:
    """A federation of one tenant, and where it lies; founded once, and copied for each test."""
    root = tmp_path_factory.mktemp("founded")
    grounds = Grounds.founded(root, 1)
    known = ContextMap((), (Context(4, "all alike", ("n1", "n2"), 0.1, 0.05, 0.2),), 5, ((),), (), ())
    keep(root / "provider", Kept(0, known, {"n1": 0, "n2": 2}, BuildUp().state()))
    return root, grounds


@pytest.fixture
def scene(founded: tuple[Path, Grounds], tmp_path: Path) -> Iterator[Scene]:
    """A copy of it, open."""
    root, grounds = founded
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    with closing(grounds.provider(tmp_path)) as provider:
        yield Scene(tmp_path / "provider", provider, str(grounds.federation.tenants[0].id))
