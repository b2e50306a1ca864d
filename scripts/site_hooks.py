"""Hooks of mkdocs besides mkdocs.yml: formulas become MathML, and files of the root join the site.

Formulas stand as TeX in the pages, `$..$` and `$$..$$`, which code hosts show as well. Browsers render
MathML themselves: no script and no fonts are needed.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
OUTWARDS = re.compile(r"(\]\()((?:\.\./)+)(?=\w)")
# Pages of the root, and what pages of docs/ link to outside of it; each lies in the site's root.
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINKED = ("examples/**/*.py", "examples/microcontroller/Makefile", "results/bench/*.json")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add files from beside docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    for path in (path for pattern in LINKED for path in sorted(ROOT.glob(pattern))):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links out of docs/ lead to where `on_files` put their files; the search finds classes first."""
    source = page.file.src_uri
    if source.startswith("classes/") and source != "classes/index.md":
        page.meta.setdefault("search", {"boost": 4})
    if source in PAGES.values():
        return re.sub(r"\]\(docs/", "](", markdown)
    for name, renamed in PAGES.items():
        markdown = markdown.replace(f"../{name})", f"../{renamed})")
    depth = source.count("/")

    def inside(match: re.Match[str]) -> str:
        steps = match[2].count("../")
        return match[1] + "../" * (steps - 1 if steps > depth else steps)

    return OUTWARDS.sub(inside, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas of a page as MathML."""
    return FORMULA.sub(mathml, content)


def mathml(match: re.Match[str]) -> str:
    block = match[1] == "div"
    text = convert(html.unescape(match[2]).strip(), display="block" if block else "inline")
    return f'<div class="formula">{text}</div>' if block else str(text)
