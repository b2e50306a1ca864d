"""The paper's experiments: networks, the fleet trainer, the ledger of results, the tables.

    from torchldr_paper import Ledger, Library, Run, sweep, table_rows, get_table

    run = Run("rectangles", structure="ldr_sd", rank=1)    # the paper's protocol, from seed 0
    ledger = Ledger()                                      # published runs, and those of this machine
    sweep([run], ledger, Library(choose_device()))         # trains it, unless the ledger has it
    ledger.find(run).best                                  # learning rate, epoch, test accuracy

    table_rows(get_table("shl"), ledger)                   # our numbers beside the paper's

A run is frozen data with a hash. `train_run` trains its learning rates and trials together. `sweep` does
so for many runs, resumes interrupted ones and appends each to the ledger. Tables are functions of
the ledger alone. On the command line: `torchldr paper`, `torchldr train`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

# This loads torch, except on the command line, where each command loads it when it runs.
from torchldr import __version__ as _version  # noqa: F401

if TYPE_CHECKING or "torch" in sys.modules:
    from . import language
    from .ledger.ledger import Ledger, default_results
    from .ledger.records import Record
    from .ledger.weights import load_network
    from .models.images import ConvNet, PrunedLinear, SingleHiddenLayer, build_model, count_parameters
    from .protocol import Protocol, Run
    from .tables.cells import Table
    from .tables.paper import TABLES, get_table
    from .tables.rows import overview, run_rows, table_rows
    from .trainer.batches import Images
    from .trainer.sweep import Library, choose_device, sweep
    from .trainer.training import Outcome, train_run

__version__ = "0.3.0"

__all__ = [
    "TABLES",
    "ConvNet",
    "Images",
    "Ledger",
    "Library",
    "Outcome",
    "Protocol",
    "PrunedLinear",
    "Record",
    "Run",
    "SingleHiddenLayer",
    "Table",
    "build_model",
    "choose_device",
    "count_parameters",
    "default_results",
    "get_table",
    "language",
    "load_network",
    "overview",
    "run_rows",
    "sweep",
    "table_rows",
    "train_run",
]

# The modules that define these names, searched in this order.
_HOMES = ("ledger.ledger", "ledger.records", "ledger.weights", "models.images", "protocol", "tables.cells",
          "tables.paper", "tables.rows", "trainer.batches", "trainer.sweep", "trainer.training")  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'torchldr_paper' has no attribute {name!r}")
    if name == "language":
        return import_module(".language", __name__)
    homes = (import_module(f".{home}", __name__) for home in _HOMES)
    return next(getattr(home, name) for home in homes if hasattr(home, name))
