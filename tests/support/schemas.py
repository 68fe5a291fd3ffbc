"""What verbs print with `--json`, held to the schemas that docs/generate.py writes."""

import json
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


def verb_of(*words: object) -> str:
    """The documented verb that a command line begins with."""
    spelt = (" ".join(map(str, words[:count])) for count in (3, 2))
    return next(verb for verb in spelt if verb in generate().JSON)


def held(verb: str, text: str) -> Any:
    """The JSON that a verb printed. It has the documented form: no key less, none more, and the types."""
    view = json.loads(text)
    typed = msgspec.convert(view, generate().JSON[verb])
    assert json.loads(json.dumps(msgspec.to_builtins(typed))) == view, verb
    return view
