"""Trained networks compressed by every class at 2, 5, 10 and 20 times fewer parameters, and fine-tuned.

    python -m torchldr_paper.compression NAME [--device cuda] [--results FOLDER] [--quick] [--show]

NAME is the paper's SHL or CNN on images (shl_mnist, shl_cifar, cnn_mnist, cnn_cifar) or the GPT of
examples/gpt.py on WikiText-2 (gpt). A row of compression.jsonl is a method at a factor: the score as the
weights are replaced, and after `torchldr.finetune`, stopped where validation is best. Rows that are done are
not run again.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset, TensorDataset

from torchldr import from_dense
from torchldr.algebra import convert
from torchldr.cli import say
from torchldr.compress import Distillation, Step, Structure, compress_, finetune
from torchldr.matrices import StructuredMatrix
from torchldr.nn import StructuredLinear

from .data import DatasetNotFoundError, load, load_corpus
from .ledger.ledger import default_results
from .models.images import ConvNet, SingleHiddenLayer, hidden_input
from .protocol import Protocol, Run
from .tables.compression import PRUNED, Method, Row, Rows, best, methods, number, render
from .trainer.batches import Images, Split

OPERATORS = ("ldr_sd", "ldr_td")  # learned ones
STARTED = ("toeplitz_like", "hankel_like", "cauchy_like", "vandermonde_like", *OPERATORS)
CONTRACTED = 0.1  # where operators start
LARGEST_ON_A_CPU = 256  # features up to which LDR-TD is trained there
GPT_FILE = Path(__file__).resolve().parents[3] / "examples" / "gpt.py"


@dataclass(frozen=True)
class Study:
    """What the rows of a network depend on."""

    name: str
    data: str
    model: str
    dense_epochs: int
    epochs: int  # of fine-tuning
    batch: int
    dense_rate: float = 0.001
    rate: float = 0.001  # of fine-tuning
    decay: float = 0.0  # of the dense network
    looks: int = 12  # at validation
    width: int = 384  # of the GPT, as layers and length
    layers: int = 6
    length: int = 256
    limit: int | None = None  # images or words to train on
    seed: int = 0

    @property
    def key(self) -> str:
        """A name for these settings: only rows with the same name count as done."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def quick(self) -> Study:
        """A small version for a laptop."""
        small: dict[str, Any] = {"dense_epochs": 6, "epochs": 2, "looks": 2, "batch": 20, "limit": 2000}
        if self.model == "gpt":
            small |= {"width": 48, "layers": 2, "length": 16, "limit": 20_000, "dense_rate": 0.003}
        return replace(self, **small)


_IMAGES = {"dense_epochs": 15, "epochs": 12, "batch": 100}
_STUDIES = (
    Study("shl_cifar", "cifar10_grey", "shl", **_IMAGES),
    Study("cnn_cifar", "cifar10", "cnn", **_IMAGES),
    Study("shl_mnist", "mnist", "shl", **_IMAGES),
    Study("cnn_mnist", "mnist", "cnn", **_IMAGES),
    Study("gpt", "wikitext2", "gpt", 6, 1, 32, rate=0.0003, decay=0.05, looks=4),
)
STUDIES = {study.name: study for study in _STUDIES}
SHOWN = (*list(STUDIES)[:4], "lstm", "gpt")  # stored rows of an LSTM, which can no longer be run


class Task(NamedTuple):
    """A fresh network, what it learns from, and its score on "validation" and "test"."""

    source: str
    metric: str
    model: nn.Module
    batches: Any
    score: Callable[[nn.Module, str], float]
    how: dict[str, Any]  # further arguments of `finetune`
    distillation: Distillation | None = None


