"""Which rank stands elsewhere than the others, from the stacks of a job that hung.

Ranks whose main threads are in the same calls stand together. Those apart from most of them are told, each with its
innermost calls and where the others are. A stack shows where a rank is, not why, so the reason stays unknown.
"""

from collections.abc import Iterable, Iterator, Sequence

from tenant_client.doctor.sources.evidence import Evidence, Role
from tenant_client.doctor.sources.reasons import UNKNOWN
from tenant_client.doctor.sources.stacks import Stack

SOURCE = "stacks"
_MOST_TOLD, _MOST_NAMED, _INNERMOST = 4, 8, 2


def odd_stacks(stacks: Sequence[Stack]) -> Iterator[Evidence]:
    """The stacks apart from most; all of them where none are together."""
    groups: dict[tuple[tuple[str, str], ...], list[Stack]] = {}
    for stack in stacks:
        groups.setdefault(tuple((frame.name, frame.file) for frame in stack.frames), []).append(stack)
    most = max(groups.values(), key=len)
    if len(groups) == 1:
        yield _told(most[0], f"{_named(most)} {'is' if len(most) == 1 else 'are all'} in {_calls(most[0])}")
        return
    has_majority = 2 * len(most) > len(stacks)
    others = f"; {_named(most)} in {_calls(most[0])}" if has_majority else ""
    apart = [own for own in groups.values() if own is not most or not has_majority]
    for own in sorted(apart, key=len)[:_MOST_TOLD]:
        yield _told(own[0], f"{_named(own)} in {_calls(own[0])}{others}")


def _told(stack: Stack, text: str) -> Evidence:
    return Evidence(UNKNOWN, Role.SYMPTOM, SOURCE, stack.file, stack.line, text, None, stack.rank)


def _calls(stack: Stack) -> str:
    return " < ".join(map(str, stack.frames[:_INNERMOST]))


def _named(stacks: Iterable[Stack]) -> str:
    own = sorted(stacks, key=lambda one: (one.rank is None, one.rank or 0, one.who))
    ranks = [str(one.rank) for one in own if one.rank is not None]
    names = ranks if len(ranks) == len(own) > 1 else [one.who for one in own]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{'ranks ' if names is ranks else ''}{', '.join(names[:_MOST_NAMED])}{more}"
