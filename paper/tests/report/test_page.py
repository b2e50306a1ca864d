"""The report of a small made-up ledger: its HTML, and the page in a headless browser where one is here."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer

from torchldr_paper import Ledger, Run, get_table
from torchldr_paper.cli import register
from torchldr_paper.cli.sweeps import keep_table, parse_filters
from torchldr_paper.report import report
from torchldr_paper.report.sections import sections

from ..test_figures import fill, made_up

HOSTILE = "</script><img src=x onerror=alert(1)> & 'mine'.npz"
pytestmark = pytest.mark.usefixtures("no_data_of_the_user")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Rectangles from two seeds and quick, part of the SHL and CNN tables, and a user's own data."""
    ledger = Ledger(tmp_path_factory.mktemp("report"), published=False)
    fill(ledger, [get_table("rectangles")], seeds=2)
    fill(ledger, [get_table("rectangles").quick])
    fill(ledger, [keep_table(get_table("shl"), parse_filters(["dataset=mnist_bg_rot"]))])
    fill(ledger, [keep_table(get_table("cnn"), parse_filters(["dataset=cifar10", "structure=ldr_sd"]))])
    ledger.append(made_up(Run(HOSTILE, structure="ldr_sd", rank=2), 70.0, "user"))
    return ledger


@pytest.fixture(scope="module")
def page(ledger: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    return report(ledger, folder / "deep" / "report.html", data_dir=folder)


class Parsed(HTMLParser):
    """Elements of the page with their attributes, and what stands in the JSON script."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.runs, self._in_runs = "", False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_runs = tag == "script" and dict(attrs).get("id") == "runs"

    def handle_endtag(self, tag: str) -> None:
        self._in_runs = self._in_runs and tag != "script"

    def handle_data(self, data: str) -> None:
        self.runs += data if self._in_runs else ""

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_nothing_is_loaded_from_elsewhere(page: Path) -> None:
    parsed = Parsed(page)
    for _, attributes in parsed.elements:
        for name in ("src", "href", "srcset", "data", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert parsed.all("img")
    assert not re.search(r"@import|url\(", page.read_text(encoding="utf-8"))


def test_every_number_leads_to_its_runs(page: Path, ledger: Ledger) -> None:
    parsed = Parsed(page)
    runs = json.loads(gzip.decompress(base64.b64decode(parsed.runs)))
    assert len(runs) == len(ledger)
    links = [a["href"] or "" for a in parsed.all("a") if (a["href"] or "").startswith("#runs/")]
    reached = {f"{link.split('/')[1]}/{hash}" for link in links for hash in link.split("/")[2:]}
    assert reached == set(runs)
    for key, run in runs.items():
        assert Run.from_config(run["config"]).hash == key.split("/")[-1]
        assert run["curves"]["test"][run["best"]["epoch"]] == pytest.approx(run["best"]["test"], abs=0.01)
        assert len(run["replicas"]) == len(Run.from_config(run["config"]).protocol.replicas)


def test_anchors_exist_and_headings_are_those_of_a_table(page: Path) -> None:
    parsed = Parsed(page)
    ids = [attributes["id"] for _, attributes in parsed.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    links = [a["href"] or "" for a in parsed.all("a")]
    assert {link[1:] for link in links if link.startswith("#") and not link.startswith("#runs/")} <= set(ids)
    assert all(th.get("scope") in ("row", "col") for th in parsed.all("th"))
    assert all(image.get("alt") for image in parsed.all("img"))
    assert len(parsed.all("caption")) == len(parsed.all("table"))


def test_what_comes_from_data_is_text(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    assert "<img src=x" not in content
    assert "&lt;img src=x" in content or "\\u003cimg src=x" in content
    assert not any(attributes.get("onerror") for _, attributes in Parsed(page).elements)


def section_of(page: Path, anchor: str) -> str:
    """The HTML of one section."""
    content = page.read_text(encoding="utf-8")
    begin = content.index(f'<section id="{anchor}"')
    return content[begin : content.index("</section>", begin)]


def test_sections(ledger: Ledger, page: Path) -> None:
    found = {section.id: section for section in sections(ledger)}
    assert found["rectangles"].state == "done"
    assert found["rectangles-quick"].notes[0].startswith("The quick protocol")
    assert (found["shl"].state, found["shl"].progress) == ("partial", "14 of 56 rows")
    assert found["noise"].progress == "not run"
    assert [row["dataset"] for row in found["other-runs"].rows] == [HOSTILE]
    order = [section.state == "missing" for section in sections(ledger)]
    assert order == sorted(order)
    html = section_of(page, "rectangles")
    assert 'class="badge official"' in html
    assert "98.39" in html  # the paper's
    assert "±" in html  # two seeds
    assert "torchldr paper shl" in section_of(page, "shl")
    assert "HashedNets" in section_of(page, "shl")


def test_the_page_begins_with_charts_and_the_headline(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    chart, headline = content.index('id="figure-accuracy_parameters_shl"'), content.index('id="headline"')
    assert chart < headline < content.index('id="tables"')
    assert content.index('id="tables"') < content.index('id="figure-operators"')


def test_the_published_runs_make_a_small_page(tmp_path: Path) -> None:
    """With all figures, some 60 kB each at most, it has less than 2 MB."""
    path = report(Ledger(tmp_path, curves=True), tmp_path / "r.html", figures=False)
    assert 300_000 < path.stat().st_size < 1_250_000


def test_an_empty_ledger(tmp_path: Path) -> None:
    empty = Ledger(tmp_path / "none", published=False)
    content = report(empty, tmp_path).read_text(encoding="utf-8")
    assert "The ledger is empty" in content
    assert "torchldr paper rectangles --quick" in content
    assert str(tmp_path / "none") in content


def test_lines_that_cannot_be_read_are_told(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(ledger.path.read_bytes()[:-100])
    torn = Ledger(tmp_path, published=False)
    content = report(torn, tmp_path / "r.html", figures=False).read_text(encoding="utf-8")
    assert "1 line of the ledger could not be read" in content
    assert "No figures were asked for" in content


def test_a_run_whose_replicas_all_diverged(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, published=False)
    record = made_up(get_table("rectangles").runs()[0], 50.0)
    none = {name: [[None] * 12] for name in ("loss", "train", "validation", "test")}
    gone = {**record.result, "best": None, "mean": None, "metrics": none, "diverged": [0] * 12}
    ledger.append(type(record)(record.run, record.data, gone, record.machine, record.time))
    content = report(ledger, tmp_path / "r.html", figures=False).read_text(encoding="utf-8")
    assert ">diverged</a>" in content


def test_without_matplotlib(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    content = report(ledger, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "pip install matplotlib" in content
    assert "98.39" in content


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command: (exit code, stdout, stderr)."""
    app = typer.Typer()
    register(app)

    def run(*arguments: object) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as stopped:
            app([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return stopped.value.code, captured.out, captured.err

    return run


def test_the_report_command(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    code, printed, told = run("report", "--out", out, "--results", tmp_path, "--no-figures")
    assert (code, printed) == (0, f"{out}\n")
    assert out.is_file()
    assert "traceback" not in told.lower()


def test_a_folder_that_is_not_there_is_wrong_use(run: Any, tmp_path: Path) -> None:
    """It would show the published runs alone, as if the user had none."""
    (tmp_path / "file").touch()
    for name in ("nosuchdir", "file"):
        for command in (("report", "--no-figures"), ("figures", "operators", "--format", "svg")):
            code, printed, told = run(*command, "--out", tmp_path / "o", "--results", tmp_path / name)
            assert (code, printed) == (2, "")
            assert name in re.sub(r"[\s│]", "", told)
    assert not (tmp_path / "o").exists()


def test_a_full_disk_keeps_the_old_page(
    ledger: Ledger, tmp_path: Path, full_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchldr_paper.report.page.render", lambda *_: "<html>" + 10_000 * "x")
    (tmp_path / "page.html").write_text("old")
    with full_disk(5000), pytest.raises(OSError, match=r"File too large: .*page\.html"):
        report(ledger, tmp_path / "page.html", figures=False)
    assert (tmp_path / "page.html").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "link.html").symlink_to("page.html")
    report(ledger, tmp_path / "link.html", figures=False)
    assert (tmp_path / "link.html").is_symlink()
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert report(ledger, "/dev/null", figures=False) == Path("/dev/null")
    assert not Path("/dev/null").is_file()


def test_the_figures_command(run: Any, tmp_path: Path) -> None:
    options = ("--out", tmp_path, "--results", tmp_path)
    code, printed, _ = run("figures", "operators", "--format", "svg", *options)
    assert (code, printed) == (0, f"{tmp_path / 'operators.svg'}\n")
    code, _, told = run("figures", "nothing", *options)
    assert code == 2
    assert "unknown figure" in told
    assert run("figures", "operators", "--format", "gif", *options)[0] == 2


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; skips where it, its driver or selenium is missing."""
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service

    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        started = webdriver.Chrome(options, Service(driver))
    except WebDriverException as error:
        pytest.skip(f"the browser does not start: {error.msg}")
    yield started
    started.quit()


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Any]:
    """The page, loaded anew; whatever the browser complained about fails the test."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(page.as_uri())
    assert browser.execute_script("return document.readyState") == "complete"  # `get` waits for it
    yield browser
    assert browser.get_log("browser") == []


def texts(opened: Any, selector: str) -> list[str]:
    """What can be seen of all elements that a selector finds."""
    script = """
        const found = [...document.querySelectorAll(arguments[0])];
        return found.filter((node) => node.checkVisibility()).map((node) => node.innerText.trim());
    """
    return list(opened.execute_script(script, selector))


def click(opened: Any, selector: str) -> None:
    opened.find_element("css selector", selector).click()


def test_browser_sorts(opened: Any) -> None:
    heads = texts(opened, "#rectangles thead th")
    assert heads[:2] == ["Method", "Rank"]
    place = heads.index("Paper") + 1
    cells = f"#rectangles tbody td:nth-child({place})"
    before = texts(opened, cells)
    head = f"#rectangles thead th:nth-child({place})"
    for order, wanted in (
        ("ascending", sorted(before, key=float)),
        ("descending", sorted(before, key=float, reverse=True)),
        ("none", before),
    ):
        click(opened, f"{head} button")
        assert opened.find_element("css selector", head).get_attribute("aria-sort") == order
        assert texts(opened, cells) == wanted
    click(opened, "#rectangles thead th:first-child button")
    names = texts(opened, "#rectangles tbody th")
    assert names == sorted(names, key=str.lower)
    click(opened, "#rectangles thead th:nth-child(2) button")
    ranks = texts(opened, "#rectangles tbody td:nth-child(2)")
    assert ranks[:2] == ["1", "1"]
    assert set(ranks[-3:]) == {"\N{EN DASH}"}  # without a rank: last


def test_browser_filters(opened: Any) -> None:
    from selenium.webdriver.support.select import Select

    everything = len(texts(opened, "section.table tbody tr"))
    Select(opened.find_element("id", "dataset")).select_by_value("rectangles")
    assert set(texts(opened, "section.table tbody td:nth-child(3)")) == {"Rectangles"}
    assert not opened.find_element("id", "shl").is_displayed()
    assert opened.find_element("id", "rectangles").is_displayed()
    assert opened.find_element("id", "figure-operators").is_displayed()
    Select(opened.find_element("id", "model")).select_by_value("cnn")
    assert texts(opened, "section.table tbody tr") == []
    kept = opened.find_elements("css selector", "section.table tbody tr:not([hidden])")  # of what was not run
    assert opened.find_element("id", "count").text.startswith(f"{len(kept)} of ")
    Select(opened.find_element("id", "dataset")).select_by_value("cifar10")
    assert len(texts(opened, "#cnn tbody tr")) == 12
    click(opened, "#finished")
    assert len(texts(opened, "#cnn tbody tr")) == 2
    Select(opened.find_element("id", "dataset")).select_by_value("")
    Select(opened.find_element("id", "model")).select_by_value("")
    click(opened, "#finished")
    assert len(texts(opened, "section.table tbody tr")) == everything


def test_browser_opens_the_runs_of_a_number(opened: Any) -> None:
    click(opened, "#rectangles tbody a")
    panel = opened.find_element("id", "panel")
    assert panel.is_displayed()
    assert opened.find_element("id", "panel-title").text == "2 runs, one a seed"
    config = json.loads(texts(opened, "#panel pre")[0])
    assert (config["data"], config["structure"]) == ("rectangles", "dense")
    assert len(opened.find_elements("css selector", "#panel svg path")) == 6
    click(opened, "#panel-close")
    assert not panel.is_displayed()
    assert "#runs" not in opened.current_url
    assert texts(opened, "#other-runs tbody th") == ["LDR-SD"]
    click(opened, "#other-runs tbody a")
    assert json.loads(texts(opened, "#panel pre")[0])["data"] == HOSTILE


def test_browser_on_a_phone(opened: Any) -> None:
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert opened.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        heads = texts(opened, "#rectangles thead th")
        assert "Dataset" not in heads
        assert "Seconds" not in heads
        first = opened.find_element("css selector", "#rectangles tbody a").rect
        assert first["x"] + first["width"] <= 390  # our number is seen without scrolling sideways
        assert texts(opened, "#rectangles tbody th")[0].split("\n") == ["Unstructured", "Rectangles"]
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
