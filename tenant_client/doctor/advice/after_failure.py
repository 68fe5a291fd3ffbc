"""What is said of an attempt that did not end well: the cause with rank and line, what to do, the next command.

`run`, `show` and the page say the same lines. Of an attempt that succeeded nothing is said.

    >>> cause = AttemptCause("key_error", 1, sentence="key_error: rank 1: /runs/a-1/stderr.log, line 7: KeyError: 'lr'")
    >>> for line in after_failure("a", AttemptState.FAILED, cause):
    ...     print(line)
    key_error: rank 1: stderr.log, line 7: KeyError: 'lr'
    do: Check the missing key, which is usually one of the configuration, the checkpoint or a data sample.
    next: pharoah-tenant show a
"""

import shlex

from tenant_client.doctor.diagnosis.wording import without_folder
from tenant_client.doctor.records.attempts import AttemptCause, AttemptState
from tenant_client.doctor.sources.reasons import REASONS

_ENDED = (AttemptState.FAILED, AttemptState.STOPPED)
_NOTHING_FAILED = ("cancelled", "cancelled_healthy", "cancelled_superseded")


def after_failure(lease: str, state: AttemptState, cause: AttemptCause) -> tuple[str, ...]:
    """Three lines; the cause alone where there is nothing to do, and none where nothing is to be said."""
    if state is AttemptState.SUCCEEDED or (state is AttemptState.RUNNING and not cause.sentence):
        return ()
    first = without_folder(cause.sentence) or cause.reason
    if state not in _ENDED or cause.reason in _NOTHING_FAILED:
        return (first,)
    name = shlex.quote(lease)
    return first, f"do: {_advice(name, cause)}", next_command(lease)


def next_command(lease: str) -> str:
    """The line that tells how to go on with a lease."""
    return f"next: pharoah-tenant show {shlex.quote(lease)}"


def _advice(name: str, cause: AttemptCause) -> str:
    of_reason = REASONS[cause.reason].advice if cause.reason in REASONS else ""
    return cause.advice or of_reason or f"Read the unusual lines that `pharoah-tenant diagnose {name}` shows."
