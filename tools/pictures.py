"""Take the pictures of docs/page.md in Chromium: `python -m tools.pictures [NAME ..]`.

Needs Chromium with its driver, and selenium (part of the extra `dev`). Measured times differ from
run to run, so pictures are taken again only when the page has changed.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.explain import browser
from tests.explain.page_programs import report

from demo import classics

DOCS = Path(__file__).parent.parent / "docs"
WIDTH, SCALE, QUALITY = 1180, 1.5, 72
Pages = Callable[[Path], None]


def _saved(name: str) -> Pages:
    return lambda path: report(name).save(path) and None


def _classics(path: Path) -> None:
    path.write_text(classics.page(), encoding="utf-8")


PICTURES: dict[str, tuple[Pages, str, int, tuple[str, ...]]] = {
    "page_learn": (_classics, "learn", 960, ()),
    "page_graph": (_saved("layer"), "graph", 1000, ()),
    "page_decision": (_saved("looked_up"), "decision", 730, ()),
    "page_blocks": (_saved("layer"), "blocks", 820, ('.operand:last-child [data-cell="6"]',)),
    "page_step": (_saved("attention"), "step/at=23", 1010, ()),
}
"""Name -> page, view, height, and what is clicked."""


def main(names: list[str]) -> int:
    """Take the named pictures, or all."""
    with TemporaryDirectory() as folder:
        chromium = browser.Browser(Path(folder) / "profile")
        try:
            for name in names or list(PICTURES):
                pages, view, height, clicks = PICTURES[name]
                path = Path(folder) / f"{name}.html"
                pages(path)
                chromium.resize(WIDTH, height)
                chromium.open(path, view)
                for selector in clicks:
                    chromium.click(selector)
                chromium.run("scrollTo(0, 0)")
                (DOCS / f"{name}.webp").write_bytes(_picture(chromium, height))
        finally:
            chromium.close()
    return 0


def _picture(chromium: browser.Browser, height: int) -> bytes:
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": SCALE}
    options = {"format": "webp", "quality": QUALITY, "clip": clip}
    data = chromium.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
    return base64.b64decode(data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
