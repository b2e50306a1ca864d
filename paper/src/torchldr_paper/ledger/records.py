"""A line of the ledger: a run, its data, its outcome, and the machine and versions that computed it.

A line ends with a checksum of the text before it. Lines of version 0.1 have none and can still be read.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import UnionType
from typing import Any, Self

import numpy as np
import torch

from torchldr import __version__

from ..protocol import HASH_LENGTH, Run
from ..trainer.batches import Images, Split
from ..trainer.selection import Best, Mean
from ..trainer.training import Outcome, outcome_json

VERSION = 1
_MARK = ',"checksum":"'
_METRICS = '"metrics":{'  # lists of numbers by name: no brace but the one that ends them


@dataclass(frozen=True)
class Record:
    """A finished run.

    Attributes:
        run: what was run.
        data: "source" ("official", "stand-in", "user"), "fingerprint", and the number of "train",
            "validation" and "test" images.
        result: "parameters", "seconds", "best", "mean", "diverged", "metrics" and "notes" of its outcome, and
            the checksum of its "weights" where they were kept.
        machine: "device" and "versions".
        time: when it was finished, ISO 8601 in UTC.
    """

    run: Run
    data: Mapping[str, Any]
    result: Mapping[str, Any]
    machine: Mapping[str, Any]
    time: str

    @classmethod
    def of(cls, run: Run, images: Images, outcome: Outcome) -> Record:
        split = Split.of(run, len(images.train_y))
        counts = len(split.train), len(split.validation), len(images.test_y)
        return cls.now(run, images, counts, outcome_json(outcome))

    @classmethod
    def now(cls, run: Run, data: Any, counts: Sequence[int], result: Mapping[str, Any]) -> Record:
        """A run that has ended just now, on so many images or words of data that lies on a device."""
        facts = {"source": data.source, "fingerprint": data.fingerprint}
        facts |= zip(("train", "validation", "test"), counts, strict=True)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(run, facts, result, {"device": device_name(data.device), "versions": versions()}, now)

    @property
    def hash(self) -> str:
        return self.run.hash

    @property
    def source(self) -> str:
        return str(self.data["source"])

    @property
    def fingerprint(self) -> str:
        return str(self.data["fingerprint"])

    @property
    def weights(self) -> str | None:
        """The checksum of the file of its selected network, None where none was kept."""
        found = self.result.get("weights")
        return None if found is None else str(found)

    @cached_property
    def best(self) -> Best | None:
        best = self.result["best"]
        return None if best is None else Best(**best)

    @cached_property
    def mean(self) -> Mean | None:
        mean = self.result["mean"]
        return None if mean is None else Mean(**mean)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "hash": self.hash,
            "config": self.run.config(),
            "data": dict(self.data),
            "result": dict(self.result),
            "machine": dict(self.machine),
            "time": self.time,
        }

    def to_line(self) -> str:
        """The line of the ledger, without its end."""
        text = json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False)
        return f'{text[:-1]}{_MARK}{_checksum(text)}"}}'

    @classmethod
    def from_line(cls, line: str, *, curves: bool = True) -> Self:
        """The record of a line; raises an exception of any kind when it is not one.

        Args:
            line: as `to_line` writes it.
            curves: False leaves the metrics empty and unread: they are most of a line.
        """
        text = line if curves else _without_metrics(line)
        found = json.loads(text, parse_constant=_no_number)
        if not isinstance(found, dict):
            raise TypeError("not an object")
        summed = "checksum" in found and found.get("version") == VERSION
        if summed:
            body, _, _ = line.rpartition(_MARK)
            if found["checksum"] != _checksum(f"{body}}}"):
                raise ValueError("damaged: its checksum is not that of its content")
        return cls.from_json(found, whole=summed)

    @classmethod
    def from_json(cls, line: Mapping[str, Any], *, whole: bool = False) -> Self:
        """The record of a parsed line, checked, so that later code finds every field and the right types.

        `whole`: its checksum is right, so it is what `to_line` wrote and is not checked again.
        """
        if line["version"] != VERSION:
            raise ValueError(f"version {line['version']!r} is not known here, only {VERSION}")
        record = cls(
            Run.from_config(line["config"]), line["data"], line["result"], line["machine"], line["time"]
        )
        if record.hash != line["hash"]:
            raise ValueError(f"its hash is {line['hash']!r}, its config gives {record.hash!r}")
        if record.run.config() != line["config"]:
            raise ValueError("its config is not as a run writes it")
        if not whole:
            check_line(line, len(record.run.protocol.lrs) * record.run.protocol.trials)
        _ = record.source, record.fingerprint, record.best, record.mean
        return record


def _without_metrics(line: str) -> str:
    before, mark, after = line.partition(_METRICS)
    return f"{before}{mark}}}{after.partition('}')[2]}" if mark else line


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def device_name(device: torch.device) -> str:
    """The name of a device: the GPU's, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}, {torch.get_num_threads()} threads"


def versions() -> dict[str, str]:
    """Versions of what computes the numbers."""
    return {
        "torchldr": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


# What a line must hold, so that tables, figures and the report find all there.

_DEPTH = 8  # how deep what is not a metric may be nested
Kinds = Mapping[str, type | UnionType]
_LINE: Kinds = {"data": dict, "result": dict, "machine": dict, "time": str}
_RESULT: Kinds = {
    "parameters": int,
    "seconds": int | float,
    "best": dict | None,
    "mean": dict | None,
    "diverged": list,
    "metrics": dict,
    "notes": dict | None,
}
_NUMBERS = {int, float}


def check_line(line: Mapping[str, Any], replicas: int) -> None:
    """Raise an error if a parsed line is not a record of this many replicas; it does not say where."""
    _check_kinds(line, _LINE)
    result = line["result"]
    _check_kinds({"notes": None, **result}, _RESULT)
    for numbers in (result["best"] or {}, result["mean"] or {}, {"seconds": result["seconds"]}):
        for name, value in numbers.items():
            if type(value) not in _NUMBERS or not math.isfinite(value):
                raise TypeError(f"{name} must be a finite number, got {value!r:.60}")
    chosen = (result["best"] or {"replica": 0})["replica"]
    if chosen not in range(replicas):
        raise ValueError(f"replica must be one of {replicas}, got {chosen}")
    for row in (result["diverged"], *(row for metric in result["metrics"].values() for row in metric)):
        _check_row(row, replicas)
    plain = {**line, "result": {**result, "metrics": list(result["metrics"])}}
    _check_depth(plain, _DEPTH)
    # Every number is finite, and every text can be written.
    json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()


def _check_row(row: Any, replicas: int) -> None:
    if not isinstance(row, list) or len(row) != replicas or not {*map(type, row)} <= {*_NUMBERS, type(None)}:
        raise ValueError(f"metrics and diverged must hold {replicas} numbers or nulls, got {row!r:.60}")
    if not math.isfinite(sum(filter(None, row))):
        raise ValueError("metrics must be finite")


def _check_kinds(values: Mapping[str, Any], kinds: Kinds) -> None:
    for name, kind in kinds.items():
        if not isinstance(values[name], kind):
            raise TypeError(f"{name} must not be {type(values[name]).__name__}")


def _check_depth(value: Any, left: int) -> None:
    if not left:
        raise ValueError(f"nested deeper than {_DEPTH}")
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            _check_depth(part, left - 1)
