"""What each attempt was started with: command, code, packages, environment and hosts, to be compared after a failure.

It stays in the tenant's home, as all of the journal. A word or a variable whose name looks like a secret's is kept as
a keyed digest, which shows that it changed and nothing else.
"""

import hmac
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath

import msgspec

from federation.runtime.sqlite import Connection, transaction

_SECRET = re.compile(r"(?i)key|token|secret|passw|credential|auth|cookie|_pat\b|\bdsn\b")
_LOGIN = re.compile(r"://[^/\s]*@")
_DIGEST = 12
_MOST_LETTERS = 400


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """One start. What could not be found is empty.

    `commit` is git's, `dirty` the files that differ from it with digests of their contents; `packages` are those of the
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


def masked_words(words: Iterable[str], key: bytes) -> tuple[str, ...]:
    """A command line without the values of options that look like secrets."""
    masked: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        option = masked[-1] if masked and masked[-1].startswith("-") and "=" not in masked[-1] else ""
        if equals and _SECRET.search(name):
            masked.append(f"{name}={_digest(value, key)}")
        elif _SECRET.search(option) or _LOGIN.search(word):
            masked.append(_digest(word, key))
        else:
            masked.append(word[:_MOST_LETTERS])
    return tuple(masked)


def masked_variables(environment: Mapping[str, str], key: bytes) -> dict[str, str]:
    """Variables with digests for the values of those that look like secrets, or are long."""
    return {
        name: _digest(value, key)
        if _SECRET.search(name) or _LOGIN.search(value) or len(value) > _MOST_LETTERS
        else value
        for name, value in environment.items()
    }


def _digest(value: str, key: bytes) -> str:
    return f"({hmac.digest(key, value.encode('utf-8', 'surrogateescape'), 'sha256').hex()[:_DIGEST]})"


class Starts:
    """Reads and writes what attempts were started with."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
