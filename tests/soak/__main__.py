"""`python -m tests.soak`: runs a soak for so many minutes, and tells what was lost, what grew and what was alerted."""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from federation.base.clock import date
from federation.protocol.plan import HOURS_PER_WEEK
from tests import needs
from tests.soak.alerts import HELD, Fired, firing
from tests.soak.federation import SETTLE_S, Soaked
from tests.soak.readings import by_role, slope
from tests.soak.story import QUIET, RENEWED_IN_WEEK, Book, Chapter
from tests.support.versions import installed

ROOT = Path(__file__).resolve().parents[2]
TENANTS = 20
PROGRAMS = ("cc", "postgres", "prometheus", "promtool")
HELD_S = 86_400 * int(HELD[:-1])
CERTIFICATE = "PharoahCertificateEnds"


@dataclass(frozen=True)
class Told:
    """A week, and how it went."""

    week: int
    chapter: Chapter
    from_s: float
    until_s: float
    released_s: float | None


@dataclass
class Lost:
    """Everything that must not be."""

    said: list[str] = field(default_factory=list)

    def expect(self, what: str, *, holds: bool) -> None:
        if not holds:
            self.said.append(what)


def main() -> int:
    """The exit status: 1 if anything was lost, or an alert was wrong."""
    asking = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    asking.add_argument("--minutes", type=float, default=60.0)
    asking.add_argument("--tenants", type=int, default=TENANTS)
    asking.add_argument("--out", type=Path, default=ROOT / "out/soak")
    asked = asking.parse_args()
    lacking = sorted({needs.DEBIAN[name] for name in PROGRAMS if needs.find(name) is None})
    if lacking:
        asking.error(f"needs what these packages of Debian add: {', '.join(lacking)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    with ExitStack() as stack:
        room = asked.out / f"{os.getpid()}"
        room.mkdir()
        book = Book(installed(room / "later", protocol=2), stack)
        soaked = Soaked(room, asked.tenants, stack)
        soaked.start(*soaked.trustees, "provider", *(home.name for home in soaked.places.tenant_homes))
        _say(f"{len(soaked.programs)} programs run after {time.monotonic() - began_s:.0f} s")
        soaked.live(SETTLE_S)
        told = list(weeks(soaked, book, began_s + 60 * asked.minutes))
        report = "\n".join(_report(soaked, told, time.monotonic() - began_s, lost := Lost()))
    (asked.out / "report.md").write_text(report + "\n")
    sys.stdout.write(report + "\n")
    return 1 if lost.said else 0


def weeks(soaked: Soaked, book: Book, until_s: float) -> Iterator[Told]:
    """One week after the other."""
    chapters = book.chapters(soaked)
    while time.monotonic() < until_s:
        chapter, from_s = next(chapters), soaked.clocks.now()
        soaked.happen()
        telling = chapter.tell(soaked)
        next(telling)
        soaked.live(0.0 if chapter is QUIET else SETTLE_S)
        soaked.reach_the_round()
        began_s = time.monotonic()
        next(telling, None)
        is_released = soaked.released()
        took_s = time.monotonic() - began_s
        soaked.live(SETTLE_S)
        soaked.read()
        yield Told(soaked.week, chapter, from_s, soaked.clocks.now(), took_s if is_released else None)
        _say(f"week {soaked.week}: {chapter.title}: {f'{took_s:.1f} s' if is_released else 'NOT RELEASED'}")
        soaked.week += 1


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _report(soaked: Soaked, told: list[Told], seconds: float, lost: Lost) -> Iterator[str]:
    yield f"# A soak of {seconds / 60:.0f} minutes"
    yield ""
    tenants = len(soaked.places.tenant_homes)
    yield f"{tenants} tenants, 3 trustees and a provider over {len(told)} weeks of their clocks."
    yield from _lost(soaked, told, lost)
    yield from _grown(soaked)
    yield from _alerts(soaked, told, lost)
    yield from ("", "## Weeks", "", "| week | what happened | released after |", "|---|---|---|")
    for one in told:
        after = "never" if one.released_s is None else f"{one.released_s:.1f} s"
        yield f"| {one.week} | {one.chapter.title} | {after} |"
    yield from ("", "## Warnings in logs", "", "| program | level | event and error | lines |", "|---|---|---|---|")
    for (role, level, what), lines in sorted(soaked.events().items()):
        lost.expect(f"{lines} tracebacks in logs of a {role}", holds=what not in ("exception", "Traceback"))
        yield f"| {role} | {level} | {what} | {lines} |"
    yield from ("", "## Wrong", "", *([f"- {one}" for one in lost.said] or ["Nothing."]))


def _lost(soaked: Soaked, told: list[Told], lost: Lost) -> Iterator[str]:
    releases = {one["round_id"]: one for one in soaked.releases()}
    ends = [one["end_hour"] for one in releases.values()]
    wanted = [soaked.first_hour + (one.week + 1) * HOURS_PER_WEEK for one in told]
    lost.expect(f"{len(wanted)} weeks, released: {len(set(ends) & set(wanted))} of them", holds=sorted(ends) == wanted)
    never = twice = unreleased = 0
    for charges in soaked.charges().values():
        unreleased += sum(1 for round_id, *_ in charges if round_id not in releases)
        for one in told:
            hour = soaked.first_hour + one.week * HOURS_PER_WEEK
            covering = sum(1 for _, start, end in charges if start <= hour < end)
            never, twice = never + (covering == 0), twice + (covering > 1)
    lost.expect(f"{never} weeks of tenants counted in no release", holds=never == 0)
    lost.expect(f"{twice} weeks of tenants charged twice", holds=twice == 0)
    lost.expect(f"{unreleased} charges for rounds that were never released", holds=unreleased == 0)
    tenants = len(soaked.places.tenant_homes)
    full = sum(1 for one in releases.values() if one["contributors"] == tenants)
    yield ""
    yield f"- Weeks released: {len(set(ends) & set(wanted))} of {len(told)}, {full} of them with all tenants at once."
    yield f"- Weeks of tenants: {len(told) * tenants}; in no release {never}, charged twice {twice}."
    yield f"- Charges for rounds without a release: {unreleased}."
    by_itself = ", ".join(f"{name} in week {week} (exit code {code})" for week, name, code in soaked.ended)
    yield f"- Programs that ended by themselves, and were started again: {by_itself or 'none'}."


def _grown(soaked: Soaked) -> Iterator[str]:
    yield from ("", "## Memory and handles", "")
    yield "Growth per hundred weeks, with 95% intervals, in lives of at least nine weeks without the first four."
    yield ""
    yield "| program | MB at the end | MB | handles at the end | handles | threads at the end | lives |"
    yield "|---|---|---|---|---|---|---|"
    for role, readings in by_role(soaked.readings).items():
        last = [one for one in readings if one.week == soaked.week - 1]
        if last:
            memory, handles = slope(readings, "memory"), slope(readings, "handles")
            mb, open_, threads = (max(getattr(one, of) for one in last) for of in ("memory", "handles", "threads"))
            lives = memory.lives if memory else 0
            yield f"| {role} | {mb:.0f} | {memory or '–'} | {open_} | {handles or '–'} | {threads} | {lives} |"


def _alerts(soaked: Soaked, told: list[Told], lost: Lost) -> Iterator[str]:
    fired = firing(soaked.scrapes)
    yield from ("", "## Alerts", "", "| alert | fired | in weeks | expected in weeks |", "|---|---|---|---|")
    may: dict[str, list[Told]] = {}
    for one in told:
        for alert in (*one.chapter.must, *one.chapter.may):
            may.setdefault(alert, []).append(one)
        for alert in one.chapter.must:
            met = any(_meets(each, one) for each in fired if each.alert == alert)
            lost.expect(f"{alert} did not fire in week {one.week}, when {one.chapter.title}", holds=met)
    ending = [one for one in told if RENEWED_IN_WEEK - 3 <= one.week <= RENEWED_IN_WEEK]
    may[CERTIFICATE] = ending
    is_due = any(one.week == RENEWED_IN_WEEK for one in told)
    lost.expect(f"{CERTIFICATE} did not fire", holds=not is_due or any(one.alert == CERTIFICATE for one in fired))
    for alert in sorted({one.alert for one in fired} | {alert for one in told for alert in one.chapter.must}):
        ours = [one for one in fired if one.alert == alert]
        wrong = [one for one in ours if not any(_meets(one, week) for week in may.get(alert, []))]
        for each in wrong:
            lost.expect(f"{alert} fired at {date(each.from_s / 3600)}, and nothing called for it", holds=False)
        seen = ", ".join(str(_week(told, one)) for one in ours)
        wanted = ", ".join(str(one.week) for one in may.get(alert, []))
        yield f"| {alert} | {len(ours)} | {seen or '–'} | {wanted or 'never'} |"


def _meets(fired: Fired, told: Told) -> bool:
    """Whether an alert was firing while a week was told, or while what was scraped in it still stood."""
    return fired.from_s <= told.until_s + HELD_S and told.from_s <= fired.until_s


def _week(told: list[Told], fired: Fired) -> int:
    return next((one.week for one in told if fired.from_s <= one.until_s), told[-1].week)


if __name__ == "__main__":
    sys.exit(main())
