"""A small GPT on WikiText-2: train it, compress its linear layers, and recover what that cost.

    python examples/gpt.py                       # WikiText-2 from $TORCHLDR_DATA or the cache; takes a GPU
    python examples/gpt.py --quick               # a tiny one on this file's own text, in seconds

Six layers of width 384, words as tokens, the head tied to the embedding. Needs `pip install . ./paper`.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import torchldr
from torchldr_paper.data import load_corpus

DROPOUT = 0.1


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        layers = self.q, self.k, self.v
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in layers)
        drop = DROPOUT if self.training else 0.0
        y = scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.down(gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """Tokens (b, length) to logits (b, length, words)."""

    def __init__(
        self, words: int, width: int = 384, layers: int = 6, heads: int = 6, length: int = 256
    ) -> None:
        super().__init__()
        words = -(-words // 64) * 64  # matrix units like it; the words that are none soon have no probability
        self.embedding, self.position = nn.Embedding(words, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        for name, p in self.named_parameters():
            if p.ndim > 1:
                last = name.endswith(("out.weight", "down.weight"))  # added up over the layers
                nn.init.normal_(p, 0.0, 0.02 / math.sqrt(2 * layers) if last else 0.02)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.embedding(tokens) + self.position(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


class Windows:
    """Batches of random stretches of a text, with the next words as targets; as many as make up the text."""

    def __init__(self, text: Tensor, length: int, batch: int) -> None:
        self.text, self.length, self.batch = text, length, batch

    def __len__(self) -> int:
        return max(1, len(self.text) // (self.length * self.batch))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(len(self)):
            starts = torch.randint(len(self.text) - self.length, (self.batch, 1))
            rows = starts + torch.arange(self.length + 1)
            yield self.text[rows[:, :-1]], self.text[rows[:, 1:]]


@torch.no_grad()
def perplexity(model: GPT, text: Tensor, length: int, batch: int = 16) -> float:
    """Of all words, each with what precedes it in its stretch of the text."""
    device = model.eval().head.weight.device
    rows, total = (len(text) - 1) // length, 0.0
    x, y = (text[i : i + rows * length].view(rows, length) for i in (0, 1))
    for part in range(0, rows, batch):
        logits = model(x[part : part + batch].to(device)).float()
        total += language_loss(logits, y[part : part + batch].to(device)).item() * len(logits)
    return math.exp(total / rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--structure", default="low_rank")
    parser.add_argument("--rank", type=int, default=19, help="19 of 384 x 384: ten times fewer parameters")
    chosen = parser.parse_args()
    if chosen.quick:
        words = Path(__file__).read_text().split() * 4
        numbers = {word: i for i, word in enumerate(dict.fromkeys(words))}
        train = valid = torch.tensor([numbers[word] for word in words])
        sizes, length, batch = {"width": 64, "layers": 2, "heads": 2, "length": 32}, 32, 4
        count, epochs, rank = len(numbers), 4, 4
    else:
        corpus = load_corpus()
        train, valid = (torch.from_numpy(np.asarray(part)) for part in (corpus.train, corpus.valid))
        sizes, length, batch = {}, 256, 32
        count, epochs, rank = corpus.words, chosen.epochs, chosen.rank
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model, data = GPT(count, **sizes), Windows(train, length, batch)
    amp = torch.bfloat16 if device == "cuda" else None
    train_it = partial(torchldr.finetune, model.to(device), data, amp=amp, loss=language_loss)
    train_it(epochs=epochs, lr=1e-3, weight_decay=0.1)
    print(f"dense       perplexity {perplexity(model, valid, length):.1f}")
    teacher = copy.deepcopy(model)
    done = torchldr.compress_(model, torchldr.Structure(chosen.structure, rank=rank))  # the tied head stays
    print(f"compressed  perplexity {perplexity(model, valid, length):.1f}")
    print(f"{done.parameters_before:,} -> {done.parameters_after:,} of the linear layers' parameters")
    train_it(epochs=max(1, epochs // 4), lr=5e-4, teacher=teacher)
    print(f"fine-tuned  perplexity {perplexity(model, valid, length):.1f}")


if __name__ == "__main__":
    main()
