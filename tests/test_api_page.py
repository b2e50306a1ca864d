"""docs/api.md lists what the package has."""

import ast
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


def test_the_names_of_every_module_are_there(script):
    page, root = script.page(), Path(torchldr.__file__).parent
    inside = ("core", "functional", "kernels")  # not for users
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] not in (*inside, "hf.py"):  # that needs transformers
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    missing = [name for name in ast.literal_eval(node.value) if f"| `{name}" not in page]
                    assert not missing, f"{path.relative_to(root)}: {missing}"
