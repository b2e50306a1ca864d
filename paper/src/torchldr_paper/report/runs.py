"""The runs behind the numbers, as the JSON that the page's panels are made from."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..figures.names import source_title
from ..ledger.ledger import Ledger
from ..ledger.records import Record

CURVES = ("train", "validation", "test")


def packed_runs(ledger: Ledger) -> str:
    """Every run of the ledger as JSON, compressed, in letters that can stand anywhere: the page unpacks it.

    One run may have been trained on official data and on a stand-in, so that the source is part of its key.
    """
    runs = {f"{record.source}/{record.hash}": run_json(record) for record in ledger}
    compact = json.dumps(runs, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(compact.encode(), mtime=0)).decode()


def run_json(record: Record) -> dict[str, Any]:
    """What a panel shows of a run: all but the metrics of the replicas that were not chosen."""
    result, best = record.result, record.best
    return {
        "label": record.run.label,
        "hash": record.hash,
        "config": record.run.config(),
        "data": {**record.data, "source": source_title(record.source)},
        "parameters": result["parameters"],
        "seconds": result["seconds"],
        "best": result["best"],
        "mean": result["mean"],
        "curves": {} if best is None else _curves(result["metrics"], best.replica),
        "replicas": _replicas(record),
        "notes": result.get("notes") or {},
        "machine": dict(record.machine),
        "time": record.time,
    }


def _curves(metrics: Any, replica: int) -> dict[str, list[float | None]]:
    """Accuracies of one replica by epoch."""
    return {name: [_short(row[replica]) for row in metrics[name]] for name in CURVES if name in metrics}


def _replicas(record: Record) -> list[dict[str, Any]]:
    """Each replica: its rate and trial, its best validation (accuracy, or perplexity), the test there."""
    metrics, diverged = record.result["metrics"], record.result["diverged"]
    sign = -1 if record.run.model == "lstm" else 1  # of a perplexity the lowest is the best
    rows = []
    for i, replica in enumerate(record.run.protocol.replicas):
        validation = _column(metrics.get("validation", ()), i)
        test = _column(metrics.get("test", ()), i)
        known = [(sign * value, -epoch) for epoch, value in enumerate(validation) if value is not None]
        peak = -max(known)[1] if known else None
        rows.append(
            {
                "lr": replica.lr,
                "trial": replica.trial,
                "validation": None if peak is None else _short(validation[peak]),
                "test": None if peak is None or peak >= len(test) else _short(test[peak]),
                "diverged": diverged[i] if i < len(diverged) else None,
            }
        )
    return rows


def _column(rows: Iterable[Sequence[float | None]], index: int) -> list[float | None]:
    return [row[index] if index < len(row) else None for row in rows]


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
