"""The site: it builds without a warning, loads nothing from elsewhere, and works in a browser.

The browser's part needs playwright (`pip install playwright`) and a Chromium, and is skipped without them:

    python -m pytest tests/test_site.py -rs
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from .processes import once
from .test_docs import described

pytest.importorskip("mkdocs", reason="the site needs the extra: pip install 'torchldr[docs]'")

ROOT = Path(__file__).resolve().parents[1]
PHONE, DESK = {"width": 390, "height": 800}, {"width": 1280, "height": 900}
QUIET = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update"


def build(folder: Path) -> str:
    environment, site = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}, str(folder / "site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return site


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(once(tmp_path_factory, "site", build))


def pages(site: Path) -> list[Path]:
    return sorted(page for page in site.rglob("*.html") if page.name != "404.html")


def test_nothing_is_loaded_from_elsewhere(site: Path):
    loads = re.compile(r"<(script|img|iframe|source)[^>]* src=\W?(https?:|//)|<link[^>]*sheet[^>]*https?:")
    assert len(pages(site)) > 40
    for page in pages(site):
        assert not loads.search(page.read_text()), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:|//)", style.read_text()), style


def test_every_page_says_what_it_is_for(site: Path):
    """Between a page's title and its first heading, table or picture stands a sentence."""
    for page in pages(site):
        body = re.search(r"<article.*?</h1>(.*?)(?:<h2|</article>)", page.read_text(), re.DOTALL)
        assert body is not None, page
        first = re.search(r"<(\w+)", body[1])
        assert first is not None, page
        assert first[1] == "p", f"{page.relative_to(site)} begins with <{first[1]}>"


def test_formulas_are_mathml(site: Path):
    assert "<math" in (site / "classes" / "ldr_sd.html").read_text()
    for page in pages(site):
        assert "arithmatex" not in page.read_text(), f"{page}: a formula that was not converted"


def test_every_public_name_has_its_place(site: Path):
    texts = [page.read_text() for page in (site / "api").glob("*.html")]
    anchors = {name for text in texts for name in re.findall(r' id="([^"]+)"', text)}
    last = {anchor.rpartition(".")[2] for anchor in anchors if anchor.startswith("torchldr")}
    for module in described():
        with contextlib.suppress(ModuleNotFoundError):  # a name that is asked for by itself
            missing = set(importlib.import_module(module).__all__) - last
            assert not missing, f"{module}: {missing} on no page"


@pytest.fixture
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="for a browser: pip install playwright")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary is None:
        pytest.skip("no Chromium here to test the site in")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=binary, args=QUIET.split())
        yield started
        started.close()


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site on a server of this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def watched(browser: Any, size: dict[str, int], home: str, **options: Any) -> tuple[Any, list[str]]:
    """A page of the browser, and what it complains about: messages, errors, requests that leave the site."""
    page, wrong = browser.new_context(viewport=size, **options).new_page(), []
    page.set_default_timeout(300_000)  # milliseconds: a busy machine fails nothing
    page.on("console", lambda message: wrong.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))

    def leaves(request: Any) -> None:
        if not request.url.startswith((home, "data:", "blob:", "about:")):
            wrong.append(f"request: {request.url}")

    page.on("request", leaves)
    return page, wrong


def test_in_a_browser(browser: Any, site: Path, address: str):
    """Every page on a phone and, from the disk, on a desk in the dark; the search; links within the site."""
    every_page_fits_a_phone(browser, site, address)
    every_page_opens_from_the_disk(browser, site)
    for home in (address, site.as_uri()):
        the_search_finds_a_class(browser, home)
    the_toggle_makes_it_dark(browser, address)


def every_page_fits_a_phone(browser: Any, site: Path, address: str):
    tab, wrong = watched(browser, PHONE, address)
    for page in pages(site):
        name = page.relative_to(site).as_posix()
        answer = tab.goto(f"{address}/{name}")
        assert answer.ok, name
        width = tab.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], f"{name} is {width} wide"
        pictures = "[...document.images].filter((i) => i.complete && !i.naturalWidth).map((i) => i.src)"
        assert tab.evaluate(pictures) == [], name
        links = tab.evaluate("[...document.querySelectorAll('a[href]')].map((link) => link.href)")
        for link in {link.partition("#")[0] for link in links if link.startswith(address)}:
            target = site / link.removeprefix(address).lstrip("/")
            assert (target / "index.html" if target.is_dir() else target).exists(), f"{name}: {link}"
        assert not wrong, f"{name}: {wrong}"


def every_page_opens_from_the_disk(browser: Any, site: Path):
    tab, wrong = watched(browser, DESK, "file:", color_scheme="dark")
    for page in pages(site):
        tab.goto(page.as_uri())
        assert not wrong, f"{page.name}: {wrong}"


def the_search_finds_a_class(browser: Any, home: str):
    tab, wrong = watched(browser, DESK, home)
    tab.goto(f"{home}/index.html")
    tab.locator("input.md-search__input").click()
    tab.keyboard.type("ldr_sd")
    found = tab.locator(".md-search-result__link").first
    found.wait_for()
    assert "classes/ldr_sd.html" in found.get_attribute("href")
    assert not wrong, wrong


def the_toggle_makes_it_dark(browser: Any, address: str):
    tab, wrong = watched(browser, DESK, address, color_scheme="light")
    tab.goto(f"{address}/index.html")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(colour)
    tab.locator("label.md-header__button[title=Dark]").click()
    assert tab.evaluate(colour) != light
    assert not wrong, wrong
