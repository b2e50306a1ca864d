from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="session")
def fill_pages(load_script) -> ModuleType:
    """The script that fills the pages, with the modules of `page_tables` that it takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        return load_script("scripts/fill_pages.py")
