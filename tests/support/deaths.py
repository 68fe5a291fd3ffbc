"""Kills a federation, or one party of it, at every write of one database, and tells whether the week survives.

    $ python -m tests.support.deaths ROOT      # then, line by line, what is wanted:
    all provider 1 0 1                 # in the second week, every point; all are in the process that is killed
    alone tenant 0 0 4                 # in the first week, every fourth point; only tenant 0 dies, the others go on
    twice SEED 1 12                    # twelve second weeks in which two parties die, one after the other

The points are counted, not chosen: before and after each statement that writes and each commit of the victim's
database. A process is forked for each one, works on a copy of the federation's folder and is ended there by SIGKILL;
then everybody is opened from what is on disk, the week is held to its end, and what must hold of it is looked at. Each
line is answered by one JSON object. With `forgetful` as its last word one tenant does not keep what it sent, which must
be seen. It is a program of its own since it forks: it has no threads.
"""

import gc
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection as PipeEnd
from pathlib import Path
from typing import Any, NoReturn

import sqlalchemy as sa

from crypto.errors import PharoahError, Unreachable
from crypto.ids import RoundId
from federation.base import sqlite
from federation.protocol.queries import Query
from provider_server.rounds.store.store import Store
from provider_server.rounds.week import MaskHolder
from simulation.run.federation import Federation
from tenant_client.rounds.tenant import Tenant
from tests.support.changing import replace
from tests.support.federations import COHORT, WEEKS, Grounds, Window, Witness, begin, complaints, fail, hold, welcome

TRUSTEE = 3  # the one of five that signs and masks
VICTIMS = {"provider": "provider/provider.db", "tenant": "tenants/000/tenant.db", "trustee": f"trustees/{TRUSTEE}.db"}
WRITE = re.compile(r"\s*(INSERT|UPDATE|DELETE|COMMIT)(?:.*?(?:INTO|UPDATE|FROM) (\w+)| (\w+))?", re.DOTALL)

Die = Callable[["Scene", Path, int], list[str]]


