"""A real browser for tests of pages: headless Chromium by Playwright, and axe for those who do not see or point."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from tests import needs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    "--no-sandbox",  # tests run as root in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE, PHONE = 1100, 360
SERIOUS = ("serious", "critical")
Scheme = Literal["light", "dark"]
SCHEMES_AND_WIDTHS = (
    ("light", 320),
    pytest.param("dark", 1100, marks=pytest.mark.nightly),
    pytest.param("dark", 320, marks=pytest.mark.nightly),
    pytest.param("light", 1100, marks=pytest.mark.nightly),
)


@dataclass
class Watched:
    """A page, and what must not happen while it is looked at: errors in its console, requests to anybody else."""

    page: "Page"
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> "Iterator[Browser]":
    """A browser; skips the test where there is none."""
    program = needs.program("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched(
    browser: "Browser", host: str, *, width: int = WIDE, scheme: Scheme = "light", scripts: bool = True
) -> Iterator[Watched]:
    """A fresh profile whose pages may speak to `host` (host:port) alone; all else is stopped and noted."""
    viewport = {"width": width, "height": 800}
    context = browser.new_context(viewport=viewport, color_scheme=scheme, java_script_enabled=scripts)  # type: ignore[arg-type]
    seen = Watched(context.new_page())

    def passes(url: str) -> bool:
        return urlsplit(url).netloc == host or urlsplit(url).scheme == "data"

    def note(url: str) -> None:
        if not passes(url):
            seen.elsewhere.append(url)

    context.route(lambda url: not passes(url), lambda route: route.abort())
    context.on("request", lambda request: note(request.url))
    seen.page.on("console", lambda said: seen.errors.append(said.text) if said.type in ("error", "warning") else None)
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
    try:
        yield seen
    finally:
        context.close()


def barriers(page: "Page") -> list[str]:
    """What axe finds on a page that is serious or worse, each with where it is."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {node['html'][:120]}"
        for one in found
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


def overflow(page: "Page") -> int:
    """By how many pixels a page is wider than its window."""
    wider: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wider
