"""A TCP balancer for tests: each new connection goes to the next server that takes it, byte for byte, TLS unopened.

What nginx's `stream` module does with `proxy_pass` to an `upstream` of several servers.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

BLOCK_BYTES = 2**16
HOST = "127.0.0.1"


@contextmanager
def balancing(ports: list[int]) -> Iterator[int]:
    """Relays to these ports of this machine while the block runs; yields its own."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    listening: list[int] = []
    turn = count()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = next(turn)
        for at in range(len(ports)):
            with suppress(OSError):
                there = await asyncio.open_connection(HOST, ports[(first + at) % len(ports)])
                break
        else:
            writer.close()
            return
        await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))

    async def run() -> None:
        server = await asyncio.start_server(relay, HOST, 0)
        listening.append(server.sockets[0].getsockname()[1])
        started.set()
        async with server:
            await server.serve_forever()

    def until_cancelled() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    task = loop.create_task(run())
    thread = threading.Thread(target=until_cancelled, daemon=True)
    thread.start()
    started.wait(30)
    try:
        yield listening[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(30)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.CancelledError):
        while block := await reader.read(BLOCK_BYTES):
            writer.write(block)
            await writer.drain()
    writer.close()
