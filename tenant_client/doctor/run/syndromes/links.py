"""Which connections between ranks hold data that does not arrive? From the kernel's table of TCP connections.

A connection has data under way at one look and again at the next: unacknowledged, or not read at the other end. One
that only the job's own pace makes so is not told apart; the verdict on the job comes first. Whose connection it is, its
inode tells, which the owner's processes list among their descriptors.

>>> under_way(["0: 0100007F:1F90 0100007F:0050 01 00000010:00000000 01:00000000 00000003 1000 0 77 1"])
{('0100007F:1F90', '0100007F:0050'): (16, 0, 3, '77')}
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tenant_client.doctor.run.syndromes.views import Link

Ends = tuple[str, str]
Queued = tuple[int, int, int, str]  # bytes not acknowledged, bytes not read, retransmissions, inode
_ESTABLISHED = "01"


def under_way(lines: Iterable[str]) -> dict[Ends, Queued]:
    """Established connections by their two ends, from lines of /proc/net/tcp."""
    found: dict[Ends, Queued] = {}
    for line in lines:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _ESTABLISHED:
            sent, received = fields[4].split(":")
            found[fields[1], fields[2]] = int(sent, 16), int(received, 16), int(fields[6], 16), fields[9]
    return found


def stalled(
    tables: Mapping[int, Mapping[Ends, Queued]], owners: Mapping[int, set[str]], *, crowded: bool = False
) -> set[Link]:
    """The links with data under way. `tables` and the inodes of `owners` are by rank.

    Where some send their data again and again, the others only wait for what those hold up. On a `crowded` host, data
    that is not read tells nothing: who should read it may wait for a processor.
    """
    rank_at = {
        ends[0]: rank for rank, table in tables.items() for ends, queued in table.items() if queued[3] in owners[rank]
    }
    links, repeating = set(), set()
    for rank, table in tables.items():
        for ends, (sent, _, again, inode) in table.items():
            mine = inode in owners[rank]
            unread = table.get((ends[1], ends[0]), (0, 0, 0, ""))[1] if ends[1] not in rank_at else 0
            if mine and (sent or again or (unread and not crowded)):
                links.add(Link(rank, rank_at.get(ends[1])))
                repeating |= {Link(rank, rank_at.get(ends[1]))} if again else set()
    return repeating or links


def look(pids: Mapping[int, int], *, crowded: bool = False) -> set[Link]:
    """The links with data under way between the processes `pids` (by rank); nothing where that cannot be read."""
    tables = {rank: _table(pid) for rank, pid in pids.items()}
    return stalled(tables, {rank: _inodes(pid) for rank, pid in pids.items()}, crowded=crowded)


def _table(pid: int) -> dict[Ends, Queued]:
    lines: list[str] = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            lines += Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii").splitlines()[1:]
    return under_way(lines)


def _inodes(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = str(path.readlink())
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found
