"""What people read is plain: wordings that were hard to understand do not come back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "crypto",
    "docs",
    "examples",
    "federation",
    "plugins",
    "provider_server",
    "simulation",
    "tenant_client",
    "trustee",
)
PLAIN = {  # what it was, and what to write
    r"the first first|the \w+est first first": "in order of preference",
    r"\bNone without a word\b": "…, or None",
    r"\bSays while what\b|\bwhile what a job\b": "the state of a job when …",
    r"\bof which one verb is meant\b": "with a default verb",
    r"\b(?:takes?|taking|took) (?:the|its|their) masks? off\b": "unmask",
    r"\binvitation taken\b": "import the invitation",
    r"\bdue nothing\b": "next action: none",
    r"\blook at: (?:host|gpu|network)\b": "suspect: …",
    r"\bwere in band on all ranks\b|\bnorms were in band\b": "no NaN or loss spike found",
    r"\bavoided by who heeds\b|\bwho heeds checks\b": "by following checks",
    r"\bbeyond themselves without\b": "gain … when … is left out",
    r"\bshows nothing, unless it does\b": "counts only if …",
}


def test_wordings_that_were_hard_to_understand_stay_away() -> None:
    inside = (file for place in PLACES for file in (ROOT / place).rglob("*") if file.suffix in {".py", ".md", ".html"})
    files = [*inside, *ROOT.glob("*.md")]
    assert len(files) > 500
    found = [
        f"{file.relative_to(ROOT)}: {seen[0]!r}; write: {plain}"
        for file in files
        for text in [file.read_text(encoding="utf-8")]
        for hard, plain in PLAIN.items()
        if (seen := re.search(hard, text))
    ]
    assert found == []


@pytest.mark.parametrize("text", ["None without a word.", "Trustees take the masks off.", "A node, the first first"])
def test_such_a_wording_is_seen(text: str) -> None:
    assert any(re.search(hard, text) for hard in PLAIN)
