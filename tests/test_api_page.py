"""docs/api.md lists what the package has."""

import importlib.util
from pathlib import Path

import pytest

import torchldr

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "api_page.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("api_page", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script):
    assert script.page() == script.PAGE.read_text(encoding="utf-8"), "run python scripts/api_page.py"


def test_every_name_is_there_and_said_what_it_is(script):
    rows = [line.split("`") for line in script.page().splitlines() if line.startswith("| `")]
    assert set(torchldr.__all__) <= {row[1].split("(")[0] for row in rows}
    assert all(len("`".join(row[2:]).strip(" |")) > 8 for row in rows)
