"""Licences of all that requirements.lock installs are on a list, and NOTICE names what is in the tree itself."""

import re
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PERMISSIVE = re.compile(r"0?BSD|Apache|MIT|ISC|PSF|Python Software Foundation|Zlib|CC0|Public Domain|HPND|Unlicense")
# Copyleft of single files, which bind only who changes those files, and what is no part of any distribution's needs.
WEAK = re.compile(r"MPL")
OTHERS = {
    "autograd-gamma": "MIT by its LICENSE file; its metadata says UNKNOWN",
    "axe-playwright-python": "MIT by its LICENSE file; its metadata says nothing; only tests use it",
    "psycopg": "LGPL-3.0, of the extra `postgresql` and the tests; used as it is",
    "psycopg-binary": "the same",
}
ELSEWHERE = {"colorama"}  # of Windows alone: the lock is for every system


def licence(package: Distribution) -> str:
    """What the metadata says, the newest form first."""
    said = package.metadata
    classifiers = [one.rpartition(" :: ")[2] for one in said.get_all("Classifier", []) if one.startswith("License ::")]
    texts = (*said.get_all("License-Expression", []), "; ".join(classifiers), *said.get_all("License", []))
    return next(filter(None, texts), "").partition("\n")[0]


def test_every_locked_package_has_a_licence_on_the_list() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    names = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    found = {re.sub(r"[-_.]+", "-", one.name).lower(): licence(one) for one in distributions()}
    assert names - found.keys() == ELSEWHERE
    unknown = {
        name: found[name]
        for name in names & found.keys() - OTHERS.keys()
        for part in re.split(r";| AND | OR ", found[name])
        if not PERMISSIVE.search(part) and not WEAK.search(part)
    }
    assert unknown == {}
    assert OTHERS.keys() <= names


def test_notice_names_what_is_vendored_and_nothing_else() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/-]+\.LICENSE", notice.replace("\n", " ")))
    kept = ("out/", "dist/", "build/", ".")
    there = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.LICENSE")}
    assert named == {path for path in there if not path.startswith(kept)}
    for name in named:
        held_by = re.search(r"Copyright \(c\) [\d-]+ [\w ]+", (ROOT / name).read_text(encoding="utf-8"))
        assert held_by
        assert held_by[0].strip() in notice.replace("\n", " ")
