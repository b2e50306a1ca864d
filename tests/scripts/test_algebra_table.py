"""The tables of docs/algebra.md are what the algebra does."""

import pytest


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("scripts/algebra_table.py")


def test_the_page_is_up_to_date(script):
    assert script.page() == script.PAGE.read_text(), "run python scripts/algebra_table.py"


def test_a_wrong_formula_would_be_noticed(script):
    cls = script.torchldr.ToeplitzLike
    squared = lambda M, N: script.torchldr.ToeplitzLike.random(64, 64, M.rank * M.rank * N.rank * N.rank)
    with pytest.raises(ValueError, match="do not follow a sum"):
        script.formula(cls, squared)
