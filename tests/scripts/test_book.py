"""The book: every page is there, no link is broken, and it needs nothing from the network."""

import re
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("myst_nb")
pytest.importorskip("sphinx_book_theme")
from tests.support.browser import browser, find_browser
from tests.support.scripts import script

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9]*_*.ipynb"))
ALLOWED = "webpack-macros"  # a template of the theme, no page
# what the page threw, from its first line on
WATCH = "window.thrown = []; addEventListener('error', e => thrown.push(String(e.message || e)))"


class Page(HTMLParser):
    """What a page refers to, and the names in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.needs: list[str] = []
        self.names: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.names.add(found.get("id") or "")
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img") and found.get("src"):
            self.needs.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "preload", "icon"):
            self.needs.append(found["href"])


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("book")
    assert script("docs/book").build(folder) == 0
    return folder


@pytest.fixture(scope="module")
def pages(book) -> dict[Path, Page]:
    return {path: Page(path) for path in book.rglob("*.html") if ALLOWED not in path.name}


def test_every_notebook_and_every_document_has_a_page(book):
    documents = [path.stem for path in (ROOT / "docs").glob("*.md")]
    assert {path.stem for path in (book / "notebooks").glob("*.html")} == set(NOTEBOOKS)
    assert {path.stem for path in (book / "docs").glob("*.html")} == set(documents)


def test_no_link_is_broken(pages):
    broken = []
    for path, page in pages.items():
        for link in page.links + page.needs:
            where = urlsplit(link)
            if where.scheme or where.netloc:
                continue
            target = (path.parent / unquote(where.path)).resolve() if where.path else path
            known = pages[target].names if target in pages else {unquote(where.fragment)}
            if not target.exists() or (where.fragment and unquote(where.fragment) not in known):
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_nothing_comes_from_the_network(book, pages):
    needed = {need for page in pages.values() for need in page.needs}
    assert not [need for need in needed if urlsplit(need).netloc]
    styles = [path.read_text("utf-8") for path in book.rglob("*.css")]
    assert not [url for text in styles for url in re.findall(r"url\(['\"]?(https?:[^)]+)", text)]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_page_shows_what_the_notebook_stores(book, name):
    text = (book / "notebooks" / f"{name}.html").read_text("utf-8")
    stored = (ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8")
    pictures = text.count("data:image/png;base64,")
    assert pictures == stored.count("data:image/png;base64,") > 0
    assert "<table" in text and "widget-view" not in text


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no Chromium on the PATH: install chromium")
def test_pages_open_in_a_browser(book, pages, tmp_path):
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *args: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(book)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}/"
    try:
        with browser(find_browser(), tmp_path) as page:
            page.call("Page.enable")
            page.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
            page.open(f"{here}index.html")
            page.until("location.pathname === '/README.html'")  # the front page
            for path in pages:
                where = path.relative_to(book).as_posix()
                page.open(f"{here}{where}?opened")  # told from the front page, which is one of them
                page.until(f"location.pathname + location.search === '/{where}?opened'")
                page.until("document.readyState === 'complete'")
                seen = "[...document.images].every(one => one.alt && one.naturalWidth > 0)"
                assert page.evaluate(seen), where
                assert page.evaluate("window.thrown") == [], where
    finally:
        server.shutdown()
        server.server_close()


def test_notebooks_are_in_the_order_of_their_numbers():
    listed = re.findall(r"notebooks/(\d+)_", script("docs/book").contents())
    assert listed == [str(number) for number in range(len(NOTEBOOKS))]
