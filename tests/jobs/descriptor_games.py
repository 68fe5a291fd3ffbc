"""Jobs that close, replace and use up descriptors: descriptor_games.py GAME..., each in a forked rank of its own.

Each begins to train behind the hook, plays its game, and then writes files and sockets of its own while it trains on.
It ends with 1 if one of them does not hold exactly what was written into it.
"""

import os
import random
import resource
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from tenant_client.doctor.run.hook import answers, hook as hooks
from tenant_client.doctor.run.hook.answers import STACK_SIGNAL
from tenant_client.doctor.run.hook.progress import file_name, read
from tenant_client.doctor.run.syndromes.stacks import listens

RUN_DIR = Path(os.environ["PHAROAH_RUN_DIR"])
STEPS = 24  # a sample is taken from the tenth on
SELDOM = 0.02
HIGHEST = 200
Descriptors = dict[int, "File | End"]


class Trainer:
    """One model; every step is reported at once."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.steps = 0

    def step(self) -> None:
        """One iteration, which the hook follows."""
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()
        self.steps += 1


class File:
    """A file of the job, by whatever descriptors, and what it has to hold."""

    def __init__(self, path: Path) -> None:
        self.path, self.expected = path, b""

    def open(self) -> int:
        """Another descriptor of it."""
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, descriptor: int, data: bytes) -> None:
        """Writes the data behind the rest."""
        assert os.write(descriptor, data) == len(data)
        self.expected += data

    def check(self, descriptor: int) -> None:
        """AssertionError if the descriptor is another file's, or the file does not hold what it has to."""
        assert os.path.samestat(os.fstat(descriptor), self.path.stat())
        assert self.path.read_bytes() == self.expected


class End:
    """One end of a pair of sockets of the job, and what has to be waiting for it."""

    def __init__(self) -> None:
        self.peer: End = self
        self.waiting = b""
        self.identity = 0

    def write(self, descriptor: int, data: bytes) -> None:
        """Sends the data, while the peer is there."""
        try:
            assert os.write(descriptor, data) == len(data)
            self.peer.waiting += data
        except (BrokenPipeError, BlockingIOError):
            pass

    def check(self, descriptor: int) -> None:
        """AssertionError if the descriptor is another one's, or another message than the peer's is waiting."""
        assert os.fstat(descriptor).st_ino == self.identity
        with socket.socket(fileno=os.dup(descriptor)) as one:
            try:
                found = one.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except (BlockingIOError, ConnectionResetError):
                found = b""
            assert found == self.waiting


def a_pair(opened: Descriptors) -> None:
    """Opens two sockets that are connected."""
    pair, ends = socket.socketpair(), (End(), End())
    ends[0].peer, ends[1].peer = ends[1], ends[0]
    for one, end in zip(pair, ends, strict=True):
        one.settimeout(0.0)
        descriptor = one.detach()
        end.identity = os.fstat(descriptor).st_ino
        opened[descriptor] = end


def in_use() -> list[int]:
    """All open descriptors but the one that lists them."""
    return sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.exists())


def asks_for_stacks() -> Callable[[], None]:
    """What asks the process as a whole for stacks; nothing if it does not listen: the signal would end it."""
    process = os.getpid()
    return (lambda: os.kill(process, STACK_SIGNAL)) if listens(process) else lambda: None


def trained_on(trainer: Trainer, fill: Callable[[], list[int]] = list) -> None:
    """Trains while files and sockets are written that got the lowest numbers; all have to stay as they are.

    `fill` takes descriptors, which are there for half of the steps.
    """
    opened: Descriptors = {}
    for number in range(4):
        file = File(RUN_DIR / f"checkpoint-{os.getpid()}-{number}")
        opened[file.open()] = file
    a_pair(opened)
    ask, filled = asks_for_stacks(), fill()
    for step in range(STEPS):
        for descriptor, one in opened.items():
            one.write(descriptor, b"%d of %d;" % (step, descriptor))
        trainer.step()
        ask()
        while filled and 2 * step > STEPS:
            os.close(filled.pop())
    for descriptor, one in opened.items():
        one.check(descriptor)


def closes_a_range(trainer: Trainer) -> None:
    """As daemons do."""
    os.closerange(3, 65536)
    trained_on(trainer)


def closes_what_is_open(trainer: Trainer) -> None:
    """As sandboxes do; standard streams too, so that a file gets their numbers."""
    for descriptor in in_use():
        os.close(descriptor)
    trained_on(trainer)


def replaces_by_a_file(trainer: Trainer) -> None:
    """A file of the job under every number."""
    file = File(RUN_DIR / f"everywhere-{os.getpid()}")
    descriptor = file.open()
    for number in range(3, HIGHEST):
        os.dup2(descriptor, number)
    file.write(descriptor, b"as it was")
    trained_on(trainer)
    for number in range(3, HIGHEST):
        file.check(number)


def replaces_by_a_socket(trainer: Trainer) -> None:
    """A socket of the job under every number."""
    opened: Descriptors = {}
    a_pair(opened)
    (first, end), (second, _) = opened.items()
    for number in {*range(3, HIGHEST)} - {second}:
        os.dup2(first, number)
    trained_on(trainer)
    for number in {*range(3, HIGHEST)} - {second}:
        end.check(number)