def image_task(study: Study, device: torch.device, data_dir: str | None) -> Task:
    protocol = Protocol(train_limit=study.limit, test_limit=study.limit)
    run = Run(study.data, study.model, seed=study.seed, protocol=protocol)
    images = Images.of(load(study.data, data_dir), run, device)
    split, size = Split.of(run, len(images.train_y)), hidden_input(study.model, images.image_shape)
    hidden, logits = nn.Linear(size, size, bias=study.model == "cnn"), nn.Linear(size, images.outputs)
    plain = study.model == "shl"
    model = SingleHiddenLayer(hidden, logits) if plain else ConvNet(images.image_shape[0], hidden, logits)
    known, train = TensorDataset(images.train_x, images.train_y), split.train.tolist()
    order = BatchSampler(RandomSampler(train), study.batch, drop_last=False)
    loader = DataLoader(Subset(known, train), sampler=order, batch_size=None)
    parts = {
        "validation": (images.train_x[split.validation], images.train_y[split.validation]),
        "test": (images.test_x, images.test_y),
    }

    @torch.no_grad()
    def accuracy(model: nn.Module, part: str) -> float:
        x, y = parts[part]
        found = torch.cat([model(some).argmax(-1) for some in x.split(5000)])
        return 100 * float((found == y).double().mean())

    how = Distillation(task=0.5, logits=0.5)
    return Task(images.source, "accuracy", model, loader, accuracy, {}, how)


def text_task(study: Study, device: torch.device, data_dir: str | None) -> Task:
    if not GPT_FILE.is_file():
        raise DatasetNotFoundError(f"gpt: its model is {GPT_FILE}, which is not here: run from a checkout.")
    example, corpus = runpy.run_path(str(GPT_FILE)), load_corpus(study.data, data_dir)
    train = torch.from_numpy(corpus.train[: study.limit])
    words = int(train.max()) + 2  # one for all words that training does not have
    few = None if study.limit is None else study.limit // 4
    parts = {"validation": corpus.valid, "test": corpus.test}
    texts = {key: torch.from_numpy(part[:few]).clamp(max=words - 1) for key, part in parts.items()}
    sizes = {"width": study.width, "layers": study.layers, "length": study.length}

    def perplexity(model: nn.Module, part: str) -> float:
        try:
            return float(example["perplexity"](model, texts[part], study.length))
        except OverflowError:
            return math.inf

    amp = torch.bfloat16 if device.type == "cuda" else None
    how = {"loss": example["language_loss"], "amp": amp}
    batches = example["Windows"](train, study.length, study.batch)
    return Task(corpus.source, "perplexity", example["GPT"](words, **sizes), batches, perplexity, how)


