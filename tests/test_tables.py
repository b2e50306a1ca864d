"""Tables fit the width they are given, and no name is ever cut."""

from __future__ import annotations

import pytest

from torchldr.tables import Column, table_lines, table_text

NAMES = Column("name", ("toeplitz_like", "a_name_that_is_longer_than_twenty"))
SUMMARIES = Column("summary", ("A sum of Krylov matrices, one for each rank.", "Short, but with spaces too."))
COUNTS = Column("parameters", ("1,568", "614,656"), right=True)
NOTES = Column("notes", ("-", "x" * 30))


def test_what_fits_stands_side_by_side():
    lines, left_out = table_lines([NAMES, COUNTS, SUMMARIES], 120)
    assert not left_out
    assert len(lines) == 4
    assert lines[2].split() == ["toeplitz_like", "1,568", *SUMMARIES.cells[0].split()]
    assert lines[0].index("parameters") + len("parameters") == lines[2].index("1,568") + len("1,568")


@pytest.mark.parametrize("width", [40, 50, 60, 80, 100])
def test_narrow_tables_keep_every_word_of_the_columns_that_stay(width: int):
    columns = [NAMES, COUNTS, SUMMARIES, NOTES]
    lines, left_out = table_lines(columns, width)
    assert all(len(line) <= width for line in lines)
    words = " ".join(lines).split()
    for column in columns:
        kept = {word for cell in column.cells for word in cell.split()} <= {*words}
        assert kept is (column.heading not in left_out)
    assert "name" not in left_out
    assert "summary" not in left_out  # wrapped, or below its row
    assert not left_out or left_out[-1] == "notes"  # from the end


def test_a_table_without_rows_is_its_headings():
    lines, left_out = table_lines([Column("name", ()), Column("runs", (), right=True)], 80)
    assert lines == ["name  runs", "----  ----"]
    assert not left_out


def test_one_row_that_is_too_wide_is_a_list():
    columns = [Column("file", ("x" * 70,)), Column("accuracy", ("98.5",), right=True), Column("note", ("",))]
    lines, left_out = table_lines(columns, 60)
    assert lines == ["file      " + "x" * 70, "accuracy  98.5", "note"]
    assert not left_out
    assert len(table_lines(columns, 120)[0]) == 3


def test_short_cells_with_spaces_stay_in_their_row_or_go():
    rates = Column("lr", ("0.002, 0.002, 0.001", "0.0005, 0.002, 0.001"))
    sources = Column("source", ("Tables 1 and 6", "footnote of Section 5"))
    lines, left_out = table_lines([Column("model", ("shl", "cnn")), COUNTS, rates, sources], 50)
    assert left_out == ["source"]
    assert len(lines) == 4


def test_a_long_name_stands_above_its_row():
    heads, name = ("name", "shape", "parameters"), "layer." * 9
    rows = [(name, "4096 x 4096", "16,777,216 -> 131,072"), ("head", "8 x 8", "64 -> 16")]
    lines = table_text(heads, rows, 60, right=heads[2:], breaks=heads[2:])
    assert lines[3:5] == [name, "    4096 x 4096  16,777,216 -> 131,072"]
    assert lines[5:] == ["head", "    8 x 8                     64 -> 16"]
    lines = table_text(heads, rows, 35, right=heads[2:], breaks=heads[2:])
    assert lines[3:6] == [name, "    4096 x 4096       16,777,216 ->", "                            131,072"]
    assert table_text(heads, rows, 20, breaks=heads[2:])[-1] == "no room for: parameters"
