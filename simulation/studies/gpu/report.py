"""The report as JSON and as text."""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, SKIPPED = "pass", "fail", "skipped"


@dataclass
class Result:
    """What became of one part; `why` says it in words unless it passed."""

    name: str
    result: str = SKIPPED
    why: str = ""
    seconds: float = 0.0
    limit_s: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    evidence: dict[str, str] = field(default_factory=dict)


def judged(result: Result, lines: list[dict[str, Any]], ended: str, stderr: str) -> Result:
    """Puts a part's notes into its result. `ended` says how its process ended badly, "" if it did not."""
    for line in lines:
        result.figures |= line.get("figures", {})
        result.checks += [line] if "check" in line else []
        result.evidence |= {line["evidence"]: line["text"]} if "evidence" in line else {}
    bad = [f"{one['check']}: {one['said']}".removesuffix(": ") for one in result.checks if not one["good"]]
    skipped = next((line["skipped"] for line in lines if "skipped" in line), "")
    if ended:
        result.result, result.why = FAILED, "; ".join([ended, *bad])
        result.evidence["stderr"] = stderr
    elif bad:
        result.result, result.why = FAILED, "; ".join(bad)
    elif skipped or not result.checks:
        result.result, result.why = SKIPPED, skipped or "it checked nothing"
    else:
        result.result, result.why = PASSED, ""
    return result


def write(folder: Path, results: list[Result], began_s: float, budget_s: float) -> str:
    """Writes report.json and report.txt; the text."""
    card = next((one.figures for one in results if one.name == "card"), {})
    seconds = round(time.time() - began_s, 1)
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began_s))
    counts = {kind: sum(one.result == kind for one in results) for kind in (PASSED, FAILED, SKIPPED)}
    told = {"version": 1, "began": began, "seconds": seconds, "budget_s": budget_s, **counts, "card": card}
    text = json.dumps({**told, "parts": list(map(asdict, results))}, indent=1)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    head = f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped in {seconds:.0f} s ({began})"
    said = "\n".join([head, " · ".join(f"{name} {value}" for name, value in card.items()), "", *_rows(results)]) + "\n"
    (folder / "report.txt").write_text(said, encoding="utf-8")
    return said


def _rows(results: list[Result]) -> list[str]:
    rows = []
    for one in results:
        rows.append(f"{one.result:<8} {one.name:<24} {one.seconds:>6.1f} s  {one.why}".rstrip())
        rows += [f"{'':<9}{name}: {_short(value)}" for name, value in one.figures.items() if one.name != "card"]
        rows += [
            f"{'':<9}{'ok ' if check['good'] else 'NOT'} {check['check']}: {check['said']}" for check in one.checks
        ]
    return rows


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(inner)}" for name, inner in value.items())
    return str(value)
