"""A line of the ledger: a run, its data, its outcome, and where and with what it was computed.

A line ends with a checksum of what stands before it. Lines of version 0.1 have none and are read all the
same.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch

from torchldr import __version__

from ..protocol import HASH_LENGTH, Run
from ..trainer.batches import Images, Split
from ..trainer.selection import Best, Mean
from ..trainer.training import Outcome, outcome_json
from .checks import check_line

VERSION = 1
_MARK = ',"checksum":"'


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
    def of(cls, run: Run, images: Images, outcome: Outcome, weights: str | None = None) -> Record:
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
        kept = {} if weights is None else {"weights": weights}
        return cls(run, data, {**outcome_json(outcome), **kept}, machine, now)

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
    def from_line(cls, line: str) -> Self:
        """The record of a line, checked.

        Raises:
            Exception: of any kind, when it is not one.
        """
        found = json.loads(line, parse_constant=_no_number)
        if not isinstance(found, dict):
            raise TypeError("not an object")
        if "checksum" in found and found.get("version") == VERSION:
            body, _, _ = line.rpartition(_MARK)
            if found["checksum"] != _checksum(f"{body}}}"):
                raise ValueError("damaged: its checksum is not that of its content")
        return cls.from_json(found)

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """The record of a parsed line; what reads it later finds all there and of its kind.

        Raises:
            Exception: of any kind, when it is not one.
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
        check_line(line, len(record.run.protocol.lrs) * record.run.protocol.trials)
        _ = record.source, record.fingerprint, record.best, record.mean
        return record


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


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
