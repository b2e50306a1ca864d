"""Real models compressed, then trained for a fixed number of steps: every class, other methods, and bytes.

    python benchmarks/recovery.py MODELS TOKENS [--models minilm smollm2] [--budgets 0.5 0.25]
                                  [--device cuda] [--processes 8] [--out results/bench/recovery.json]

MODELS has the folders `minilm` and `smollm2` of real_models.py, TOKENS is the file that it writes. Every
method leaves the same share of the parameters of all linear layers of the blocks:

    compress_                   the default call
    a class                     by `compress_` where it reaches that share, else a uniform share that starts
                                as the whitened low-rank approximation written in the class
    SVD, whitened SVD           a uniform share, in the plain norm or by the covariance of the inputs
    pruning                     the largest weights of each layer
    dense                       all of them

The quality (Spearman's correlation on STS-B dev in percent, perplexity on WikiText-2) is that before
training, after it (`finetune` from the original's outputs, without labels), and after rounding to int8
(`quantize_`); bytes are those of the layers that were compressed, as float32 and after rounding.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from itertools import chain, islice, product, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from real_models import SentenceJudge, Sentences, WindowJudge, load_encoder, load_llama, load_tokens
from torch import Tensor, nn
from torch.nn.utils import prune
from whitened_svd import Parts, decomposed, input_moments, linear_layers, low_rank, rank_of

import torchldr
from torchldr.compress import Distillation
from torchldr.timing import machine
from torchldr_paper.compression import STARTED, started_layer, structure_for
from torchldr_paper.tables.compression import Method

STEPS = {"minilm": 300, "smollm2": 100}
RATE = 5e-4
CALLED = ("low_rank", "block_circulant", "monarch", "kronecker", "blast")  # reach any share by `compress_`
UNTRAINED = ("SVD", "whitened SVD")
METHODS = ("compress_", *CALLED, *STARTED, *UNTRAINED, "pruning")


class Task:
    """A model, what it is calibrated and trained with, and who judges it."""

    def __init__(self, name: str, models: str, tokens: str, device: str) -> None:
        known, self.name, self.device = load_tokens(Path(tokens)), name, device
        if name == "minilm":
            self.model: nn.Module = load_encoder(Path(models) / name).to(device)
            sts, wiki = ((known[key], known[f"{key}_lengths"]) for key in ("sts", "wiki"))
            self.calibration: Iterable[Any] = Sentences(sts[0][:3000], sts[1][:3000], 60, device=device)
            longest = max(part[0].shape[1] for part in (sts, wiki))
            both = [nn.functional.pad(part[0], (0, longest - part[0].shape[1])) for part in (sts, wiki)]
            lengths = torch.cat([sts[1], wiki[1]])
            self.training: Iterable[Any] = Sentences(
                torch.cat(both), lengths, 64, shuffled=True, device=device
            )
            self.judge: Callable[[nn.Module], dict[str, float]] = SentenceJudge(known, self.model, device)
        else:
            self.model = load_llama(Path(models) / name).to(device)
            windows = known["train_windows"].to(device)
            self.calibration = [{"ids": batch} for batch in windows[:256].split(4)]
            self.training = [{"ids": batch} for batch in windows[256:].split(16)]
            self.judge = WindowJudge(known["test_windows"], device)

    @cache  # noqa: B019  (one a process)
    def moments(self) -> dict[str, Tensor]:
        return input_moments(self.model, self.calibration)

    @cache  # noqa: B019
    def decomposed(self, name: str) -> Parts:
        return decomposed(linear_layers(self.model)[name].weight, self.moments()[name])

    def low_rank(self, name: str, rank: int) -> Tensor:
        """The whitened approximation of a weight."""
        return low_rank(self.decomposed(name), rank)


@torch.no_grad()
def compressed(task: Task, method: str, budget: float) -> nn.Module:
    model = copy.deepcopy(task.model)
    if method == "compress_" or method in CALLED:
        some = {} if method == "compress_" else {"structures": [method]}
        with torch.enable_grad():
            torchldr.compress_(model, budget, loader=task.calibration, **some)
        return model
    for name, layer in linear_layers(model).items():
        W, rank = layer.weight, rank_of(budget, layer)
        if method == "pruning":
            smallest = W.abs().flatten().kthvalue(W.numel() - int(budget * W.numel())).values
            prune.custom_from_mask(layer, "weight", (W.abs() > smallest).to(W.dtype))
        elif method == "whitened SVD":
            W.copy_(task.low_rank(name, rank))
        elif method == "SVD":
            U, s, V = torch.linalg.svd(W.double(), full_matrices=False)
            W.copy_((U[:, :rank] * s[:rank]) @ V[:rank])
        elif method in STARTED:
            model.set_submodule(name, _started(task, name, method, round(1 / budget), layer))
    return model


def _started(task: Task, name: str, method: str, factor: int, layer: nn.Linear) -> nn.Module:
    """A structured layer that is the whitened low-rank approximation of this one."""
    structure = structure_for(Method(method, factor), *layer.weight.shape)
    assert structure is not None
    rank = structure.rank or 1
    near = task.low_rank(name, rank if method in ("ldr_sd", "ldr_td") else rank // 2)
    return started_layer(layer, structure, near)


def size(model: nn.Module, task: Task) -> tuple[int, int]:
    """Parameters and bytes of the layers that were compressed, biases not counted."""
    parameters = stored = 0
    for name in linear_layers(task.model):
        kept = {key: t for key, t in model.get_submodule(name).state_dict().items() if key != "bias"}
        if "weight_mask" in kept:
            parameters += int(kept["weight_mask"].sum())
            stored += 4 * int(kept["weight_mask"].sum()) + kept["weight_mask"].numel() // 8
            continue
        parameters += sum(t.numel() for k, t in kept.items() if not k.endswith("original0"))
        stored += sum(t.nbytes for t in kept.values())
    return parameters, stored


def case(
    name: str, method: str, budget: float, steps: int | None, models: str, tokens: str, device: str
) -> dict[str, Any]:
    """One method at one budget."""
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    task = _task(name, models, tokens, device)
    begun = time.perf_counter()
    model = compressed(task, method, budget)
    seconds, before, (parameters, stored) = time.perf_counter() - begun, task.judge(model), size(model, task)
    whole = sum(layer.weight.numel() for layer in linear_layers(task.model).values())
    row: dict[str, Any] = {"model": name, "method": method, "budget": budget, "before": before}
    row |= {"share": round(parameters / whole, 4), "bytes": stored, "seconds": round(seconds, 1)}
    if method in UNTRAINED:
        row |= {"share": budget, "bytes": int(4 * budget * whole)}
    else:
        begun = time.perf_counter()
        batches = list(islice(chain.from_iterable(repeat(task.training)), steps or STEPS[name]))
        how = Distillation(task=0, layers=0)
        result = torchldr.finetune(model, batches, lr=RATE, teacher=task.model, distillation=how)
        row |= {"after": task.judge(model), "training": round(time.perf_counter() - begun, 1)}
        row["steps"] = result.steps
    if method not in ("pruning", *UNTRAINED):
        torchldr.quantize_(model, where=lambda key, module: key.startswith("blocks."))
        row |= {"int8": task.judge(model), "int8_bytes": size(model, task)[1]}
    return row


@cache
def _task(*given: str) -> Task:
    return Task(*given)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("tokens")
    parser.add_argument("--models", nargs="+", default=["minilm", "smollm2"])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.5, 0.25])
    parser.add_argument("--steps", type=int, help="of training; by default as many as suit a model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cases = list(product(options.models, options.methods, options.budgets))
    cases = [(name, "dense", 1.0) for name in options.models] + cases
    rows: list[dict[str, Any]] = []
    rest = options.steps, options.folder, options.tokens, options.device
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(case, *one, *rest): one for one in cases}
        for future in as_completed(futures):
            try:
                rows.append(future.result())
                print(rows[-1], flush=True)
            except Exception:  # one class that fails leaves the others
                print(futures[future], traceback.format_exc(), flush=True)
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
