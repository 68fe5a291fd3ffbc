"""An mkdocs hook: what the site has beyond docs/. README is its first page; files that a page links to have pages, too.

    index.md                README.md
    project/examples/…      other Markdown of the repository
    source/crypto/….py      a file of code or data, as it is
    api/crypto.md           docstrings of a package, for who imports it

So every link that works in the repository works in the site, without a network. A link to what is not there stays as it
is, and `mkdocs build --strict` refuses it. The theme would load one script from elsewhere, without which a page that is
opened from a folder cannot search; that script lies in docs/vendored.
"""

import os.path
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r'(\]\(|src="|href=")([^)\s"#:]+)(?=[)#"])')
SHIM, VENDORED = "https://unpkg.com/iframe-worker/shim", "vendored/iframe-worker.js"
API = ("crypto", "provider_server/fleet/analysis", "simulation")  # what a researcher would import
EXCLUDED = "---\nsearch:\n  exclude: true\n---\n"


def on_files(files: Files, *, config: Any) -> Files:
    """Adds a page for README, for each file that some page links to, and for the API."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    known = set(waiting)
    waiting.append(ROOT / "README.md")
    while waiting:
        page = waiting.pop()
        if page not in known:
            known.add(page)
            files.append(File.generated(config, uri_of(page), content=content_of(page)))
        waiting += [target for target in targets(page) if target not in known and target.suffix != ".png"]
    for uri, content in api():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Leads links out of docs/ to the pages that were made of their targets."""
    origin = origin_of(page.file.src_uri)
    here = PurePosixPath(page.file.src_uri).parent.as_posix()

    def led(link: re.Match[str]) -> str:
        target = resolved(origin, link[2])
        if target is None:
            return link[0]
        return link[1] + os.path.relpath(uri_of(target), here)

    return LINK.sub(led, markdown)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Loads the theme's one foreign script from the site."""
    here = PurePosixPath(page.file.dest_uri).parent.as_posix()
    return output.replace(SHIM, os.path.relpath(VENDORED, here))


def on_post_template(output_content: str, *, template_name: str, config: Any) -> str:
    """The same for the page that says that there is none."""
    return output_content.replace(SHIM, VENDORED)


def is_in_site(target: Path) -> bool:
    """Whether a file is part of the site as it is."""
    kept = (".md", ".png", ".svg", ".schema.json")
    return target.is_relative_to(DOCS) and target.is_file() and target.name.endswith(kept)


def targets(page: Path) -> list[Path]:
    """What a Markdown page links to and the site does not have of itself."""
    if page.suffix != ".md" or not page.is_file():
        return []
    found = (resolved(page, link) for _, link in LINK.findall(page.read_text(encoding="utf-8")))
    return [one for one in found if one is not None and not is_in_site(one)]


def resolved(page: Path, link: str) -> Path | None:
    """The file or folder of the repository that a link on a page means."""
    target = Path(os.path.normpath(page.parent / link))
    return target if target.exists() and target.is_relative_to(ROOT) else None


def uri_of(target: Path) -> str:
    """Where a file, or the page that is made of it, lies in the site."""
    if is_in_site(target):
        return target.relative_to(DOCS).as_posix()
    path = target.relative_to(ROOT).as_posix()
    if path == "README.md":
        return "index.md"
    return f"project/{path}" if target.suffix == ".md" else f"source/{path}.md"


def origin_of(uri: str) -> Path:
    """The file behind a page."""
    if uri == "index.md":
        return ROOT / "README.md"
    for prefix in ("project/", "source/", "api/"):
        if uri.startswith(prefix):
            return ROOT / uri.removeprefix(prefix)
    return DOCS / uri


def content_of(target: Path) -> str:
    """The page of a file or folder."""
    path = target.relative_to(ROOT).as_posix()
    if target.suffix == ".md":
        return target.read_text(encoding="utf-8")
    if target.is_dir():
        names = sorted(one.name for one in target.iterdir() if not one.name.startswith((".", "__")))
        return f"{EXCLUDED}# {path}/\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = target.read_text(encoding="utf-8")
    return f"{EXCLUDED}# {path}\n\n`````{target.suffix.removeprefix('.')}\n{text}\n`````\n"


def api() -> list[tuple[str, str]]:
    """A page for each package, and one that lists them."""
    pages = []
    for package in API:
        name = package.replace("/", ".")
        modules = sorted(file.stem for file in (ROOT / package).glob("*.py") if not file.stem.startswith("_"))
        text = "".join(f"::: {name}.{module}\n\n" for module in modules)
        pages.append((f"api/{name}.md", f"# {name}\n\n{text}"))
    names = (PurePosixPath(uri).stem for uri, _ in pages)
    listed = "".join(f"- [{name}]({name}.md)\n" for name in names)
    about = "Packages that a researcher would import, from their docstrings."
    return [*pages, ("api/index.md", f"# API\n\n{about}\n\n{listed}")]