def structure_for(method: Method, m: int, n: int) -> Structure | None:
    """The largest members of a class within m n / factor parameters, or None where none fits.

    >>> structure_for(Method("low_rank", 10), 1024, 1024)
    Structure('low_rank', rank=51)
    >>> structure_for(Method("block_circulant", 10), 100, 100)
    Structure('block_circulant', block_size=10)
    """
    if (factor := method.factor) is None:
        return Structure(method.name)
    budget = m * n // factor
    if method.name == "block_circulant":
        sizes = (Structure(method.name, block_size=b) for b in range(factor, max(m, n) + 1))
        return next((made for made in sizes if made.parameters(m, n) <= budget), None)
    first = Structure(method.name, rank=1).parameters(m, n)
    rank = min(1 + (budget - first) // (m + n), m, n)
    return Structure(method.name, rank=rank) if budget >= first else None


def plan_for(method: Method, dense: nn.Module) -> dict[str, Structure] | None:
    """A structure for every weight, none for pruning; None where a weight cannot be brought to the factor."""
    if method.name in ("dense", PRUNED):
        return {}
    found = {name: structure_for(method, *layer.weight.shape) for name, layer in weights_of(dense).items()}
    plan = {name: structure for name, structure in found.items() if structure is not None}
    return plan if len(plan) == len(found) else None


@torch.no_grad()
def started(W: Tensor, structure: Structure) -> StructuredMatrix:
    """A member of a class of `STARTED` from the truncated SVD of W.

    `from_dense` comes nearer, but it goes through all ranks, and those of these budgets are tens to hundreds.
    A matrix of rank q is a member of the classes with fixed operators with 2q generators, those of its
    displacement. With small operators, members of the others are nearly G^T H.
    """
    (m, n), rank, learned = W.shape, structure.rank or 1, structure.name in OPERATORS
    source = torch.Generator().manual_seed(0)
    M = structure.cls.random(m, n, rank=rank, dtype=torch.float64, generator=source)
    q = rank if learned else max(1, rank // 2)
    near = from_dense(W.double().cpu(), "low_rank", q).matrix
    if learned:
        G, H = near.tensors["G"], near.tensors["H"]
    elif structure.name in ("toeplitz_like", "hankel_like"):
        G, H = (convert(near, structure.name).tensors[name][:rank] for name in "GH")
    else:
        U, s, V = torch.linalg.svd(M.displacement_structure().of_dense(near.to_dense()), full_matrices=False)
        most = min(rank, 2 * q)
        G, H = (s[:most].sqrt().unsqueeze(1) * side[:most] for side in (U.mT, V))
    spare = rank - len(G)  # generators without effect, which can learn
    G, H = torch.cat((G, G.new_zeros(spare, m))), torch.cat((H, 1e-3 * H[:1].expand(spare, -1)))
    fixed = {
        name: torch.full_like(t, CONTRACTED if "subdiagonal" in name else 0.0) if learned else t
        for name, t in M.tensors.items()
    }
    return M.with_tensors({**fixed, "G": G, "H": H}).to(W.device, W.dtype)


@torch.no_grad()
def started_layer(layer: nn.Linear, structure: Structure, near: Tensor | None = None) -> StructuredLinear:
    """A structured layer for a dense one that starts from its weight, or from another matrix."""
    (m, n), bias = layer.weight.shape, layer.bias is not None
    made = StructuredLinear(n, m, bias, structure=structure.cls, rank=structure.rank)
    made = made.to(layer.weight.device, layer.weight.dtype)
    for name, t in started(layer.weight if near is None else near, structure).tensors.items():
        getattr(made, name).copy_(t)
    if bias:
        made.bias = layer.bias
    return made


def weights_of(model: nn.Module) -> dict[str, nn.Linear]:
    """The layers that are compressed: all linear ones but the last."""
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    return {name: layer for name, layer in linear.items() if name not in ("logits", "head")}


def compressed(dense: nn.Module, method: Method, plan: dict[str, Structure]) -> nn.Module:
    """A copy of a network with every weight replaced."""
    model = copy.deepcopy(dense)
    layers = weights_of(model)
    if method.name == PRUNED:
        for layer in layers.values():
            prune.l1_unstructured(layer, "weight", layer.weight.numel() - kept(method, layer))
    elif method.name in STARTED:
        for name, structure in plan.items():
            model.set_submodule(name, started_layer(layers[name], structure))
    elif plan:
        compress_(model, plan, min_features=1)
    return model.eval()


def kept(method: Method, layer: nn.Linear) -> int:
    """How many weights pruning keeps."""
    return layer.weight.numel() // (method.factor or 1)


def measured(study: Study, task: Task, dense: nn.Module, method: Method, plan: dict[str, Structure]) -> Row:
    """The scores of a method before and after fine-tuning, those where validation is best."""
    begun, model, layers = time.perf_counter(), compressed(dense, method, plan), weights_of(dense)
    before = after = task.score(model, "test")
    best, stopped, sign = task.score(model, "validation"), 0, 1 if task.metric == "accuracy" else -1
    every = max(1, study.epochs * len(task.batches) // study.looks)

    def look(step: Step) -> None:
        nonlocal after, best, stopped
        if step.step % every == 0:
            found = task.score(model.eval(), "validation")
            if sign * found > sign * best or not math.isfinite(best):
                best, after, stopped = found, task.score(model, "test"), step.step

    how = dict(task.how)
    if task.distillation is not None:
        counts = task.distillation.layers if plan else 0.0
        how |= {"teacher": dense, "distillation": replace(task.distillation, layers=counts)}
    torch.manual_seed(study.seed)
    with suppress(FloatingPointError):  # it diverged: the best result until then counts
        finetune(model, task.batches, epochs=study.epochs, lr=study.rate, callback=look, **how)
    weights = sum(layer.weight.numel() for layer in layers.values())
    own = sum(
        plan[name].parameters(*layer.weight.shape) if plan else kept(method, layer)
        for name, layer in layers.items()
    )
    return {
        "table": study.name,
        "metric": task.metric,
        "source": task.source,
        "quick": study.limit is not None,
        "settings": study.key,
        "method": method.name,
        "factor": method.factor,
        "parameters": own,
        "model_parameters": own + sum(p.numel() for p in dense.parameters()) - weights,
        "weights": weights,
        "dense": finite(task.score(dense, "test")),
        "before": finite(before),
        "after": finite(after),
        "validation": finite(best),
        "stopped": stopped,
        "start": "projection",
        "rate": study.rate,
        "seconds": round(time.perf_counter() - begun, 3),
    }


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def run_study(study: Study, rows: Rows, device: torch.device, data_dir: str | None) -> None:
    """Append a row for each method that has none with these settings."""
    torch.manual_seed(study.seed)
    task = (text_task if study.model == "gpt" else image_task)(study, device, data_dir)
    dense = task.model.to(device)
    rates: dict[str, Any] = {"lr": study.dense_rate, "weight_decay": study.decay}
    finetune(dense, task.batches, epochs=study.dense_epochs, **rates, **task.how)
    largest = max(max(layer.weight.shape) for layer in weights_of(dense).values())
    for method in methods():
        plan = plan_for(method, dense)
        if plan is None or rows.has(study.name, method, study.key):
            continue
        if method.name == "ldr_td" and device.type == "cpu" and largest > LARGEST_ON_A_CPU:
            say(f"{study.name}: {method.key} takes a GPU")
            continue
        row = measured(study, task, dense, method, plan)
        rows.append(row, device)
        scores = f"{number(row, 'before')} -> {number(row, 'after')}"
        say(f"{study.name}: {method.key} {scores} after {row['seconds']:.1f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run studies one after the other; 0 when all is done, 1 if data is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m torchldr_paper.compression",
        description="Compress trained networks by every class, before and after fine-tuning.",
    )
    parser.add_argument("names", nargs="+", choices=[*SHOWN, "all"], metavar="NAME", help=", ".join(SHOWN))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=None, help="folder of compression.jsonl")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--quick", action="store_true", help="a small version, to see that it runs")
    parser.add_argument("--show", action="store_true", help="print what is there and run nothing")
    chosen = parser.parse_args(arguments)
    names = SHOWN if "all" in chosen.names else tuple(dict.fromkeys(chosen.names))
    rows = Rows(default_results() if chosen.results is None else chosen.results)
    for problem in rows.problems:
        say(problem)
    complete = True
    for name in () if chosen.show else names:
        if name not in STUDIES:
            say(f"{name}: shows stored rows; it can no longer be run")
            continue
        study = STUDIES[name].quick() if chosen.quick else STUDIES[name]
        try:
            run_study(study, rows, torch.device(chosen.device), chosen.data_dir)
        except DatasetNotFoundError as error:
            say(str(error))
            complete = False
    for name in names:
        found = rows.of(name, quick=chosen.quick)
        print(f"{name}\n\n{render(found)}")
        top = best(found, 10, structured=True)
        if top is not None:
            print(f"best structured class at 10 times: {top['method']}, {top['after'] - top['dense']:+.2f}\n")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
