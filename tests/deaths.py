"""Kills a federation, or one party of it, at every write of one database, and tells whether the week survives.

    python -m tests.deaths ROOT all provider 3 0 1      # horizon 3, every point
    python -m tests.deaths ROOT alone tenant 1 0 1      # no series; only tenant 0 dies
    python -m tests.deaths ROOT twice SEED 3 12         # twelve weeks in which two die

The points are counted, not chosen: before and after each statement that writes and each commit of the victim's
database. A process is forked for each one, works on a copy of the federation's folder and is ended there by SIGKILL;
then everybody is opened from what is on disk, the week is held to its end, and what must hold of it is looked at. Out
comes one JSON object. A federation in which a tenant forgets what it sent (`forgetful`) shows that the look sees.
"""

import json
import os
import random
import shutil
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection as PipeEnd
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from crypto.errors import PharoahError, Unreachable
from crypto.plan import Plan
from crypto.verbs import Verb
from provider_server.provider import Provider
from simulation.federation import Federation
from tenant_client import database, trustee as trustee_module
from tenant_client.tenant import Tenant
from tests.federations import WEEKS, Answerer, Grounds, Window, Witness, begin, complaints, fail, hold, welcome

TENANTS = 4
VICTIM = {"tenant": "tenants/000/tenant.db", "trustee": "trustees/5.db", "provider": "provider/provider.db"}
VICTIM_TRUSTEE = 5
WRITES = ("INSERT", "UPDATE", "DELETE", "COMMIT")


