"""Finds the role of a home from its files, before a verb reads or changes anything in it.

A missing or empty folder has no role yet and may become a home of any role.
"""

from enum import StrEnum
from pathlib import Path

from federation.base.key_files import HomeError
from federation.base.visible import reason, short


class Role(StrEnum):
    """The owner of a home."""

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
    """The roles whose files are in a folder; OSError if it is unreadable."""
    return {role for role, names in _MARKS.items() if any((home / name).exists() for name in names)}


def check_home(home: Path, role: Role) -> None:
    """HomeError unless the folder is a home of that role, or may become one."""
    try:
        if home.exists() and not home.is_dir():
            raise HomeError(f"not a folder: {short(home)}", hint="pass a folder with --home")
        if home.is_dir():
            next(home.iterdir(), None)
        others = roles_of(home)
    except OSError as error:
        raise HomeError(f"{reason(error)}: {short(home)}", hint="pass a readable folder with --home") from error
    if others and role not in others:
        other = min(others)
        text = f"this is the home of a {other}, not of a {role}: {short(home)}"
        raise HomeError(text, hint=f"pass another --home, or use `{_PROGRAMS[other]}`")
