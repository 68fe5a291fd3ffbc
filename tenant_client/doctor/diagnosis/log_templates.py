"""Templates of log lines without a matching cue.

- `Templates` is Drain (He et al., ICWS 2017) with a cache: one regex masks a line; a masked line seen before is a dict
  lookup; only a new one walks the tree (by length, then by its first two tokens).

    >>> known = Templates()
    >>> first = known.learn("worker 3 lost its lease after 20 s")
    >>> first == known.learn("worker 7 lost its lease after 31 s")
    True
    >>> known.text(first), known.count(first)
    ('worker <*> lost its lease after <*> s', 2)
"""

import re

ANY = "<*>"
_SIMILAR = 0.4
_LEADING = 2
_MOST_TOKENS = 256
_MOST_LINE = 4096
_MOST_MASKED = 100_000
_MOST_TEMPLATES = 10_000
_MOST_IN_LEAF = 100
# Whatever begins with a digit: numbers, dates, addresses, most ids. The tree catches ids that begin with a letter.
_MASKED = re.compile(r"\d[0-9a-fA-Fx.,:/-]*", re.ASCII)


def mask(line: str) -> str:
    """The line with numbers, addresses and ids masked and blanks made single."""
    return " ".join(_MASKED.sub(ANY, line[:_MOST_LINE]).split()[:_MOST_TOKENS])


class Templates:
    """Learns templates; ids count from 0 in the order of discovery. Beyond its caps all lines share one template."""

    def __init__(self) -> None:
        self._tokens: list[list[str]] = []
        self._counts: list[int] = []
        self._masked: dict[str, int] = {}
        self._leaves: dict[tuple[object, ...], list[int]] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def learn(self, line: str) -> int:
        """Count a line under its template, a new one if none is similar; the template's id."""
        masked = mask(line)
        found = self._masked.get(masked)
        if found is None:
            found = self._place(masked.split())
            if len(self._masked) < _MOST_MASKED:
                self._masked[masked] = found
        self._counts[found] += 1
        return found

    def of(self, line: str) -> int | None:
        """The id of the template that a line matches, or None. Learns nothing."""
        masked = mask(line)
        found = self._masked.get(masked)
        return self._search(masked.split()) if found is None else found

    def text(self, template: int) -> str:
        """The template, with `<*>` for what varies."""
        return " ".join(self._tokens[template])

    def count(self, template: int) -> int:
        """The number of lines learnt under a template."""
        return self._counts[template]

    def rarest(self, most: int) -> list[int]:
        """Templates by number of lines, the fewest first, among equals the latest first."""
        return sorted(range(len(self)), key=lambda template: (self._counts[template], -template))[:most]

    def _place(self, tokens: list[str]) -> int:
        found = self._search(tokens)
        if found is None:
            return self._new(tokens)
        kept = self._tokens[found]
        for at, token in enumerate(tokens[: len(kept)]):
            if kept[at] != token:
                kept[at] = ANY
        return found

    def _new(self, tokens: list[str]) -> int:
        leaf = self._leaves.setdefault(_leaf(tokens), [])
        if len(leaf) >= _MOST_IN_LEAF:
            return leaf[-1]
        if len(self) >= _MOST_TEMPLATES:
            return len(self) - 1
        leaf.append(len(self))
        self._tokens.append(list(tokens))
        self._counts.append(0)
        return len(self) - 1

    def _search(self, tokens: list[str]) -> int | None:
        """The most similar template of the leaf, among equals the one with more that varies."""
        best, best_score = None, (_SIMILAR, -1)
        for template in self._leaves.get(_leaf(tokens), ()):
            kept = self._tokens[template]
            same = sum(1 for ours, theirs in zip(kept, tokens, strict=True) if ours == theirs != ANY)
            score = (same / max(1, len(tokens)), kept.count(ANY))
            if kept == tokens or score >= best_score:
                best, best_score = template, score
        return best


def _leaf(tokens: list[str]) -> tuple[object, ...]:
    return (len(tokens), *(ANY if ANY in token else token for token in tokens[:_LEADING]))