def forks(trainer: Trainer) -> None:
    """A child that closes everything, and writes a file while it steps."""
    if (child := os.fork()) == 0:
        ended(lambda: closes_a_range(trainer))
    assert os.waitpid(child, 0)[1] == 0
    trained_on(trainer)


def spawns(trainer: Trainer) -> None:
    """A helper process that inherits our variables, but no descriptor; it has its own files under these numbers."""
    import multiprocessing

    child = multiprocessing.get_context("spawn").Process(target=spawned)
    child.start()
    child.join()
    assert child.exitcode == 0
    trained_on(trainer)


def spawned() -> None:
    """What the helper does."""
    trained_on(Trainer())


def uses_all(trainer: Trainer) -> None:
    """All that 16 allow: nobody can open anything for a while."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    trained_on(trainer, all_that_are_left)


def all_that_are_left() -> list[int]:
    """Takes them."""
    taken: list[int] = []
    while True:
        try:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return taken


class Moves:
    """Moves at random with the descriptors from 3 on, of which `opened` are the job's."""

    def __init__(self, trainer: Trainer, rng: random.Random) -> None:
        self.trainer, self.rng = trainer, rng
        self.opened: Descriptors = {}
        self.files = 0
        self.moves = (*[self.write] * 4, *[trainer.step] * 4, self.open, self.connect, self.close, self.close_some)
        self.moves += (self.replace, self.replace, self.check, asks_for_stacks())
        self.seldom = (self.fork, self.close_all)

    def play(self, moves: int) -> None:
        """So many of them."""
        for _ in range(moves):
            self.rng.choice(self.seldom if self.rng.random() < SELDOM else self.moves)()
        self.check()

    def number(self) -> int:
        """One in the reach of the moves."""
        return self.rng.randrange(3, HIGHEST)

    def mine(self) -> int:
        """One of the job's own; -1 if it has none."""
        return self.rng.choice(sorted(self.opened)) if self.opened else -1

    def write(self) -> None:
        """Into one of the job's own."""
        if (descriptor := self.mine()) >= 0:
            self.opened[descriptor].write(descriptor, self.rng.randbytes(self.rng.randrange(1, 64)))

    def open(self) -> None:
        """One more file."""
        if len(self.opened) < HIGHEST // 2:
            file, self.files = File(RUN_DIR / f"random-{os.getpid()}-{self.files}"), self.files + 1
            self.opened[file.open()] = file

    def connect(self) -> None:
        """Two more sockets."""
        if len(self.opened) < HIGHEST // 2:
            a_pair(self.opened)

    def close(self) -> None:
        """One of the job's own."""
        if (descriptor := self.mine()) >= 0:
            self.closed(descriptor, descriptor + 1)
            os.close(descriptor)

    def close_some(self) -> None:
        """A range, whosever they are."""
        begin = self.number()
        end = begin + self.rng.randrange(1, 16)
        self.closed(begin, end)
        os.closerange(begin, end)

    def close_all(self) -> None:
        """All of them."""
        self.closed(3, 65536)
        os.closerange(3, 65536)

    def replace(self) -> None:
        """Another number, whosever it is, becomes one of the job's own."""
        descriptor, number = self.mine(), self.number()
        if descriptor >= 0 and number != descriptor:
            self.closed(number, number + 1)
            os.dup2(descriptor, number)
            self.opened[number] = self.opened[descriptor]

    def closed(self, begin: int, end: int) -> None:
        """Forgets these, after a last look at them."""
        for descriptor in [one for one in self.opened if begin <= one < end]:
            self.opened[descriptor].check(descriptor)
            del self.opened[descriptor]

    def check(self) -> None:
        """All of the job's own are as they have to be."""
        for descriptor, one in self.opened.items():
            one.check(descriptor)

    def fork(self) -> None:
        """A child that closes what it got, and steps."""
        if (child := os.fork()) == 0:
            os.closerange(3, 65536)
            ended(self.trainer.step)
        assert os.waitpid(child, 0)[1] == 0


def at_random(trainer: Trainer, seed: str, moves: str) -> None:
    """Any of this in any order."""
    Moves(trainer, random.Random(seed)).play(int(moves))


def ended(work: Callable[[], object]) -> NoReturn:
    """Ends this process after the work, with 1 if it failed; why is in a file, as it may have no standard error."""
    try:
        work()
    except BaseException:  # noqa: BLE001  # it is written down
        os.closerange(3, 256)
        (RUN_DIR / f"failed-{os.getpid()}").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def played(game: str, arguments: list[str]) -> None:
    """One game in this process, and whether the hook has gone on where it could."""
    trainer = Trainer()
    trainer.step()
    before = in_use()
    trainer.step()
    assert in_use() == before == BEFORE, "the hook keeps a descriptor"
    globals()[game](trainer, *arguments)
    trainer.step()
    assert hooks.current_hook().closed is False
    written = read(RUN_DIR / file_name(int(os.environ["RANK"])))
    assert written is not None
    assert (written.pid, written.step) == (os.getpid(), trainer.steps)
    hooks.current_hook().close()


if __name__ == "__main__":
    hooks.REPORT_EVERY_S, answers._LOOK_S = 0.0, 0.01
    BEFORE = in_use()
    for rank, told in enumerate(sys.argv[1:]):
        name, *values = told.split(":")
        if (child := os.fork()) == 0:
            os.environ["RANK"] = str(rank)
            ended(lambda: played(name, values))  # noqa: B023  # it is called at once
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit((RUN_DIR / f"failed-{child}").read_text())