@dataclass
class Fate:
    """Counts the writes of one database; at number `until`, from 1, the process ends."""

    path: Path
    until: int = 0
    passed: list[str] = field(default_factory=list)

    def meet(self, moment: str, statement: str) -> None:
        """Passes one point, or ends there."""
        words = statement.split()
        if not words or words[0] not in WRITES:
            return
        self.passed.append(f"{moment} {' '.join(words[:4])}")
        if len(self.passed) == self.until:
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def watching(fate: Fate) -> Iterator[None]:
    """Within it every connection that is opened to the database of `fate` meets it."""

    class Mortal(database.Connection):
        """Of all connections only the victim's is counted."""

        def __init__(self, path: str, **options: Any) -> None:
            super().__init__(path, **options)
            self._mortal = Path(path) == fate.path

        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            return self._met(statement, lambda: super(Mortal, self).execute(statement, *values))

        def executemany(self, statement: str, *values: Any) -> sqlite3.Cursor:
            return self._met(statement, lambda: super(Mortal, self).executemany(statement, *values))

        def _met(self, statement: str, run: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
            if not self._mortal:
                return run()
            fate.meet("before", statement)
            done = run()
            fate.meet("after", statement)
            return done

    real = database.Connection
    database.Connection = trustee_module.Connection = Mortal  # type: ignore[misc]
    try:
        yield
    finally:
        database.Connection = trustee_module.Connection = real  # type: ignore[misc]


def watch_store(provider: Provider, fate: Fate) -> None:
    """The same for the provider's database, which SQLAlchemy holds."""
    engine = provider._store._engine
    commit = engine.dialect.do_commit

    def before(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        fate.meet("before", statement)

    def after(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        fate.meet("after", statement)

    def do_commit(connection: Any) -> None:
        fate.meet("before", "COMMIT")
        commit(connection)
        fate.meet("after", "COMMIT")

    sa.event.listen(engine, "before_cursor_execute", before)
    sa.event.listen(engine, "after_cursor_execute", after)
    engine.dialect.do_commit = do_commit  # type: ignore[method-assign]


# ---- one week, and its parties in processes of their own -------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A federation before one of its weeks, below `root`, of which copies are made; who is killed in it."""

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


def week(scene: Scene, place: Path, federation: Federation) -> None:
    """All that happens in the week, from wherever it is."""
    witness = Witness(place / "witness")
    if scene.role != "provider":  # there the tenants have begun before: the trustees' work takes time and is theirs
        begin(federation, 0)
    fail(federation, 0)
    welcome(federation)
    hold(federation, scene.window, witness.answerers(federation), witness.trustees(federation.trustees))


def all_die(scene: Scene, place: Path, until: int) -> list[str]:
    """The week in a process that is killed at a point; the points that it passed, if it lived."""
    fate = Fate(place / VICTIM[scene.role], until)

    def live() -> list[str]:
        with ExitStack() as stack:
            if scene.role != "provider":
                stack.enter_context(watching(fate))
            federation = stack.enter_context(scene.grounds.opened(place))
            if scene.role == "provider":
                watch_store(federation.provider, fate)
            week(scene, place, federation)
        return fate.passed

    return in_a_process(live)


def in_a_process(live: Callable[[], list[str]]) -> list[str]:
    """What `live` returns in a forked process; nothing if that was killed; RuntimeError if it ended otherwise."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        ended = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as out:
                json.dump(live(), out)
            ended = 0
        finally:
            os._exit(ended)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return []
    if status:
        raise RuntimeError("a week failed without being killed")
    passed: list[str] = json.loads(text)
    return passed


class Alone:
    """A party in a process of its own, which may be killed while the others live; asked then, it is `Unreachable`."""

    def __init__(self, scene: Scene, place: Path, until: int) -> None:
        self.index = VICTIM_TRUSTEE
        self._end, theirs = Pipe()
        self._child = os.fork()
        if not self._child:
            try:
                self._end.close()
                _serve(scene, place, Fate(place / VICTIM[scene.role], until), theirs)
            finally:
                os._exit(1)
        theirs.close()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the party; what it raises is raised here."""
        try:
            self._end.send((method, arguments))
            said = self._end.recv()
        except (EOFError, OSError) as error:
            raise Unreachable(f"{method}: the process is gone") from error
        if isinstance(said, PharoahError):
            raise said
        return said

    def answer(self, verb: Verb, payload: bytes) -> bytes:
        """A tenant's answer."""
        return bytes(self.ask("answer", verb, payload))

    def follow(self, update: bytes) -> bytes:
        """A trustee's, like the next two."""
        return bytes(self.ask("follow", update))

    def endorse(self, request: bytes) -> bytes:
        """As a trustee."""
        return bytes(self.ask("endorse", request))

    def unmask(self, call: bytes) -> bytes:
        """As a trustee."""
        return bytes(self.ask("unmask", call))

    def end(self) -> list[str]:
        """Ends the process; the points that it passed, or nothing if it was killed at one."""
        try:
            passed: list[str] = self.ask("passed")
        except Unreachable:
            passed = []
        self._end.close()
        os.waitpid(self._child, 0)
        return passed


def _serve(scene: Scene, place: Path, fate: Fate, calls: PipeEnd) -> None:
    with watching(fate):
        party: Any
        if scene.role == "tenant":
            party = scene.grounds.tenant(place, 0)
        else:
            party = scene.grounds.trustee(place, VICTIM_TRUSTEE)
    while True:
        method, arguments = calls.recv()
        if method == "passed":
            calls.send(fate.passed)
            os._exit(0)
        try:
            calls.send(getattr(party, method)(*arguments))
        except PharoahError as error:
            calls.send(error)


def one_dies(scene: Scene, place: Path, until: int) -> list[str]:
    """The week in which one party is killed at a point; the points that it passed, if it lived."""
    witness = Witness(place / "witness")
    with scene.grounds.opened(place) as federation:
        begin(federation, 0)
        fail(federation, 0)
        welcome(federation)
    alone = Alone(scene, place, until)  # forked while no database is open here
    with scene.grounds.opened(place) as federation:
        answers, trustees = witness.answerers(federation), list(federation.trustees)
        if scene.role == "tenant":
            answers[0] = witness.answerer(0, alone.answer)
        else:
            trustees[VICTIM_TRUSTEE - 1] = alone  # type: ignore[call-overload]
        try:
            hold(federation, scene.window, answers, witness.trustees(trustees))
        except Unreachable:
            if scene.role == "tenant":  # without a tenant a week goes on; for a trustee it waits
                raise
    return alone.end()


# ---- matrices --------------------------------------------------------------------------------------------------------


def survives(scene: Scene, place: Path, missing: frozenset[int] = frozenset()) -> list[str]:
    """Opens everybody, holds the week to its end and looks; then the next week must be held as well."""
    with scene.grounds.opened(place) as federation:
        if scene.forgetful:
            _forget(federation.tenants[0])
        week(scene, place, federation)
        return complaints(federation, scene.window, Witness(place / "witness").seen(), missing)


def _forget(tenant: Tenant) -> None:
    """A tenant that does not look for what it sent before."""

    def draws_again(round_id: object, signed_plan: bytes) -> None:
        del round_id, signed_plan

    def keeps_nothing(signed_plan: bytes, plan: Plan, message: bytes) -> bytes:
        del signed_plan, plan
        return message

    tenant._kept = draws_again  # type: ignore[method-assign]
    tenant._keep = keeps_nothing  # type: ignore[method-assign]


def matrix(scene: Scene, die: Callable[[Scene, Path, int], list[str]], every: Sequence[int]) -> dict[str, Any]:
    """Dies at the points whose number, from 1, leaves the remainder every[0] when divided by every[1]."""
    with scene.copy() as place:
        points = die(scene, place, 0)
    found, died = [], 0
    for until in range(1, len(points) + 1):
        if until % every[1] != every[0]:
            continue
        with scene.copy() as place:
            lived = die(scene, place, until)
            died += not lived
            missing = frozenset({0}) if die is one_dies and scene.role == "tenant" else frozenset[int]()
            found += [f"{points[until - 1]} ({until}): {what}" for what in survives(scene, place, missing)]
    return {"points": Counter(points), "died": died, "complaints": found}


def twice(root: Path, seed: int, horizon: int, weeks: int) -> dict[str, Any]:
    """Weeks in which the provider is killed at one random point, and at another one a tenant or a trustee."""
    generator = random.Random(seed)
    scenes = {role: a_scene(root / role, role, horizon) for role in VICTIM}
    points = {}
    for role, scene in scenes.items():
        with scene.copy() as place:
            points[role] = len(all_die(scene, place, 0))
    found, died = [], 0
    for _ in range(weeks):
        order = [("provider", scenes["provider"]), (other := generator.choice(["tenant", "trustee"]), scenes[other])]
        generator.shuffle(order)
        first = order[0][1]
        with first.copy() as place:
            fates = []
            for role, scene in order:
                until = generator.randint(1, points[role])
                shared = Scene(first.root, first.grounds, scene.window, role)
                fates.append(f"{role} at {until}")
                died += not all_die(shared, place, until)
            found += [f"{', then '.join(fates)}: {what}" for what in survives(first, place)]
    return {"points": points, "died": died, "complaints": found}


def a_scene(root: Path, role: str, horizon: int, *, forgetful: bool = False) -> Scene:
    """A new federation, before its first week; in a series, before its second."""
    before = root / "before"
    grounds = Grounds.founded(before, TENANTS, horizon=horizon)
    with grounds.opened(before) as federation:
        for number in range(TENANTS):
            if number or role == "provider" or horizon > 1:
                begin(federation, number)
                fail(federation, number)
        if horizon > 1:
            hold(federation, WEEKS[0])
    return Scene(root, grounds, WEEKS[1] if horizon > 1 else WEEKS[0], role, forgetful)


def main(root: Path, what: str, *options: str) -> dict[str, Any]:
    """The matrix that the command line asks for."""
    if what == "twice":
        seed, horizon, weeks = map(int, options)
        return twice(root, seed, horizon, weeks)
    role, horizon, *every = options[0], int(options[1]), *map(int, options[2:4])
    scene = a_scene(root, role, horizon, forgetful="forgetful" in options)
    return matrix(scene, one_dies if what == "alone" else all_die, every)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *sys.argv[2:])))  # noqa: T201
