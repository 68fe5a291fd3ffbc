"""The verb that joins what both sides know of a failure: `show --only explain`."""

from collections.abc import Iterator
from contextlib import closing

import typer

from federation.base.console import AsJson
from federation.base.screen import show, show_json
from tenant_client.doctor.advice.explanation import WORDS, Explanation, FailureCause, explain as explain_facts
from tenant_client.doctor.advice.failure_facts import Known, facts_of, newest
from tenant_client.doctor.records.database import open_database
from tenant_client.doctor.records.journal import Journal
from tenant_client.program.verbs.console import Home, Latest, Lease, journalled, require, say_error

FINE, UNDECIDED = 0, 3


def explain(home: Home, lease: Lease = "", *, latest: Latest = False, as_json: AsJson = False) -> None:
    """Rank causes of a lease's last failed, stopped or slow attempt over both sides, with evidence. Nothing is sent.

    Joined are the diagnosis and what the watch found, own runs and tests, the provider's hints and the bundle. Each
    cause says whose side it is on, and what speaks for and against it.

    Exit code 0: a cause is named. 3: undecided, or nothing to explain.
    """
    require(lease, latest=latest)
    with closing(open_database(journalled(home))) as connection:
        unit, known = Journal(connection).find(lease), Known.of(connection)
    attempt = newest(known, unit)
    if attempt is None:
        say_error(
            f"nothing to explain: no attempt of {unit} failed or had findings", "see `pharoah-tenant jobs --failed`"
        )
        raise typer.Exit(UNDECIDED)
    found = explain_facts(facts_of(known, attempt))
    if as_json:
        show_json(found)
    else:
        show(f"{unit} attempt {attempt.attempt}: {found.sentence}", *_lines(found))
    raise typer.Exit(UNDECIDED if found.cause is FailureCause.UNDECIDED else FINE)


def _lines(found: Explanation) -> Iterator[str]:
    causes = [one for one in found.ranked if one.cause is not FailureCause.UNDECIDED]
    for place, one in enumerate(causes, 1):
        side = "" if one.side == "nobody" else f", {one.side}" + ("" if one.side == "both" else "'s side")
        yield f"  {place}. {one.cause}{side}: {WORDS[one.cause]}"
        yield from (f"       for      {text}" for text in one.evidence_for)
        yield from (f"       against  {text}" for text in one.evidence_against)
