"""A wire between two networks, as a program: wire.py DEVICE DEVICE, told what it does by lines of JSON on its stdin.

Each end is a TUN device; this process carries every packet from one to the other, and may lose, delay, slow down,
damage or hold up what passes. A damaged packet has a byte changed and its checksum left, so whoever receives it drops
it. It prints a line when both ends are there, and ends with its stdin. Needs the standard library alone.
"""

import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
HEADERS = 52  # IPv4 and TCP with timestamps: what is damaged lies behind them
MOST = 65_536
FLAP_S = 0.25  # a wire that flaps is up and down within this


class Wire:
    """Packets on their way, in the order in which they arrive."""

    def __init__(self, ends: tuple[int, int]) -> None:
        self.ends = ends
        self.loss = self.corrupt = self.delay_s = self.down = 0.0
        self.bytes_per_s = float("inf")
        self.chance = random.Random(0)  # noqa: S311 - no secret
        self._way: list[tuple[float, int, int, bytes]] = []
        self._count, self._free_s = 0, [0.0, 0.0]

    def carry(self) -> None:
        """Until stdin ends."""
        for end in self.ends:
            os.set_blocking(end, False)
        while True:
            now = time.monotonic()
            wait = max(0.0, self._way[0][0] - now) if self._way else None
            ready = select.select([0, *self.ends], [], [], wait)[0]
            if 0 in ready:
                line = sys.stdin.readline()
                if not line:
                    return
                vars(self).update(json.loads(line))
            for place, end in enumerate(self.ends):
                if end in ready:
                    try:
                        packet = os.read(end, MOST)
                    except OSError:  # the network that it was in has ended
                        return
                    self.take(packet, 1 - place, time.monotonic())
            self.deliver(time.monotonic())

    def take(self, packet: bytes, to: int, now: float) -> None:
        """A packet for the end `to`, sent now."""
        is_down = now % FLAP_S < self.down * FLAP_S
        if is_down or self.chance.random() < self.loss:
            return
        if len(packet) > HEADERS and self.chance.random() < self.corrupt:
            packet = packet[:-1] + bytes([packet[-1] ^ 0xFF])
        self._free_s[to] = max(self._free_s[to], now) + len(packet) / self.bytes_per_s
        self._count += 1
        heapq.heappush(self._way, (self._free_s[to] + self.delay_s, self._count, to, packet))

    def deliver(self, now: float) -> None:
        """All packets that are due."""
        while self._way and self._way[0][0] <= now:
            _, _, to, packet = heapq.heappop(self._way)
            try:
                os.write(self.ends[to], packet)
            except OSError:  # a device that is down, or full: so are packets lost
                continue


def opened(name: str) -> int:
    """A new TUN device."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return end


if __name__ == "__main__":
    wire = Wire((opened(sys.argv[1]), opened(sys.argv[2])))
    os.write(1, b"ready\n")
    wire.carry()
