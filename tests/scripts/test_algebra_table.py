"""The table of docs/algebra.md is what the algebra does."""

import pytest


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("scripts/algebra_table.py")


def test_the_page_is_up_to_date(script):
    assert script.page() == script.PAGE.read_text(), "run python scripts/algebra_table.py"


def test_a_wrong_formula_would_be_noticed(script):
    class Squared(script.torchldr.ToeplitzLike, name="squared_for_a_test"):
        @property
        def rank_bound(self):
            return self.rank**2

    try:
        with pytest.raises(ValueError, match="are not linear in r"):
            script.formula(Squared)
    finally:
        from torchldr.core.registry import REGISTRY

        del REGISTRY["squared_for_a_test"]
