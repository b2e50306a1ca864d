"""The table of docs/microcontroller.md is what the benchmark found."""

import json


def test_the_page_is_up_to_date(load_script):
    script = load_script("benchmarks/microcontroller.py")
    page = script.PAGE.read_text()
    rows = json.loads(script.RESULTS.read_text())["rows"]
    assert script.filled(page, rows) == page, "run python benchmarks/microcontroller.py --page"
    assert {row["structure"] for row in rows} == {name for name, *_ in script.cases()}
