"""Options with several values."""

from __future__ import annotations

from torchldr.cli.options import spread


def test_spread() -> None:
    several = {"--rank", "--structure"}
    assert spread(["--rank=1", "2", "--x", "3", "4"], several) == ["--rank=1", "--rank", "2", "--x", "3", "4"]
    assert spread(["--rank", "1", "2", "-o", "x", "y"], several) == [
        "--rank",
        "1",
        "--rank",
        "2",
        "-o",
        "x",
        "y",
    ]
    assert spread(["--rank", "1", "-2", "-.5"], several) == ["--rank", "1", "--rank", "-2", "--rank", "-.5"]
    assert spread(["n", "--structure", "a", "b", "c"], several)[1:] == [
        "--structure", "a", "--structure", "b", "--structure", "c",
    ]  # fmt: skip
