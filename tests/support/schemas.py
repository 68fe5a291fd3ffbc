"""What verbs print with `--json`, held to the schemas that docs/generate.py writes."""

import json
from collections.abc import Sequence
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

DOCS = Path(__file__).resolve().parents[2] / "docs"


@cache
def generate() -> ModuleType:
    """docs/generate.py."""
    spec = spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def form_of(program: str, words: Sequence[object]) -> str:
    """The documented form of what a command line prints: the longest whose words it begins with."""
    line = " ".join([program, *map(str, words)])
    forms: list[str] = [form for form in generate().JSON if f"{line} ".startswith(f"{form} ")]
    return max(forms, key=len)


def held(verb: str, text: str) -> Any:
    """The JSON that a verb printed. It has the documented form: no key less, none more, and the types."""
    view = json.loads(text)
    typed = msgspec.convert(view, generate().JSON[verb])
    assert json.loads(json.dumps(msgspec.to_builtins(typed))) == view, verb
    return view
