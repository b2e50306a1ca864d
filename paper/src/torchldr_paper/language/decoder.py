"""The decoder and its cross entropy for many replicas: loss and gradients without a graph of operations.

    logits = h W^T + b,    loss = -log softmax(logits)[target],    dlogits = (softmax - onehot) / tokens

A vocabulary of 33,278 words makes this nearly all of a step's work and memory traffic. So the softmax is
the only array of tokens x words besides the logits, and it becomes the logits' gradient in place. The bias is
a column of W beside a constant input of 1, so that the products add it and give its gradient. Words are
filled up to a multiple of 64, which matrix units like, by words of bias -10,000: their probability and all
their gradients are exactly 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..trainer.graphs import tf32, wide_sums

ALIGNED = 64  # words
EXTRA = 8  # columns behind the hidden units: the bias and zeros, so that rows begin at 16 bytes in bfloat16
NEVER = -1e4  # the bias of a word that is none


def pack(weight: Tensor, bias: Tensor) -> Tensor:
    """A decoder in memory from W (..., words, hidden) and b (..., words)."""
    words, hidden = weight.shape[-2:]
    packed = weight.new_zeros(*weight.shape[:-2], -(-words // ALIGNED) * ALIGNED, hidden + EXTRA)
    packed[..., :words, :hidden] = weight
    packed[..., :words, hidden] = bias
    packed[..., words:, hidden] = NEVER
    return packed


def with_ones(h: Tensor, dtype: torch.dtype) -> Tensor:
    """(R, N, H) to (R, N, H + EXTRA): the constant input of the bias behind the hidden units."""
    R, N, H = h.shape
    extended = torch.zeros(R, N, H + EXTRA, dtype=dtype, device=h.device)
    extended[..., :H] = h
    extended[..., H] = 1
    return extended


def losses(h: Tensor, decoder: Tensor, targets: Tensor) -> Tensor:
    """-log p(target): (R, N, H), the packed decoder and (N,) to (R, N).

    In the decoder's dtype; on a GPU the product of float32 may round its factors to TF32.
    """
    with tf32(h.device):
        logits = torch.bmm(with_ones(h, decoder.dtype), decoder.mT)
    return _pick(logits.softmax(-1), targets).log().neg()


def narrowed(decoder: Tensor, precision: str) -> Tensor:
    """The decoder as its products take it: itself for "full", a copy in bfloat16 for "bf16"."""
    return decoder.bfloat16() if precision == "bf16" else decoder


def loss_and_gradients(h: Tensor, narrow: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The losses of a batch, and the gradients of their mean.

    Args:
        h: (R, N, H).
        narrow: the packed decoder, (R, words, H + EXTRA), in the dtype of the products. In bfloat16 they are
            what torch.autocast makes: factors and results rounded, sums in float32.
        targets: (N,), common to all replicas.

    Returns:
        The losses (R, N) and the gradient of h (R, N, H) in the dtype of h; and N times the gradient of the
        decoder, shaped like it, in the dtype of the products (a division there would round once more).
    """
    H, inputs = h.shape[-1], with_ones(h, narrow.dtype)
    with wide_sums(h.device):
        logits = _product(inputs, narrow.mT)
        loss, d = _softmax_gradient(logits, targets, h.dtype)
        dh = _product(d, narrow[..., :H]).to(h.dtype) / len(targets)
        d_decoder = _product(d.mT, inputs)
    return loss, dh, d_decoder


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b; of bfloat16 on a CPU by way of float32, the same sums: few have an instruction for it, and without
    one torch takes 200 times as long."""
    if a.dtype == torch.bfloat16 and a.device.type == "cpu":
        return torch.bmm(a.float(), b.float()).bfloat16()
    return torch.bmm(a, b)


def _softmax_gradient(logits: Tensor, targets: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The losses, and softmax - onehot(target)."""
    d = logits.softmax(-1)
    chosen = _pick(d, targets).to(dtype)
    index = targets.expand(len(d), -1).unsqueeze(-1)
    d.scatter_(-1, index, (chosen - 1).to(d.dtype).unsqueeze(-1))
    return chosen.log().neg(), d


def update(decoder: Tensor, narrow: Tensor, d: Tensor, scale: Tensor) -> None:
    """decoder += scale d for each replica, (R,), and `narrow` what `narrowed` would give, in place."""
    decoder.addcmul_(d, scale.view(-1, 1, 1))
    if narrow is not decoder:
        narrow.copy_(decoder)


def _pick(p: Tensor, targets: Tensor) -> Tensor:
    """The targets' probabilities, (R, N, words) to (R, N)."""
    return p.gather(-1, targets.expand(len(p), -1).unsqueeze(-1)).squeeze(-1)
