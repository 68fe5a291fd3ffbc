"""`pharoah-provider nodes codes`: whether error codes of GPUs are the hardware's or a job's. Needs no federation."""

from contextlib import closing
from pathlib import Path

from federation.base.console import AsJson
from provider_server.fleet.learning import hardware
from provider_server.fleet.node_codes import Held, NodeCodeRow, codes_in, held, node_codes
from provider_server.program.verbs.console import Database, Home, print_rows, required
from provider_server.program.verbs.feed import End, Files, Sorted, Start, Stock, open_feed, say_quality
from provider_server.rounds.store.store import Store


def codes(
    home: Home = None,
    database: Database = None,
    file: Files = None,
    inventory: Stock = None,
    start: Start = None,
    end: End = None,
    *,
    in_order: Sorted = False,
    as_json: AsJson = False,
) -> None:
    """Say of each error code of a GPU whether it is the node's hardware, a job's code or the driver.

    From telemetry's Xid codes over the leases of each node, and from repairs; where it is open, it names the test that
    would decide. Nothing is recorded.
    """
    place = required(home)
    feed = open_feed(place, file or (), inventory, start, end, in_order=in_order)
    kept, repairs = hardware.load(place), hardware.load_repairs(place)
    seen = hardware.follow_warm(feed.source, feed.window, feed.inventory, kept, repairs)
    say_quality(seen.quality, seen.doubts)
    leases = _held(place, database, feed.window.start_hour, feed.window.end_hour)
    mended = [(one.node, float(one.from_hour)) for one in repairs]
    print_rows(node_codes(list(codes_in(seen.events)), leases, mended), _line, as_json=as_json)


def _held(home: Path, database: str | None, start_h: float, end_h: float) -> list[Held]:
    """Leases of the window; none of a provider that only watches its nodes."""
    if not database and not (home / "provider.db").exists():
        return []
    with closing(Store(database or home / "provider.db", create=False)) as store:
        return held(store.placed(start_h, end_h))


def _line(row: NodeCodeRow) -> str:
    times = f", {row['events']} times" if row["events"] > 1 else ""
    return f"{row['node']}: {row['judgement']}{times}"
