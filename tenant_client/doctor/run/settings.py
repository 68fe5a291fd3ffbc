"""The settings of `pharoah-tenant run`, all with defaults."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tenant_client.doctor.run.watchdog import WatchLimits


@dataclass(frozen=True)
class RunSettings:
    """Options of `pharoah-tenant run`. `logs` are further files to look into after a failure.

    `job` names it, `command` is what was started. `describe_now` samples the first steps, however busy the
    host is.
    """

    home: Path
    lease: str
    job: str = ""
    command: tuple[str, ...] = ()
    watch: bool = True
    sample: bool = True
    describe_now: bool = False
    quiet: bool = False
    logs: tuple[Path, ...] = ()
    limits: WatchLimits = field(default_factory=WatchLimits)
    spool_bytes: int = 4 << 20
    poll_s: float = 1.0
    drain_s: float = 30.0
    grace_s: float = 30.0

    def to_json(self) -> str:
        """As the observer is told."""
        return json.dumps(asdict(self), default=str)

    @property
    def program(self) -> str:
        """The name of the program that was started."""
        return Path(self.command[0]).name if self.command else ""

    @classmethod
    def from_json(cls, text: str) -> "RunSettings":
        """The inverse of `to_json`."""
        told = json.loads(text)
        paths = {"home": Path(told["home"]), "logs": tuple(map(Path, told["logs"])), "command": tuple(told["command"])}
        return cls(**told | paths | {"limits": WatchLimits(**told["limits"])})
