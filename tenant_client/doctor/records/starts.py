"""What each attempt was started with: command, code, packages, environment and hosts, to be compared after a failure.

It stays in the tenant's home, as all of the journal. Kept as they are: variables that are known to be settings, and the
command's words. All other variables, and what looks like a secret among these, are kept as keyed digests, which show
that they changed and nothing else. Not promised: to find a secret in a word of the command that nothing marks as one;
whoever lists the processes of the machine sees it too.
"""

from pathlib import PurePath

import msgspec

from federation.base.sqlite import Rows, transaction


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """One start. What could not be found is empty.

    `commit` is git's, `dirty` the files that differ from it, or without git the command's scripts, with digests of what
    they hold; `packages` are those of the
    job's own Python by name; `hosts` the nodes of the job.
    """

    command: tuple[str, ...] = ()
    folder: str = ""
    commit: str = ""
    dirty: dict[str, str] = {}
    packages: dict[str, str] = {}
    environment: dict[str, str] = {}
    hosts: str = ""

    @property
    def program(self) -> str:
        """The script or module that the command runs, else the command's first word."""
        words = list(self.command)
        module = words[words.index("-m") + 1 : words.index("-m") + 2] if "-m" in words else []
        scripts = [PurePath(word).name for word in words if word.endswith((".py", ".sh"))]
        return (scripts or module or [PurePath(word).name for word in words[:1]] or [""])[0]


class Starts(Rows):
    """Reads and writes what attempts were started with."""

    def keep(self, unit: str, attempt: int, started: Started) -> None:
        """Journals a start; one that is known stays."""
        with transaction(self._connection):
            self._connection.execute(
                "INSERT OR IGNORE INTO starts VALUES (?, ?, ?)", (unit, attempt, msgspec.json.encode(started).decode())
            )

    def newest(self) -> dict[str, Started]:
        """The last start of every unit that has one."""
        rows = self._connection.execute("SELECT unit, started FROM starts ORDER BY unit, attempt")
        return {unit: msgspec.json.decode(text, type=Started) for unit, text in rows}
