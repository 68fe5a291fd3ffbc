"""The cost of hostile callers to a trustee and the online service, and whether honest callers are still answered.

    python benchmarks/hostile_calls.py [--quick] [--json]

Real server processes over TLS on the loopback. Hostile and honest callers have one address, except in the rows that
name another. There are two kinds of rows; a `!` stands before what is not as promised.

`messages`  Eight messages of the method's largest size at once, by members of the federation, whom a server lets in
            before strangers. `cpu_s` is the server's CPU time for each, `memory_mib` what its largest resident size
            grew by for all, `honest_ms` the slowest of the honest calls that were made all the while, `told` what the
            hostile ones heard. Promised are 0.1 s, 100 MiB and 1000 ms.
`silence`   A thousand connections that say nothing, or begin and stop, or go on a byte a second, or take no answer;
            then a hundred honest calls, by strangers. `answered` counts these; promised are all.

The bytes are random; an array of empty arrays; arrays nested as deep as they are long; an honest message's beginning
with random bytes after it; and one that is begun in good order, as long as it may be, under a signature that is none.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from federation.runtime import tls

if TYPE_CHECKING:
    from benchmarks.hostile_rows import MessageRow, SilenceRow

MOST_S, MOST_MIB, MOST_MS = 0.1, 100.0, 1000.0
MIB = 2**20


def message_line(row: "MessageRow") -> str:
    """A row for people."""
    mark = "!" if row.cpu_s > MOST_S or row.memory_mib > MOST_MIB or row.honest_ms > MOST_MS else " "
    told = ", ".join(f"{count} {name}" for name, count in sorted(row.told.items()))
    return (
        f"{mark}{row.method:28}{row.size / MIB:5.2f} MiB {row.kind:15}{row.cpu_s:7.4f} s each,"
        f" {row.memory_mib:5.1f} MiB in all, honest {row.honest_ms:5.0f} ms: {told}"
    )


def silence_line(row: "SilenceRow") -> str:
    """A row for people."""
    mark = "!" if row.answered < row.calls else " "
    return (
        f"{mark}{row.service:9}{row.connections} from {row.source}, {row.kind:18}"
        f" {row.answered} of {row.calls} answered, median {row.median_ms:.0f} ms, slowest {row.honest_ms:.0f} ms,"
        f" {row.memory_mib:+.0f} MiB"
    )


def main() -> None:
    """Measures and prints, row by row."""
    parser = argparse.ArgumentParser(description="what hostile callers cost, and whether honest ones are answered")
    parser.add_argument("--quick", action="store_true", help="one method and two kinds each, fewer connections")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    options = parser.parse_args()
    tls.forbid_1_2()
    from benchmarks.hostile_rows import MessageRow, rows
    from simulation.run.online_service import settle

    settle(max(os.sched_getaffinity(0)))
    for row in rows(quick=options.quick):
        line = message_line(row) if isinstance(row, MessageRow) else silence_line(row)
        sys.stdout.write((json.dumps(asdict(row)) if options.json else line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
