"""The documentation: code blocks run, links lead somewhere, numbers and pages match the registry."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
import torch

import torchldr
from torchldr.core.registry import REGISTRY
from torchldr.info import describe_structures

from .optional import left_out

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
COUNT = re.compile(r"^\| \[?`(\w+)`.*\| ([\d,]+)(?: \(.*\))? \|$", re.MULTILINE)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The addresses of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=named)
@pytest.mark.usefixtures("torchlib_once")
def test_code_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Blocks of a page run one after the other in one namespace, with what the page says to install alone."""
    monkeypatch.chdir(tmp_path)
    for package in left_out(page.read_text()):
        monkeypatch.setitem(sys.modules, package, None)  # importing it fails
    torch.manual_seed(0)
    text, namespace, known = page.read_text(), {"__name__": "__main__"}, set(REGISTRY)
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], named(page), "exec"), namespace)
    for name in set(REGISTRY) - known:  # a page may declare a class
        del REGISTRY[name]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_resolve(page: Path):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in LINK.findall(prose):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{named(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{named(page)}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_pages_speak_to_users(page: Path):
    """No page mentions where it was written."""
    assert not re.search(r"/work/|\.\./shared|/opt/|/root/|/tmp/", page.read_text())


@pytest.mark.parametrize("name", torchldr.structures())
def test_every_class_has_a_page_and_a_picture(name: str):
    page = ROOT / "docs" / "classes" / f"{name}.md"
    text = page.read_text()
    assert f'structure="{name}"' in text
    assert f"pictures/{name}.png" in text
    for option in torchldr.get_structure(name).default_options():
        assert f"| `{option}` |" in text, f"{named(page)}: the option {option} is not documented"
    assert f"]({name}.md)" in (page.parent / "index.md").read_text()


def described() -> set[str]:
    """What the pages on the API take from docstrings: modules, and a few names that need to be asked for."""
    pages = (ROOT / "docs" / "api").glob("*.md")
    return {name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)}


def test_names_at_the_root_are_on_the_page():
    listed = re.findall(r"\[`(\w+)`\]\[torchldr\.", (ROOT / "docs" / "api.md").read_text())
    assert sorted(listed) == sorted(torchldr.__all__)


def test_the_names_of_every_module_are_described():
    root, known = Path(torchldr.__file__).parent, described()
    inside = ("core", "functional", "kernels", "hf")  # not for users; the last one needs transformers
    listed = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] not in inside:
            listed[".".join(("torchldr", *parts)).removesuffix(".__init__")] = set(names_of(path))
    found = {name.rpartition(".")[2] for name in known}.union(*(listed.get(name, ()) for name in known))
    for module, names in listed.items():
        assert names <= found or module == "torchldr", f"{module}: {names - found}"


def names_of(path: Path) -> list[str]:
    """The `__all__` of a file."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def test_every_class_is_on_the_page_about_exporting():
    lines = (ROOT / "docs" / "export.md").read_text().splitlines()
    first = [line.split("|")[1] for line in lines if line.startswith("| `")]
    for name in torchldr.structures():
        assert any(f"`{name}`" in cell for cell in first), name


@pytest.mark.parametrize("page", ["docs/notation.md"])
def test_parameter_counts_are_those_of_the_classes(page: str):
    counts = {row["name"]: row["parameters"] for row in describe_structures(784, 784)}
    rows = COUNT.findall((ROOT / page).read_text())
    assert len(rows) >= 8
    for name, count in rows:
        assert int(count.replace(",", "")) == counts[name], f"{page}: {name}"


def test_the_picture_of_what_a_layer_gains(tmp_path: Path, load_script):
    pytest.importorskip("matplotlib")
    script = load_script("scripts/gain_picture.py")
    assert script.main(tmp_path).stat().st_size > 20_000
    assert "performance/gain.png" in (ROOT / "docs" / "performance.md").read_text()
    ratios = script.panels()["inference"]["ldr_sd"]
    assert ratios[4096, 1] > 4 * ratios[512, 1]  # as the page says


def test_the_pictures_of_displacement(tmp_path: Path, load_script):
    """The script draws what the page shows, and the ranks below the pictures are those in the text."""
    pytest.importorskip("matplotlib")
    script = load_script("scripts/displacement_pictures.py")
    drawn = {path.name for path in script.main(tmp_path)}
    shown = re.findall(r"\(displacement/(\w+\.png)\)", (ROOT / "docs" / "displacement.md").read_text())
    assert drawn == set(shown) == {path.name for path in (ROOT / "docs" / "displacement").iterdir()}
    T = script.toeplitz()
    assert (script.rank(T), script.rank(T - script.moved(T))) == (script.N, 2)
