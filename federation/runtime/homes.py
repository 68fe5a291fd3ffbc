"""Whose home a folder is, told by the files in it, before a verb opens, makes or changes anything there.

A folder that is missing or empty is nobody's yet and may become anybody's.
"""

from enum import StrEnum
from pathlib import Path

from federation.runtime.key_files import HomeError
from federation.runtime.visible import reason, short


class Role(StrEnum):
    """Who keeps a home."""

    TENANT = "tenant"
    TRUSTEE = "trustee"
    PROVIDER = "provider"


_MARKS = {
    Role.TENANT: ("tenant.db", "tenant.toml", "mask.claim", "node.key"),
    Role.TRUSTEE: ("sealing.key", "trustee.card", "trustee.db", "trustee.toml"),
    Role.PROVIDER: ("provider.db", "provider.toml", "context.key", "superlink.db"),
}
_PROGRAMS = {
    Role.TENANT: "pharoah-tenant",
    Role.TRUSTEE: "pharoah-trustee",
    Role.PROVIDER: "pharoah-provider",
}


def roles_of(home: Path) -> set[Role]:
    """Whose files lie in a folder; OSError where that cannot be seen."""
    return {role for role, names in _MARKS.items() if any((home / name).exists() for name in names)}


def check_home(home: Path, role: Role) -> None:
    """HomeError unless the folder is a home of that role, or may become one."""
    try:
        if home.exists() and not home.is_dir():
            raise HomeError(f"a file is no home: {short(home)}", hint="name a folder by --home")
        if home.is_dir():
            next(home.iterdir(), None)
        others = roles_of(home)
    except OSError as error:
        raise HomeError(f"{reason(error)}: {short(home)}", hint="name a folder that you may read by --home") from error
    if others and role not in others:
        other = min(others)
        said = f"this is the home of a {other}, not of a {role}: {short(home)}"
        raise HomeError(said, hint=f"name another one by --home, or use `{_PROGRAMS[other]}`")
