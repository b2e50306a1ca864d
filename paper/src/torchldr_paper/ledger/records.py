"""A line of the ledger: a run, its data, its outcome, and where and with what it was computed."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch

from torchldr import __version__

from ..protocol import Run
from ..trainer.batches import Images, Split
from ..trainer.selection import Best, Mean
from ..trainer.training import Outcome, outcome_json

VERSION = 1


@dataclass(frozen=True)
class Record:
    """A finished run.

    Attributes:
        run: what was run.
        data: "source" ("official", "stand-in", "user"), "fingerprint", and the number of "train",
            "validation" and "test" images.
        result: "parameters", "seconds", "best", "mean", "diverged", "metrics" and "notes" of its outcome.
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
        data = {
            "source": images.source,
            "fingerprint": images.fingerprint,
            "train": len(split.train),
            "validation": len(split.validation),
            "test": len(images.test_y),
        }
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        machine = {"device": device_name(images.device), "versions": versions()}
        return cls(run, data, outcome_json(outcome), machine, now)

    @property
    def hash(self) -> str:
        return self.run.hash

    @property
    def source(self) -> str:
        return str(self.data["source"])

    @property
    def fingerprint(self) -> str:
        return str(self.data["fingerprint"])

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

    @classmethod
    def from_json(cls, line: Any) -> Self:
        """The record of a line, checked.

        Raises:
            ValueError, TypeError, KeyError: when it is not one.
        """
        if not isinstance(line, dict):
            raise TypeError("not an object")
        if line["version"] != VERSION:
            raise ValueError(f"version {line['version']!r} is not known here, only {VERSION}")
        record = cls(
            Run.from_config(line["config"]), line["data"], line["result"], line["machine"], line["time"]
        )
        if record.hash != line["hash"]:
            raise ValueError(f"its hash is {line['hash']!r}, its config gives {record.hash!r}")
        # Reading what tables need shows now, not later, whether it is there.
        _ = record.source, record.fingerprint, record.best, record.mean, record.result["parameters"]
        float(record.result["seconds"])
        return record


def device_name(device: torch.device) -> str:
    """What a device is called: a GPU's name, or the processor's."""
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
