r"""Rules that drop the lines that healthy attempts of a workload print, so that the unusual ones are left.

- A rule is a line with its numbers as `<*>`, as three healthy attempts of one workload printed it. The idea is the log
  agent's of Acme (Hu et al., NSDI 2024, section 6.1), which asks a language model for such rules.
- A zero is not any number: `errors: 0` in healthy attempts drops no `errors: 3`.
- A line in which a cue, a verdict of torchrun or the name of an exception stands is never dropped.
- The rules lie in `rules.toml` in the home, with the attempts that showed them. Their owner may read and edit the file;
  the program only appends to it, and what is `enabled = false` there stays off.

    >>> pattern_of("Sun Nov 22 01:02:03 step 7/80 loss 2.13 skipped 0")
    '<*> <*> <*> <*> step <*> loss <*> skipped 0'
    >>> rules = parse('[[rule]]\nworkload = "w"\nline = "step <*>"\nseen = ["a"]\nlearnt = 2026-11-22\n')
    >>> [keeps("step 9", rules.of("w")), keeps("step nine", rules.of("w")), keeps("step 9", rules.of("v"))]
    [False, True, True]
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set as AbstractSet
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import msgspec

from federation.base.reading import DEFAULT_LIMITS, ReadLimits, is_text, lines, of_form, open_inputs
from federation.protocol.toml_tables import BadTable, convert, loads
from tenant_client.doctor.diagnosis.log_templates import ANY
from tenant_client.doctor.sources.cues import match_line, says_something
from tenant_client.doctor.sources.kernel_log import KernelLines
from tenant_client.doctor.sources.scanning import Line
from tenant_client.doctor.sources.torchrun import WORDS

FILE = "rules.toml"
_MOST_LETTERS, _MOST_WORDS = 4096, 256
_MOST_LINES = 4096
_NUMBER = re.compile(
    r"-?\d[0-9a-fA-Fx.,:/-]*"
    r"|\b(?:AM|PM|Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b",
    re.ASCII,
)
_ZERO = re.compile(r"-?0(?:\.0*)?[,:]?")
_EXCEPTION = re.compile(r"\w(?:Error|Exception|Interrupt)\b|Traceback")
_HEADER = """\
# Lines that healthy attempts of a workload print, learnt on this machine. `pharoah-tenant patterns rules` applies them,
# and so does the search for unusual lines after a failure. <*> stands for any number but zero. `enabled = false` turns
# a rule off; a rule that is removed is learnt again.
"""


class RulesError(BadTable):
    """A file of rules is invalid."""

    default_hint = f"repair {FILE}, or move it away: rules are learnt again"


@dataclass(frozen=True)
class Rule:
    """One rule. `seen` names the attempts that showed the line."""

    workload: str
    line: str
    seen: tuple[str, ...]
    learnt: date
    enabled: bool = True


@dataclass(frozen=True)
class Rules:
    """All rules, in the order of the file."""

    rules: tuple[Rule, ...]

    def of(self, workload: str) -> AbstractSet[str]:
        """The lines that are dropped for a workload."""
        return {rule.line for rule in self.rules if rule.enabled and rule.workload == workload}

    def known(self, workload: str) -> AbstractSet[str]:
        """The lines that have a rule, enabled or not."""
        return {rule.line for rule in self.rules if rule.workload == workload}

    def fitting(self, patterns: Iterable[str]) -> str:
        """The workload whose rules drop most of these lines; "" if none drops any."""
        count = Counter(patterns)
        dropped = {
            workload: sum(count[line] for line in self.of(workload))
            for workload in dict.fromkeys(rule.workload for rule in self.rules)
        }
        best = max(dropped, key=lambda workload: dropped[workload], default="")
        return best if dropped.get(best) else ""


def pattern_of(line: str) -> str:
    """The line with its numbers and words of time masked, and blanks made single."""
    return " ".join(_NUMBER.sub(_masked, line[:_MOST_LETTERS]).split()[:_MOST_WORDS])


def _masked(found: re.Match[str]) -> str:
    return "0" if _ZERO.fullmatch(found[0]) else ANY


def keeps(line: str, dropped: AbstractSet[str]) -> bool:
    """Whether a line is left by the rules of a workload."""
    pattern = pattern_of(line)
    return bool(pattern) and (pattern not in dropped or speaks(line))


def speaks(line: str) -> bool:
    """Whether a line may be evidence: no rule drops it."""
    if _EXCEPTION.search(line) or any(word in line for word in WORDS):
        return True
    if not says_something(line):
        return False
    return KernelLines("").evidence(Line(0, line)) is not None or match_line(line, ("nccl", "job")) is not None


def read_lines(file: Path, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[str]:
    """The lines of a log; carriage returns, as of progress bars, end lines too."""
    with open_inputs(file, limits) as inputs:
        for reader in of_form(inputs, lambda head: not head or is_text(head), "a log"):
            for _, line in lines(reader, limits):
                yield from line.decode("utf-8", "replace").split("\r")


def healthy_patterns(files: Iterable[Path]) -> AbstractSet[str]:
    """What may become rules: the lines of a healthy attempt in which nothing speaks of a failure."""
    found: dict[str, bool] = {}
    for file in files:
        for line in read_lines(file):
            pattern = pattern_of(line)
            if pattern and pattern not in found and len(found) < _MOST_LINES:
                found[pattern] = not speaks(line)
    return {pattern for pattern, healthy in found.items() if healthy}


# ---- the file ------------------------------------------------------------------------------------------------------


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workload: str
    line: str
    seen: tuple[str, ...]
    learnt: date
    enabled: bool = True


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[_Row, ...] = ()


def parse(text: str, where: object = FILE) -> Rules:
    """Read a file of rules; RulesError if it is invalid."""
    file = convert(loads(text, where, RulesError), _File, where, RulesError)
    return Rules(tuple(Rule(row.workload, row.line, row.seen, row.learnt, row.enabled) for row in file.rule))


def load_rules(path: Path) -> Rules:
    """The rules at `path`, none if the file is missing; RulesError if it is invalid."""
    try:
        return parse(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        return Rules(())
    except (OSError, UnicodeDecodeError) as error:
        raise RulesError(f"{path}: {error}") from error


def append_rules(path: Path, new: Iterable[Rule]) -> None:
    """Adds rules to a file, atomically; what stands there stays as it is."""
    text = path.read_text(encoding="utf-8") if path.exists() else _HEADER
    draft = path.with_name(path.name + ".new")
    draft.write_text(text + "".join(map(_text, new)), encoding="utf-8")
    draft.replace(path)


def _text(rule: Rule) -> str:
    seen = ", ".join(map(_quoted, rule.seen))
    lines_ = f"workload = {_quoted(rule.workload)}\nline = {_quoted(rule.line)}\nseen = [{seen}]"
    return f"\n[[rule]]\n{lines_}\nlearnt = {rule.learnt.isoformat()}\n"


def _quoted(text: str) -> str:
    """A basic string of TOML, which has JSON's escapes and no raw delete."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
