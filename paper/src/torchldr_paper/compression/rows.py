"""The results: a line of JSON for each method of a table, appended when it is done."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..ledger.records import device_name, versions
from .methods import Method

FILE = "compression.jsonl"
WEIGHTS = "weights"  # the folder of the dense models
_NEEDED = ("table", "method", "factor", "parameters", "dense", "before", "after", "settings", "quick")

Row = dict[str, Any]


def settings_key(settings: Mapping[str, Any]) -> str:
    """A name for settings: rows of others are not counted as done."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Rows:
    """The rows in a folder.

    Args:
        results: the folder; its file is made when something is written.
    """

    def __init__(self, results: str | os.PathLike[str]) -> None:
        self.path = Path(results) / FILE
        self.rows: list[Row] = []
        self.problems: list[str] = []
        if self.path.is_file():
            for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    row = json.loads(line)
                    _ = [row[name] for name in _NEEDED]
                    self.rows.append(row)
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    self.problems.append(f"{self.path}, line {number}: {error!r}")

    def find(self, table: str, method: Method, settings: str) -> Row | None:
        """The row of a method with these settings; the latest where there are several."""
        for row in reversed(self.rows):
            same = row["table"], row["method"], row["factor"], row["settings"]
            if same == (table, method.name, method.factor, settings):
                return row
        return None

    def of(self, table: str, *, quick: bool = False) -> list[Row]:
        """The rows of a table with the settings of its latest row, later ones for earlier ones."""
        own = [row for row in self.rows if row["table"] == table and row["quick"] == quick]
        if not own:
            return []
        latest = own[-1]["settings"]
        found = {(row["method"], row["factor"]): row for row in own if row["settings"] == latest}
        return list(found.values())

    def append(self, row: Mapping[str, Any], device: torch.device) -> None:
        """Write a row, with the machine and the time."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        whole = {**row, "device": device_name(device), "versions": versions(), "time": now}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            if stream.tell() and not self.path.read_bytes().endswith(b"\n"):
                stream.write("\n")  # a line that was cut off stays alone
            stream.write(json.dumps(whole) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.rows.append(json.loads(json.dumps(whole)))
