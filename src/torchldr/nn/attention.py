"""StructuredAttention: nn.MultiheadAttention with a layer for each projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad, scaled_dot_product_attention

from .replace import dense_linear

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


class StructuredAttention(nn.Module):
    """nn.MultiheadAttention whose four projections are layers of their own, structured or dense.

    torch's module reads the weights of its projections, so they must be dense. This one calls the projections
    as layers. Shapes, masks and results are those of nn.MultiheadAttention, except for nested tensors.
    """

    # nn.TransformerEncoderLayer checks these before it reads joint weights, which do not exist here.
    in_proj_bias = None
    in_proj_weight = None
    _qkv_same_embed_dim = False

    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None

    def __init__(self, original: nn.MultiheadAttention, projections: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = original.embed_dim, original.num_heads
        self.kdim, self.vdim, self.head_dim = original.kdim, original.vdim, original.head_dim
        self.dropout, self.batch_first = original.dropout, original.batch_first
        self.add_zero_attn = original.add_zero_attn
        self.q_proj, self.k_proj = projections["q_proj"], projections["k_proj"]
        self.v_proj, self.out_proj = projections["v_proj"], projections["out_proj"]
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, original._parameters.get(name))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query.is_nested:
            raise TypeError("StructuredAttention: nested tensors are not supported, pad them.")
        if is_causal and attn_mask is None:
            raise ValueError("StructuredAttention: is_causal is a hint about attn_mask, which must be given.")
        batched = query.ndim == 3
        if not batched:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        mask = self._mask(attn_mask, key_padding_mask, q, k.shape[1])
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.expand(len(k), 1, -1)], 1)
            v = torch.cat([v, self.bias_v.expand(len(v), 1, -1)], 1)
            mask = None if mask is None else pad(mask, (0, 1))
        q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for x in (q, k, v))
        if self.add_zero_attn:
            k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
            mask = None if mask is None else pad(mask, (0, 1))
        rate = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            scores = q * self.head_dim**-0.5 @ k.transpose(-2, -1)
            weights = dropout(torch.softmax(scores if mask is None else scores + mask, -1), rate)
            y = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            y = scaled_dot_product_attention(q, k, v, mask, rate)
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        if not batched:
            return y.squeeze(0), None if weights is None else weights.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1), weights

    def _mask(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor, keys: int
    ) -> Tensor | None:
        """Both masks as one to add to the scores (batch, heads, queries, keys)."""
        batch, queries, _ = q.shape
        mask: Tensor | None = None
        if attn_mask is not None:
            mask = _added(attn_mask, q.dtype)
            wanted = ((queries, keys), (batch * self.num_heads, queries, keys))
            if mask.shape not in wanted:
                raise ValueError(
                    f"StructuredAttention: attn_mask must have shape {wanted[0]} or {wanted[1]}, "
                    f"got {tuple(mask.shape)}."
                )
            mask = mask.unflatten(0, (batch, self.num_heads)) if mask.ndim == 3 else mask.expand(1, 1, -1, -1)
        if key_padding_mask is not None:
            if key_padding_mask.shape != (batch, keys):
                raise ValueError(
                    f"StructuredAttention: key_padding_mask must have shape {(batch, keys)}, "
                    f"got {tuple(key_padding_mask.shape)}."
                )
            padding = _added(key_padding_mask, q.dtype)[:, None, None]
            mask = padding.expand(-1, -1, queries, -1) if mask is None else mask + padding
        return mask

    def to_torch(self) -> nn.MultiheadAttention:
        """An nn.MultiheadAttention that computes the same function."""
        dense = {name: dense_linear(self.get_submodule(name)) for name in PROJECTIONS}
        last, inputs = dense["out_proj"], [dense[name] for name in PROJECTIONS[:3]]
        names = ("embed_dim", "num_heads", "dropout", "add_zero_attn", "kdim", "vdim", "batch_first")
        given: Any = {name: getattr(self, name) for name in names}
        given |= {"bias": last.bias is not None, "add_bias_kv": self.bias_k is not None}
        given |= {"dtype": last.weight.dtype, "device": last.weight.device}
        made = nn.utils.skip_init(nn.MultiheadAttention, **given)
        if made.in_proj_weight is not None:
            made.in_proj_weight = _joint([layer.weight for layer in inputs])
        else:
            for name in PROJECTIONS[:3]:
                setattr(made, f"{name}_weight", dense[name].weight)
        if made.in_proj_bias is not None:
            made.in_proj_bias = _joint([layer.bias for layer in inputs])
        made.out_proj.weight, made.out_proj.bias = last.weight, last.bias
        made.bias_k, made.bias_v = self.bias_k, self.bias_v
        return made

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as numbers to add; True in torch's boolean masks excludes a position."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
    return mask.to(dtype)


def _joint(parts: Sequence[Tensor]) -> nn.Parameter:
    """Parameters below each other as one."""
    return nn.Parameter(torch.cat([p.detach() for p in parts]), any(p.requires_grad for p in parts))
