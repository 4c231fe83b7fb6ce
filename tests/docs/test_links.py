"""Links of the pages exist, with headings and modules; other sites by https only."""

from __future__ import annotations

import re

import pytest
from tests.docs.pages import PAGES, ROOT, prose, read

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_MODULE = re.compile(r"`([a-z0-9_/.]+\.py)`")
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
GENERATED = ROOT / "docs" / "reference" / "generated"
GALLERY = ROOT / "docs" / "gallery"
EXAMPLES = ROOT / "examples" / "gallery"


def links(page: str) -> list[str]:
    return _LINK.findall(prose(read(page)))


def slug(heading: str) -> str:
    """What a heading is called in a link, as on the usual sites."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """The names of the pages that the documentation's build writes."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("rows", ROOT / "docs" / "rows.py")
    assert spec is not None and spec.loader is not None
    rows = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rows)
    folder = tmp_path_factory.mktemp("generated")
    rows.write(folder)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}


def test_there_are_links():
    assert sum(len(links(page)) for page in PAGES) > 20
    assert slug("Why are these two not in one kernel?") == "why-are-these-two-not-in-one-kernel"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page, generated):
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            assert link.startswith("https://"), link
            continue
        name, _, heading = link.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        path = path.resolve()
        if path.is_relative_to(GENERATED):
            assert path.relative_to(GENERATED).as_posix() in generated, link
            continue
        if path.is_relative_to(GALLERY):
            source = path.with_suffix(".py").name.replace("index.py", "GALLERY_HEADER.rst")
            assert (EXAMPLES / source).exists(), link
            continue
        assert path.exists(), link
        if heading:
            assert heading in {slug(h) for h in _HEADING.findall(path.read_text())}, link


FILES = [
    p.relative_to(ROOT).as_posix()
    for folder in ("src", "bench", "demo", "tests", "docs", "tools", "examples")
    for p in (ROOT / folder).rglob("*.py")
]


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_modules_that_are_named_exist(page):
    for name in _MODULE.findall(prose(read(page))):
        assert any(f"/{file}".endswith(f"/{name}") for file in FILES), name


def test_every_page_is_in_the_contents():
    contents = set(re.findall(r"^([\w/]+)$", read("docs/index.md"), re.MULTILINE))
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages <= contents
