"""What surrounds the decoder's products in bfloat16 as CUDA kernels.

    softmax_gradient    a row of logits is read once, kept in registers and written once, as its gradient
    update              the decoder's step of descent, and its copy in bfloat16 with it

torch takes two passes more over arrays of tokens x words. The plain forms in `decoder` are the oracles: a
test runs this source as plain C++.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import torch
from torch import Tensor

from torchldr.kernels.cuda.nvrtc import launch, unavailable

THREADS = 512
MOST_VECTORS = 12  # of eight words, that a thread keeps

SOURCE = (resources.files(__package__) / "decoder.cu").read_text("utf-8")


def serves(t: Tensor) -> bool:
    """Whether the kernels take logits (R, N, words), or a decoder's gradient (R, words, columns)."""
    fits = t.shape[-1] % 8 == 0 and _vectors_a_thread(t.shape[-1]) <= MOST_VECTORS
    return t.is_cuda and t.dtype == torch.bfloat16 and fits and unavailable() is None


def softmax_gradient(logits: Tensor, targets: Tensor) -> Tensor:
    """Turn logits (R, N, words) in bfloat16 into softmax - onehot(target), in place; the losses, (R, N)."""
    R, N, words = logits.shape
    losses = torch.empty(R, N, dtype=torch.float32, device=logits.device)
    _launch("softmax_gradient", words, (R * N, 1), [logits, targets, losses, words // 8, N])
    return losses


def update(decoder: Tensor, narrow: Tensor, d: Tensor, scale: Tensor) -> None:
    """decoder += scale d for each replica, and `narrow` its copy, in place; `scale` (R,)."""
    R, _, columns = decoder.shape
    vectors = decoder[0].numel() // 8
    _launch("update", columns, (-(-vectors // THREADS), R), [decoder, narrow, d, scale, vectors])


def head(row: int) -> str:
    """What the source is compiled for: rows of so many numbers."""
    return f"#define THREADS {THREADS}\n#define EACH {_vectors_a_thread(row)}\n"


def _vectors_a_thread(row: int) -> int:
    return -(-row // (8 * THREADS))


def _launch(name: str, row: int, grid: tuple[int, int], arguments: list[Any]) -> None:
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError(f"{name}: expected contiguous tensors.")
    shared = THREADS // 32 * 4
    launch(head(row) + SOURCE, name, tensors[0].device, (*grid, 1), THREADS, arguments, shared)
