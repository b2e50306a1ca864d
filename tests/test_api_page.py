"""docs/api.md lists what the package has."""

from pathlib import Path

import pytest

import torchldr


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("scripts/api_page.py")


def test_the_page_is_up_to_date(script):
    assert script.page() == script.PAGE.read_text(encoding="utf-8"), "run python scripts/api_page.py"


def test_every_name_is_there_and_said_what_it_is(script):
    rows = [line.split("`") for line in script.page().splitlines() if line.startswith("| `")]
    assert set(torchldr.__all__) <= {row[1].split("(")[0] for row in rows}
    assert all(len("`".join(row[2:]).strip(" |")) > 8 for row in rows)


def test_every_module_with_public_names_is_there(script):
    root = Path(torchldr.__file__).parent
    listed = {path.relative_to(root) for path in root.rglob("*.py") if "\n__all__ = " in path.read_text()}
    folders = {path.parent if path.name == "__init__.py" else path.with_suffix("") for path in listed}
    public = {".".join(("torchldr", *folder.parts)) for folder in folders}
    inside = {name for name in public if name.startswith(("torchldr.functional.", "torchldr.kernels."))}
    assert public - inside - {"torchldr"} <= {module.__name__ for module in script.MODULES}