@dataclass
class Fate:
    """Counts the writes to one database; at number `until`, from 1, the process ends."""

    path: Path
    until: int
    passed: list[str] = field(default_factory=list)

    def meet_at(self, path: Path, moment: str, statement: str) -> None:
        """The same for whichever database; others than its own are none of it."""
        if path == self.path:
            self.meet(moment, statement)

    def meet(self, moment: str, statement: str) -> None:
        """Passes one point, or ends there; what only reads is none."""
        if written := WRITE.match(statement):
            self.passed.append(" ".join([moment, *filter(None, written.groups())]))
            if len(self.passed) == self.until:
                os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def watching(meet: Callable[[Path, str, str], None]) -> Iterator[None]:
    """Within it, databases of tenants and trustees that are opened tell of each statement, before and after it."""

    class Mortal(sqlite.Connection):
        def __init__(self, path: str, **options: Any) -> None:
            super().__init__(path, **options)
            self._path = Path(path)

        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            return self._met(statement, lambda: super(Mortal, self).execute(statement, *values))

        def executemany(self, statement: str, *values: Any) -> sqlite3.Cursor:
            return self._met(statement, lambda: super(Mortal, self).executemany(statement, *values))

        def _met(self, statement: str, run: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
            meet(self._path, "before", statement)
            done = run()
            meet(self._path, "after", statement)
            return done

    real = sqlite.Connection
    vars(sqlite)["Connection"] = Mortal
    try:
        yield
    finally:
        vars(sqlite)["Connection"] = real


def watch_store(store: Store, meet: Callable[[str, str], None]) -> None:
    """The same for the provider's database."""
    engine = store._engine
    commit = engine.dialect.do_commit

    def meeting(moment: str) -> Callable[..., None]:
        return lambda _connection, _cursor, statement, *_more: meet(moment, statement)

    def do_commit(connection: Any) -> None:
        meet("before", "COMMIT")
        commit(connection)
        meet("after", "COMMIT")

    sa.event.listen(engine, "before_cursor_execute", meeting("before"))
    sa.event.listen(engine, "after_cursor_execute", meeting("after"))
    vars(engine.dialect)["do_commit"] = do_commit


# ---- a week in which somebody dies -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A federation below `root`, before one of its weeks, and who is killed in it."""

    root: Path
    grounds: Grounds
    window: Window
    role: str
    forgetful: bool = False

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """The folder of a new copy."""
        place = self.root / "copy"
        shutil.copytree(self.root / "before", place)
        try:
            yield place
        finally:
            shutil.rmtree(place)


def a_scene(root: Path, tenants: int, role: str, week: int, *, forgetful: bool = False) -> Scene:
    """A new federation before its first week (0), or its second (1)."""
    before, window = root / "before", WEEKS[week]
    grounds = Grounds.founded(before, tenants)
    with grounds.opened(before) as federation:
        for number in range(tenants):
            fresh = window == WEEKS[0] and number == 0 and role != "provider"
            if not fresh:  # else its first leases, with the trustees' work on them, are part of the scene
                begin(federation, number)
                fail(federation, number)
        if week:
            hold(federation, WEEKS[0])
            for number in range(tenants):
                begin(federation, number, window)
    return Scene(root, grounds, window, role, forgetful)


def jobs(scene: Scene, federation: Federation) -> None:
    """What happens in the week before the round; done already, it changes nothing."""
    if scene.role != "provider":
        begin(federation, 0, scene.window)
        fail(federation, 0)
    welcome(federation)


def all_die(scene: Scene, place: Path, until: int) -> list[str]:
    """The week in a process that is killed at a point of the victim's database; the points passed, if it lived."""
    fate = Fate(place / VICTIMS[scene.role], until)

    def live() -> list[str]:
        with watching(fate.meet_at), scene.grounds.opened(place) as federation:
            if scene.role == "provider":
                watch_store(federation.provider.store, fate.meet)
            jobs(scene, federation)
            _hold(scene, place, federation)
        return fate.passed

    return _in_a_process(live)


def _hold(scene: Scene, place: Path, federation: Federation) -> None:
    witness = Witness(place / "witness")
    hold(federation, scene.window, witness.answerers(federation), witness.trustees(federation.trustees))


def _in_a_process(live: Callable[[], list[str]]) -> list[str]:
    reader, writer = os.pipe()
    if not (child := os.fork()):
        ended = 1
        try:
            os.write(writer, json.dumps(live()).encode())
            ended = 0
        finally:
            os._exit(ended)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a week ended with {status}")
    passed: list[str] = json.loads(text or "[]")
    return passed


def one_dies(scene: Scene, place: Path, until: int) -> list[str]:
    """The week in which only the victim is killed at a point; the points that it passed, if it lived."""
    with scene.grounds.opened(place) as federation:
        jobs(scene, federation)
    victim = Alone(scene, place, until)  # forked while no database is open here
    with scene.grounds.opened(place) as federation:
        witness = Witness(place / "witness")
        answers, trustees = witness.answerers(federation), list[MaskHolder](federation.trustees)
        if scene.role == "tenant":
            answers[0] = witness.answerer(0, victim.answer)
        else:
            trustees[TRUSTEE - 1] = victim
        with suppress(Unreachable) if scene.role == "trustee" else nullcontext():  # the round waits for it
            hold(federation, scene.window, answers, witness.trustees(trustees))
    return victim.end()


class Alone:
    """Tenant 0 or a trustee in a process of its own, which may be killed; asked after that, it is `Unreachable`."""

    def __init__(self, scene: Scene, place: Path, until: int) -> None:
        self.index = TRUSTEE
        self._end, theirs = Pipe()
        self._child = os.fork()
        if not self._child:
            try:
                _serve(scene, place, Fate(place / VICTIMS[scene.role], until), theirs)
            finally:
                os._exit(1)
        theirs.close()

    def answer(self, verb: Query, payload: bytes) -> bytes:
        """As a tenant."""
        return bytes(self._ask("answer", verb, payload))

    def follow(self, update: bytes) -> bytes:
        """As a trustee."""
        return bytes(self._ask("follow", update))

    def endorse(self, request: bytes) -> bytes:
        """As a trustee."""
        return bytes(self._ask("endorse", request))

    def unmask(self, call: bytes) -> bytes:
        """As a trustee."""
        return bytes(self._ask("unmask", call))

    def end(self) -> list[str]:
        """Ends the process; the points that it passed, or none if it was killed."""
        passed: list[str] = []
        with suppress(Unreachable):
            passed = self._ask("passed")
        self._end.close()
        os.waitpid(self._child, 0)
        return passed

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            self._end.send((method, arguments))
            said = self._end.recv()
        except (EOFError, OSError) as error:
            raise Unreachable(f"{method}: the process is gone") from error
        if isinstance(said, PharoahError):
            raise said
        return said


def _serve(scene: Scene, place: Path, fate: Fate, calls: PipeEnd) -> NoReturn:
    with watching(fate.meet_at):
        tenant = scene.role == "tenant"
        party: Any = scene.grounds.tenant(place, 0) if tenant else scene.grounds.trustee(place, TRUSTEE)
    while True:
        method, arguments = calls.recv()
        if method == "passed":
            calls.send(fate.passed)
            os._exit(0)
        try:
            calls.send(getattr(party, method)(*arguments))
        except PharoahError as error:
            calls.send(error)


# ---- matrices --------------------------------------------------------------------------------------------------------


def matrix(scene: Scene, die: Die, remainder: int, divisor: int) -> dict[str, Any]:
    """Dies at every point whose number, from 1, leaves `remainder` when divided by `divisor`."""
    with scene.copy() as place:
        points = die(scene, place, 0)
    chosen = [until for until in range(1, len(points) + 1) if until % divisor == remainder]
    missing = frozenset({0} if die is one_dies and scene.role == "tenant" else ())
    found, died = [], 0
    for until in chosen:
        with scene.copy() as place:
            died += not die(scene, place, until)
            found += [f"{until}, {points[until - 1]}: {what}" for what in survives(scene, place, missing)]
    return {"points": points, "chosen": len(chosen), "died": died, "complaints": found}


def survives(scene: Scene, place: Path, missing: frozenset[int] = frozenset()) -> Iterator[str]:
    """Opens everybody, holds the week to its end and looks; where somebody missed it, holds the next one too."""
    with scene.grounds.opened(place) as federation:
        if scene.forgetful:
            _forget(federation.tenants[0])
        jobs(scene, federation)
        _hold(scene, place, federation)
        yield from complaints(federation, scene.window, Witness(place / "witness").seen(), missing)
        if missing:
            later = replace(scene, window=WEEKS[WEEKS.index(scene.window) + 1])
            _hold(later, place, federation)
            yield from complaints(federation, later.window, Witness(place / "witness").seen())


def _forget(tenant: Tenant) -> None:
    """Takes a tenant's memory of what it sent."""

    def keeps_nothing(_round_id: RoundId, _signed_plan: bytes, message: bytes) -> bytes:
        return message

    vars(tenant.outbox).update(answer=lambda *_: None, keep=keeps_nothing)


def twice(root: Path, seed: int, week: int, times: int) -> dict[str, Any]:
    """Weeks in which the provider dies at one random point and a tenant or trustee at another, in either order."""
    generator = random.Random(seed)
    scene = a_scene(root, COHORT, "provider", week)
    points = {}
    for role in VICTIMS:
        with scene.copy() as place:
            points[role] = len(all_die(replace(scene, role=role), place, 0))
    found, died = [], 0
    for _ in range(times):
        roles = ["provider", generator.choice(["tenant", "trustee"])]
        generator.shuffle(roles)
        fates = [(role, generator.randint(1, points[role])) for role in roles]
        with scene.copy() as place:
            died += sum(not all_die(replace(scene, role=role), place, until) for role, until in fates)
            found += [f"{fates}: {what}" for what in survives(scene, place)]
    return {"points": points, "died": died, "complaints": found}


def asked(root: Path, what: str, *options: str) -> dict[str, Any]:
    """The matrix that a line asks for."""
    if what == "twice":
        seed, week, times = map(int, options)
        return twice(root, seed, week, times)
    role, week, remainder, divisor = options[0], *map(int, options[1:4])
    alone = what == "alone"
    tenants = COHORT + alone  # a round must be possible without the one that dies
    scene = a_scene(root, tenants, role, week, forgetful="forgetful" in options)
    return matrix(scene, one_dies if alone else all_die, remainder, divisor)


def main(root: Path) -> None:
    """Answers line after line."""
    gc.freeze()  # what is loaded is not copied at every fork
    for number, line in enumerate(sys.stdin):
        json.dump(asked(root / str(number), *line.split()), sys.stdout)
        sys.stdout.write("\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
