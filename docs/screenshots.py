"""The pictures of README and docs/online.md. Paths on stdout.

    python docs/screenshots.py [--out docs/images] [--report out/quickstart/report.html]

With `--report` README's picture is taken of the report of a run (`make demo` writes one), and nothing else. Without,
the pages are taken of a simulated federation whose last week has just ended: three weeks are played and a fourth waits
(`tests.support.pages`); both pages are served and looked at with headless Chromium. Tokens are random, so pictures
differ from run to run in these, in dates and in little else.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from federation.base.clock import now_hour
from federation.protocol.plan import HOURS_PER_WEEK
from provider_server.program.pages.login import set_password
from provider_server.program.pages.serving import listening as provider_page
from tenant_client.program.pages.serving import listening as tenant_page
from tests.support import browsers
from tests.support.pages import WEEKS, Shown, built

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect, Page

ROOT = Path(__file__).resolve().parents[1]
PASSWORD = "only for these pictures"  # noqa: S105  # of a home that is gone when they are taken
START_WEEK = int(now_hour() // HOURS_PER_WEEK) - WEEKS - 1
NOW_HOUR = (START_WEEK + WEEKS + 1) * HOURS_PER_WEEK + 20.0
MOST_BYTES = 150_000


def main() -> None:
    """Takes all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    if options.report is None:
        _of_pages(out)
    else:
        _of_report(options.report, out)
    for file in sorted(out.glob("*.png")):
        size = file.stat().st_size
        print(f"{file}: {size} bytes{', too large' if size > MOST_BYTES else ''}")


def _of_report(report: Path, out: Path) -> None:
    """The matrices of what was learnt, with privacy and without, under their heading."""
    with browsers.chromium() as browser:
        page = browser.new_page(viewport={"width": browsers.WIDE, "height": 900})
        page.goto(report.resolve().as_uri())
        top = page.locator("h2").first.bounding_box() or {"y": 0.0}
        clip: FloatRect = {"x": 40, "y": top["y"] - 12, "width": 1020, "height": 830}
        page.screenshot(path=out / "report.png", clip=clip, full_page=True)


def _of_pages(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, browsers.chromium() as browser:
        shown = built(Path(folder) / "federation", START_WEEK)
        set_password(shown.provider, PASSWORD, bytes(16))
        _of_provider(browser, shown, out)
        _of_tenant(browser, shown, out)


def _of_provider(browser: "Browser", shown: Shown, out: Path) -> None:
    with provider_page(shown.provider, None, "127.0.0.1", 0, lambda: NOW_HOUR) as address:
        with _inside(browser, address, 900, "light") as page:
            page.wait_for_selector("html[data-charts=drawn]")
            _take(page, out / "provider-overview.png", 760)
            page.goto(f"{address}fleet")
            _take(page, out / "provider-fleet.png", 560)
            page.goto(f"{address}mismatches")
            page.locator("td.worse a").first.focus()
            _take(page, out / "provider-mismatches.png", 640)
        with _inside(browser, address, 400, "dark") as page:
            page.goto(f"{address}hazards")
            page.wait_for_selector("html[data-charts=drawn]")
            _take(page, out / "provider-hazards-phone.png", 800)


@contextmanager
def _inside(browser: "Browser", address: str, width: int, scheme: browsers.Scheme) -> "Iterator[Page]":
    """The provider's page, logged in."""
    host = address.removeprefix("http://").rstrip("/")
    with browsers.watched(browser, host, width=width, scheme=scheme) as watched:
        page = watched.page
        page.goto(f"{address}login")
        page.fill("#password", PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url(address)
        yield page


def _of_tenant(browser: "Browser", shown: Shown, out: Path) -> None:
    with tenant_page(shown.tenant, "127.0.0.1", 0) as address:
        base = address.partition("/?")[0]
        with browsers.watched(browser, base.removeprefix("http://"), width=900) as watched:
            page = watched.page
            page.goto(address)
            _take(page, out / "tenant-jobs.png", 620)
            page.goto(f"{base}/sent")
            page.locator("tbody a").last.click()
            page.wait_for_url(f"{base}/sent/*")
            _take(page, out / "tenant-sent.png", 700)


def _take(page: "Page", file: Path, height: int) -> None:
    viewport = page.viewport_size or {"width": browsers.WIDE, "height": height}
    page.set_viewport_size({"width": viewport["width"], "height": height})
    page.screenshot(path=file)


if __name__ == "__main__":
    main()
