"""Attention and transformers: the replacement is nn.MultiheadAttention in all of its options."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchldr
from torchldr.nn.attention import StructuredAttention

LOW = torchldr.Structure("low_rank", rank=3)


def close(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding errors of a few products of some 100 terms."""
    return torch.allclose(a, b, rtol=0, atol=500 * torch.finfo(a.dtype).eps * max(1.0, b.abs().max().item()))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch's own, in its fast path
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["linears", "everything"])
def test_transformer_layer_with_and_without_its_fast_path(kind, training):
    """In eval mode torch's fast path reads the weights of `linear1` and `linear2` and calls no layer."""
    layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).train(training)
    plan = {"*": LOW} if kind == "everything" else {"*.linear?": LOW}
    report = torchldr.compress_(model, plan, min_features=8)
    assert sum(row.structure == "low_rank" for row in report.layers) == (12 if kind == "everything" else 4)
    oracle = nn.TransformerEncoder(layer, 2).train(training)
    for ours, theirs in zip(model.layers, oracle.layers, strict=True):
        for name in ("linear1", "linear2"):
            getattr(theirs, name).weight.data = getattr(ours, name).matrix().to_dense().detach()
        if kind == "everything":
            a = ours.self_attn
            parts = [part.matrix().to_dense().detach() for part in (a.q_proj, a.k_proj, a.v_proj)]
            theirs.self_attn.in_proj_weight.data = torch.cat(parts)
            theirs.self_attn.out_proj.weight.data = a.out_proj.matrix().to_dense().detach()
    x, padding = torch.randn(3, 6, 32), torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True
    with torch.no_grad():
        assert close(model(x), oracle(x))
        keep = ~padding
        a, b = model(x, src_key_padding_mask=padding), oracle(x, src_key_padding_mask=padding)
        assert close(a[keep], b[keep])
        torchldr.materialize_(model)
        assert model.use_nested_tensor
        assert close(model(x, src_key_padding_mask=padding)[keep], b[keep])


def test_the_fast_path_is_taken_and_calls_no_layer(monkeypatch):
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True).eval()
    torchldr.compress_(layer, {"linear?": LOW})
    monkeypatch.setattr(torchldr.StructuredLinear, "forward", None)
    with torch.no_grad():
        assert layer(torch.randn(2, 5, 32)).shape == (2, 5, 32)


ATTENTIONS = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"kdim": 40, "vdim": 36},
    {"add_bias_kv": True, "add_zero_attn": True},
]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", ATTENTIONS, ids=lambda options: "-".join(options) or "plain")
def test_attention_is_torchs_with_projected_weights(options, need_weights):
    """Full rank keeps the weights, so the function must be that of nn.MultiheadAttention."""
    options = {"dtype": torch.float64, **options}
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(32, 4, **options)})
    dense = model["attention"]
    if dense.in_proj_bias is not None:
        nn.init.normal_(dense.in_proj_bias)
        nn.init.normal_(dense.out_proj.bias)
    torchldr.compress_(model, {"*": torchldr.Structure("low_rank", rank=32)}, min_features=8)
    assert isinstance(model["attention"], StructuredAttention)
    q, k, v = (torch.randn(3, 5, n, dtype=torch.float64) for n in (32, dense.kdim, dense.vdim))
    batch, queries = (3, 5) if dense.batch_first else (5, 3)
    padding = torch.zeros(batch, queries, dtype=torch.bool)
    padding[0, -1] = True
    causal = torch.ones(queries, queries, dtype=torch.bool).triu(1)
    heads = torch.randn(batch * 4, queries, queries, dtype=torch.float64)
    for masks in (
        {},
        {"key_padding_mask": padding},
        # With keys of its own torch takes the hint, not the mask, where no weights are needed: these differ.
        {"attn_mask": causal, "is_causal": dense.bias_k is None},
        {"attn_mask": heads},
        {
            "key_padding_mask": padding.double().masked_fill(padding, float("-inf")),
            "attn_mask": causal.double(),
        },
    ):
        for average in (True, False) if need_weights else (True,):
            more = {"need_weights": need_weights, "average_attn_weights": average, **masks}
            for a, b in zip(model["attention"](q, k, v, **more), dense(q, k, v, **more), strict=True):
                assert (a is None and b is None) or close(a, b)
    for attention in (model["attention"], torchldr.materialize_(model)["attention"]):
        for a, b in zip(attention(q[0], k[0], v[0]), dense(q[0], k[0], v[0]), strict=True):
            assert a.shape == b.shape
            assert close(a, b)
    assert type(attention) is nn.MultiheadAttention


def test_an_empty_batch_with_a_mask_for_each_head():
    """torch's module takes one where it returns the weights."""
    dense, x, mask = nn.MultiheadAttention(8, 2), torch.zeros(3, 0, 8), torch.zeros(0, 3, 3)
    model = nn.ModuleDict({"a": dense})
    torchldr.compress_(model, LOW, min_features=8)
    for a, b in zip(model["a"](x, x, x, attn_mask=mask), dense(x, x, x, attn_mask=mask), strict=True):
        assert a.shape == b.shape


def test_only_some_parts_of_an_attention():
    model = nn.ModuleDict({"a": nn.MultiheadAttention(32, 4)})
    dense, x = model["a"], torch.randn(5, 2, 32)
    torchldr.compress_(model, {"a.v_proj": torchldr.Structure("low_rank", rank=32)})
    assert [type(part).__name__ for part in model["a"].children()] == [
        "Linear",
        "Linear",
        "StructuredLinear",
        "Linear",
    ]
    assert close(model["a"](x, x, x)[0], dense(x, x, x)[0])


def test_attentions_that_share_a_weight_are_left_alone():
    model = nn.ModuleDict({"a": nn.MultiheadAttention(32, 4), "b": nn.MultiheadAttention(32, 4)})
    model["b"].in_proj_weight = model["a"].in_proj_weight
    report = torchldr.compress_(model, LOW)
    assert report.left == {"a": "its weight is shared with b", "b": "its weight is shared with a"}
    assert model["a"].in_proj_weight is model["b"].in_proj_weight


def test_a_whole_transformer_trains_and_goes_back():
    model = nn.Transformer(32, 4, 1, 1, 48, dropout=0.0, batch_first=True)
    torchldr.compress_(model, LOW)
    source, target = torch.randn(2, 5, 32), torch.randn(2, 4, 32)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    model(source, target, tgt_mask=causal, tgt_is_causal=True).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    y = model.eval()(source, target, tgt_mask=causal)
    assert close(torchldr.materialize_(model)(source, target, tgt_mask=causal), y)


def test_loaders_of_mappings_reach_attention_and_shared_modules():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.linear = nn.MultiheadAttention(32, 4), nn.Linear(32, 32)

        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            y = self.attention(self.linear(x), key=other, value=self.linear(other))[0]
            return self.linear(y)

    batches = [{"x": torch.randn(40, 2, 32), "other": torch.randn(40, 2, 32)} for _ in range(2)]
    report = torchldr.compress_(Twice(), LOW, loader=iter(batches))
    seen = {row.name: row.weighted_residual is not None for row in report.layers}
    parts = {"q_proj": True, "k_proj": True, "v_proj": True, "out_proj": False}
    assert seen == {**{f"attention.{part}": value for part, value in parts.items()}, "linear": True}
