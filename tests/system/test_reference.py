"""docs/reference/ is what the code says now."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_up_to_date(generate: ModuleType) -> None:
    pages = generate.pages()
    assert {path.name for path in (DOCS / "reference").iterdir()} == set(pages)
    for name, text in pages.items():
        written = (DOCS / "reference" / name).read_text(encoding="utf-8")
        assert written == text.rstrip("\n") + "\n", f"docs/reference/{name} is old: make reference"


def test_manual_pages_tell_every_verb_and_no_line_is_taken_for_a_request(generate: ModuleType) -> None:
    pages = generate.manuals()
    assert set(pages) == {f"{program}.1" for program in generate.PROGRAMS}
    assert '.SS "pharoah\\-tenant check [OPTIONS] [LEASE]"' in pages["pharoah-tenant.1"]
    assert "signature [" not in pages["pharoah-tenant.1"]
    for line in "".join(pages.values()).splitlines():
        assert not line.startswith("'")
        assert not line.startswith(".") or line.split()[0] in (".TH", ".SH", ".SS", ".TP", ".B")


def test_every_verb_setting_and_message_has_words(generate: ModuleType) -> None:
    pages = generate.pages()
    assert (
        "| `LEASE` | The lease, or the start of its name (see `leases`). Also `PHAROAH_LEASE`. |  |"
        in pages["commands.md"]
    )
    assert "| `epsilon` | `PHAROAH_PLAN_EPSILON` | float above 0 | `1.0` |" in pages["settings.md"]
    assert "`pharoah/hint/1`" in pages["messages.md"]
    for page in pages.values():
        assert "None\n\n" not in page
        assert "|  |  |  |" not in page
