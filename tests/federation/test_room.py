"""Who loses a place when they are short, and when it ends: the counting alone, on an event loop of the test's own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from crypto.ids import VerifyKey
from federation.transport.places import Caller, NoPlace, NoTime, Place, Room, address

KEY, OTHER_KEY = VerifyKey(bytes([1] * 32)), VerifyKey(bytes([2] * 32))
SHORT_S = 0.05


def stranger(host: int, port: int = 1) -> Caller:
    return Caller(f"ipv4:192.0.2.{host}:{port}", lambda: None)


def known(key: VerifyKey = KEY, host: int = 1) -> Caller:
    return Caller(f"ipv4:192.0.2.{host}:1", lambda: key)


class Crowd:
    """Callers who take places one after the other and hold them until they lose them."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.places: list[Place] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def enter(self, caller: Caller, sent_bytes: int = 0, *, is_kept: bool = False) -> None:
        """Raises NoPlace if there is none for the caller."""
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def hold() -> None:
            try:
                with self._room.place(caller) as place:
                    place.sent_bytes, place.is_kept = sent_bytes, is_kept
                    self.places.append(place)
                    entered.set_result(None)
                    await asyncio.get_running_loop().create_future()
            except NoPlace as error:
                if entered.done():
                    raise
                entered.set_exception(error)

        self._tasks.append(asyncio.create_task(hold()))
        await entered

    async def lost(self) -> dict[int, Exception]:
        """Which of those who had a place have lost it, by the order in which they came, and what they heard."""
        await asyncio.sleep(0.01)
        ended = {number: task for number, task in enumerate(self._tasks) if task.done() and task.exception()}
        return {number: error for number, task in ended.items() if isinstance(error := task.exception(), Exception)}


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await scene()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(whole())


async def crowd_of(callers: Sequence[Caller], places: int = 4, **settings: int) -> Crowd:
    crowd = Crowd(Room("callers", places, 1000.0, **settings))
    for caller in callers:
        await crowd.enter(caller)
    return crowd


def test_a_newcomer_takes_the_place_of_the_oldest() -> None:
    async def scene() -> None:
        crowd = await crowd_of([stranger(1, port) for port in range(6)])
        assert set(await crowd.lost()) == {0, 1}
        assert all(isinstance(error, NoPlace) for error in (await crowd.lost()).values())

    run(scene)


def test_whoever_holds_the_most_gives_up_one() -> None:
    async def scene() -> None:
        crowd = await crowd_of([stranger(1), stranger(2), stranger(3), stranger(3), stranger(4)])
        assert set(await crowd.lost()) == {2}

    run(scene)


def test_a_thousand_from_one_address_push_out_one_another() -> None:
    async def scene() -> None:
        crowd = await crowd_of([stranger(1), *(stranger(2, port) for port in range(1000))], places=10)
        assert 0 not in await crowd.lost()
        assert len(await crowd.lost()) == 991

    run(scene)


def test_the_slowest_goes_first() -> None:
    async def scene() -> None:
        crowd = await crowd_of([], places=3)
        for sent in (70_000, 10_000, 70_000):
            await crowd.enter(stranger(1), sent)
        await crowd.enter(stranger(1))
        assert set(await crowd.lost()) == {1}

    run(scene)


def test_strangers_give_way_to_those_who_are_known_and_never_the_other_way_round() -> None:
    async def scene() -> None:
        crowd = await crowd_of([known(), stranger(1), known(), known(), known(OTHER_KEY)])
        assert set(await crowd.lost()) == {1}
        with pytest.raises(NoPlace):
            await crowd.enter(stranger(2))
        assert set(await crowd.lost()) == {1}
        await crowd.enter(known(OTHER_KEY))
        assert set(await crowd.lost()) == {0, 1}  # the key with the most places, wherever it calls from

    run(scene)


def test_strangers_have_their_share_and_no_more() -> None:
    async def scene() -> None:
        crowd = await crowd_of([known(), stranger(1), stranger(2), stranger(3)], for_strangers=2)
        assert set(await crowd.lost()) == {1}
        await crowd.enter(known(OTHER_KEY))
        assert set(await crowd.lost()) == {1}

    run(scene)


def test_what_has_begun_is_not_ended() -> None:
    async def scene() -> None:
        crowd = await crowd_of([], places=2, for_strangers=1)
        await crowd.enter(stranger(1), is_kept=True)
        with pytest.raises(NoPlace):
            await crowd.enter(stranger(2))
        await crowd.enter(known(), is_kept=True)
        with pytest.raises(NoPlace):
            await crowd.enter(known(OTHER_KEY))
        assert not await crowd.lost()

    run(scene)


def test_a_place_lasts_as_long_as_its_room_says() -> None:
    async def scene() -> None:
        crowd = Crowd(Room("callers", 4, SHORT_S))
        await crowd.enter(stranger(1))
        await crowd.enter(stranger(2), is_kept=True)
        await asyncio.sleep(1.0)
        (number, error), *others = (await crowd.lost()).items()
        assert (number, type(error), others) == (0, NoTime, [])

    run(scene)


def test_a_place_is_free_when_its_caller_has_gone() -> None:
    async def scene() -> None:
        room = Room("callers", 1, 1000.0)
        for port in range(3):
            with room.place(stranger(1, port)):
                assert len(room) == 1
        assert len(room) == 0

    run(scene)


def test_who_is_cancelled_by_others_stays_cancelled() -> None:
    async def scene() -> None:
        async def hold() -> None:
            with Room("callers", 1, 1000.0).place(stranger(1)):
                await asyncio.get_running_loop().create_future()

        held = asyncio.create_task(hold())
        await asyncio.sleep(0)
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held

    run(scene)


def test_nobody_is_asked_for_an_introduction_while_there_are_places() -> None:
    def never() -> VerifyKey | None:
        raise AssertionError("it costs a signature")

    async def scene() -> None:
        await crowd_of([Caller(f"ipv4:192.0.2.1:{port}", never) for port in range(4)])

    run(scene)


@pytest.mark.parametrize(
    ("peer", "counted"),
    [
        ("ipv4:192.0.2.7:4711", "192.0.2.7"),
        ("ipv6:%5B2001:db8::7%5D:4711", "2001:db8::/64"),
        ("ipv6:%5B2001:db8:0:0:ffff::1%5D:80", "2001:db8::/64"),
        ("ipv6:%5B2001:db8:0:1::1%5D:80", "2001:db8:0:1::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:80", "fe80::/64"),
        ("unix:", ""),
    ],
)
def test_strangers_are_counted_by_what_one_subscriber_has(peer: str, counted: str) -> None:
    assert address(peer) == counted
