"""A sentence encoder compressed without training: Spearman's correlation on STS-B, beside whitened SVD.

    python benchmarks/compress_minilm.py MODEL TOKENS [--budgets 0.5 0.3] [--effort 2] [--alone NAME ..]

MODEL is a folder with config.json and model.safetensors of all-MiniLM-L6-v2, TOKENS what real_models.py
makes of the texts. For every budget and calibration text: the default call of `compress_`, the same with one
class alone, and a uniform share of SVD whitened by the inputs' covariance with the same sentences; their
correlation on the 1,500 pairs of STS-B dev, and the mean cosine between their embeddings and the original's.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from real_models import SentenceJudge, Sentences, load_encoder, load_tokens
from torch import Tensor, nn
from whitened_svd import whiten_

import torchldr


def calibrations(tokens: dict[str, Tensor]) -> dict[str, Sentences]:
    """Sentences drawn at random: the files are sorted by kind, and STS-B begins with captions alone."""
    many, some = (
        Sentences(tokens[name][:count], tokens[f"{name}_lengths"][:count], size)
        for name, count, size in (("sts", 3000, 60), ("wiki", 256, 32))
    )
    return {"sts-b, 3000": many, "wikitext-2, 256": some}


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--texts", nargs="+", default=["sts-b, 3000", "wikitext-2, 256"])
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.5, 0.3])
    parser.add_argument("--effort", type=float, help="minutes; the default of compress_ where not given")
    parser.add_argument("--alone", nargs="*", default=["low_rank", "block_circulant"], help="single classes")
    parser.add_argument("--out", type=Path, default=Path("results/bench/compress_minilm.json"))
    options = parser.parse_args()
    original, tokens = load_encoder(options.model), load_tokens(options.tokens)
    judge = SentenceJudge(tokens, original)
    rows: list[dict[str, Any]] = []
    machine = {"machine": platform.machine(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def add(model: nn.Module, method: str, budget: float, **more: Any) -> None:
        rows.append({"method": method, "budget": budget, **judge(model), **more})
        print(rows[-1], flush=True)
        found = {**machine, "effort": options.effort, "rows": rows}
        options.out.write_text(json.dumps(found, indent=2) + "\n")

    add(original, "dense", 1.0)
    for text, budget in product(options.texts, options.budgets):
        loader = calibrations(tokens)[text]
        for name in (None, *options.alone):
            model, wall, work = copy.deepcopy(original), time.perf_counter(), time.process_time()
            given = {} if name is None else {"structures": [name]}
            report = torchldr.compress_(model, budget, loader=loader, effort=options.effort, **given)
            wall, work = time.perf_counter() - wall, time.process_time() - work
            share = round(report.parameters_after / report.parameters_before, 4)
            more = {"share": share, "distance": report.distance, "notes": list(report.notes)}
            more |= {"seconds": round(wall, 1), "cpu": round(work, 1)}
            add(model, "compress_" if name is None else f"compress_, {name} alone", budget, text=text, **more)
        model = copy.deepcopy(original)
        whiten_(model, budget, loader)
        add(model, "uniform whitened SVD", budget, text=text)


if __name__ == "__main__":
    main()
