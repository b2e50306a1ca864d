"""StructuredLinear: torch's conventions, products, initial scale, errors."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import torchldr
from torchldr import StructuredLinear, testing
from torchldr.nn.pointwise import StructuredPointwise

CLASSES = list(torchldr.structures().values())
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)


def layer_of(cls, n=12, m=9, rank=2, **kwargs):
    return StructuredLinear(n, m, structure=cls, rank=rank if cls.ranked else None, **kwargs)


@pytest.mark.parametrize(
    ("structure", "rank", "count"),
    [
        ("ldr_sd", 1, 10_986),
        ("ldr_td", 1, 14_122),
        ("toeplitz_like", 4, 14_122),
        ("hankel_like", 4, 14_122),
        ("vandermonde_like", 4, 14_122),
        ("low_rank", 4, 14_122),
        ("fastfood", None, 10_202),
        ("circulant", None, 8_634),
    ],
)
def test_parameter_counts_are_the_papers(structure, rank, count):
    hidden = StructuredLinear(784, 784, bias=False, structure=structure, rank=rank)
    network = nn.Sequential(hidden, nn.ReLU(), nn.Linear(784, 10))
    assert sum(p.numel() for p in network.parameters()) == count


@every_class
def test_conforms(cls):
    for shape in ((1, 1), (9, 12), (33, 20)):
        testing.check_layer(layer_of(cls, *shape, rank=1))
        testing.check_layer(layer_of(cls, *shape, rank=1, dtype=torch.float64, bias=False))


@every_class
def test_every_parameter_gets_a_gradient(cls):
    """Corners never train in other libraries; here every parameter does, once operators have moved."""
    layer = layer_of(cls, 16, 16)
    if testing.has_operators(cls):
        with torch.no_grad():
            for name, t in testing.member(cls, 16, 16, 2, regime="near one").tensors.items():
                layer.get_parameter(name).copy_(t)
    layer(torch.randn(3, 16)).square().sum().backward()
    for name, p in layer.named_parameters():
        assert p.grad.abs().sum() > 0, name


def test_corners_train_from_zero():
    layer = StructuredLinear(8, 8, structure="ldr_sd")
    layer(torch.randn(3, 8)).square().sum().backward()
    assert layer.corner_A.grad != 0
    assert layer.corner_C.grad != 0


@every_class
def test_initial_scale_is_that_of_nn_linear(cls):
    """Standard deviation over all outputs and 256 normal inputs, mean of 4 seeds, within 15 %."""
    for n, m in ((64, 64), (400, 100), (100, 400)):
        for rank in (1, 16) if cls.ranked else (None,):
            gains = []
            for seed in range(4):
                torch.manual_seed(seed)
                layer = StructuredLinear(n, m, bias=False, structure=cls, rank=rank)
                with torch.no_grad():
                    gains.append(layer(torch.randn(256, n)).std().item())
            assert abs(sum(gains) / 4 * math.sqrt(3) - 1) < 0.15, (n, m, rank)


@every_class
@pytest.mark.parametrize(("n", "m"), [(1500, 1000), (1000, 1500)])
def test_initial_scale_in_closed_form(cls, n, m):
    torch.manual_seed(0)
    gains = []
    for _ in range(3 if cls.name != "dense" else 1):
        layer = StructuredLinear(n, m, bias=False, structure=cls, rank=1 if cls.ranked else None)
        with torch.no_grad():
            gains.append(layer(torch.randn(256, n)).std().item() * math.sqrt(3))
    assert abs(sum(gains) / len(gains) - 1) < 0.15


def test_paper_init():
    layer = StructuredLinear(400, 400, structure="ldr_sd", rank=4, init="paper")
    assert layer.G.std().item() == pytest.approx((4 * 400) ** -0.5, rel=0.1)
    assert layer.H.std().item() == pytest.approx((4 * 400) ** -0.5, rel=0.1)
    assert (layer.subdiagonal_A == 1).all()
    dense = StructuredLinear(400, 400, structure="dense", init="paper")
    assert dense.weight.std().item() == pytest.approx(400**-0.5, rel=0.1)


@every_class
def test_meta_device(cls):
    layer = layer_of(cls, device="meta")
    assert all(t.is_meta for t in layer.state_dict().values())
    layer = layer.to_empty(device="cpu")
    parameters = list(layer.parameters())
    layer.reset_parameters()
    assert all(a is b for a, b in zip(parameters, layer.parameters(), strict=True))
    testing.check_layer(layer)


@every_class
def test_copies_and_pickles(cls):
    layer = layer_of(cls).eval()
    x = torch.randn(3, 12)
    with torch.no_grad():
        y = layer(x)
        assert torch.equal(copy.deepcopy(layer)(x), y)
        assert torch.equal(pickle.loads(pickle.dumps(layer))(x), y)


def test_state_dict_keys_never_change():
    expected = {
        "ldr_sd": {"G", "H", "subdiagonal_A", "corner_A", "subdiagonal_C", "corner_C", "bias"},
        "ldr_td": {"G", "H", "bias"}
        | {
            f"{part}_{side}"
            for side in "AC"
            for part in ("subdiagonal", "diagonal", "superdiagonal", "corners")
        },
        "fastfood": {"S", "D", "B", "permutation", "bias"},
        "acdc": {"A", "D", "bias"},
        "circulant": {"column", "bias"},
        "block_circulant": {"column", "bias"},
        "dense": {"weight", "bias"},
        "blast": {"G", "S", "H", "bias"},
    }
    for name, cls in torchldr.structures().items():
        assert set(layer_of(cls).state_dict()) == expected.get(name, {"G", "H", "bias"})


# Products.


@every_class
def test_the_fast_product_makes_no_dense_matrix(cls, monkeypatch):
    if not cls.structured:
        return
    layer = layer_of(cls)
    layer.product = "fast"
    for name in ("materialize", "to_dense", "dense_in"):
        monkeypatch.setattr(cls, name, None)
    layer(torch.randn(3, 12))


@every_class
@pytest.mark.parametrize("training", [True, False])
def test_products_in_words(cls, training):
    layer, x = layer_of(cls, 64, 48).train(training), torch.randn(2, 3, 64)
    table = layer.products(x)
    assert [row.product for row in table] == (["fast", "dense"] if cls.structured else ["dense"])
    assert [row.product for row in table if row.taken] == [table.taken]
    assert all(row.taken == (row.why_not == "") for row in table)
    assert table.to_dicts() == layer.products(6).to_dicts() == layer.matrix().products(6).to_dicts()
    assert layer.matrix().product_for(x) == table.taken
    assert repr(table).count("->") == 1


def test_a_subclass_may_start_in_its_own_way():
    class Zeros(StructuredLinear):
        def reset_parameters(self):
            for p in self.parameters():
                nn.init.zeros_(p)

    assert not Zeros(12, 9)(torch.randn(3, 12)).any()


@every_class
@pytest.mark.parametrize("product", ["auto", "fast", "dense"])
def test_calls_of_all_kinds_one_after_the_other(cls, product):
    """The same layer and input: autocast, other dtypes, frozen parameters, wrong inputs."""
    layer, x = layer_of(cls, 16, 12), torch.randn(3, 16)
    layer.product = product
    W = layer.matrix().double().to_dense().detach()
    exact = x.double() @ W.mT + layer.bias.double()

    def check(y, dtype=torch.float32):
        assert y.dtype == dtype
        assert torch.allclose(y.double(), exact, atol=0.1 if dtype == torch.bfloat16 else 1e-5)

    for _ in range(2):
        check(layer(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            check(layer(x), torch.bfloat16)
            check(layer(x.bfloat16()), torch.bfloat16)
        with torch.no_grad():
            check(layer(x))
        for wanted in (False, True):
            layer.requires_grad_(wanted)
            y = layer(x)
            check(y)
            assert y.requires_grad == wanted
        inputs = x.clone().requires_grad_()
        (dx,) = torch.autograd.grad(layer(inputs).sum(), inputs)
        assert torch.allclose(dx.double(), W.sum(0).expand_as(dx), atol=1e-5)
        for autocast in (False, True):  # which leaves float64 alone
            with torch.autocast("cpu", enabled=autocast), pytest.raises(TypeError, match="input has dtype"):
                layer(x.double())
        with pytest.raises(ValueError, match="the last axis must have"):
            layer(x[:, 1:])
        check(layer.double()(x.double()), torch.float64)
        layer.float()
    check(pickle.loads(pickle.dumps(layer))(x))


@every_class
def test_gradients_in_eval_mode(cls):
    layer = layer_of(cls).eval()
    layer(torch.randn(3, 12)).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


@every_class
def test_weight_is_the_dense_matrix(cls):
    layer = layer_of(cls, dtype=torch.float64)
    assert torch.allclose(layer.weight, layer.matrix().to_dense())
    with torch.no_grad():
        assert torch.allclose(layer.eval().weight, layer.matrix().to_dense())


@pytest.mark.parametrize(
    "write",
    [
        lambda layer: setattr(layer, "weight", nn.Parameter(torch.zeros(9, 12))),
        lambda layer: setattr(layer, "weight", torch.zeros(9, 12)),
        lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
        lambda layer: prune.ln_structured(layer, "weight", amount=0.5, n=2, dim=0),
    ],
)
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        *[(layer_of(cls), cls.name) for cls in torchldr.structures().values() if cls.name != "dense"],
        (torchldr.StructuredChannels(2, 3, 4, structure="low_rank"), "grid"),
        (torchldr.StructuredChannels(2, 3, 4, structure="low_rank", form="wide"), "wide"),
        (StructuredPointwise(StructuredLinear(12, 9, structure="low_rank")), "pointwise"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_writing_to_a_computed_weight_says_what_to_do(layer, name, write):
    before = {name: t.clone() for name, t in layer.state_dict().items()}
    learned = next(name for name, _ in layer.named_parameters() if name != "bias")
    with pytest.raises(AttributeError, match=rf"weight is computed from .*{learned}.*materialize_"):
        write(layer)
    assert layer.state_dict().keys() == before.keys()
    assert not layer._forward_pre_hooks


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_inside_a_transformer_encoder_layer(mode):
    """Its fast path reads `.weight` of the two linear layers."""
    block = nn.TransformerEncoderLayer(16, 2, 24, dropout=0, batch_first=True)
    block.linear1, block.linear2 = StructuredLinear(16, 24, rank=2), StructuredLinear(24, 16, rank=2)
    getattr(block, mode)()
    plain = copy.deepcopy(block)
    for name in ("linear1", "linear2"):
        layer = getattr(block, name)
        dense = nn.Linear(layer.in_features, layer.out_features)
        dense.load_state_dict({"weight": layer.matrix().to_dense(), "bias": layer.bias})
        setattr(plain, name, dense)
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        assert torch.allclose(block(x), plain(x), atol=1e-5)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@every_class
def test_nested_tensors(cls, layout):
    layer, parts = layer_of(cls, dtype=torch.float64), [torch.randn(k, 12).double() for k in (3, 5)]
    for mode in (True, False):
        layer.train(mode)
        x = torch.nested.nested_tensor(parts, layout=layout, requires_grad=True)
        y = layer(x)
        for part, found in zip(parts, y.unbind(), strict=True):
            torch.testing.assert_close(found, layer(part))
        torch.nested.to_padded_tensor(y, 0.0).sum().backward()
        total = layer.matrix().to_dense().sum(0)
        for found in x.grad.unbind():
            torch.testing.assert_close(found, total.expand_as(found))
        layer.requires_grad_(False)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@every_class
def test_sparse_inputs(cls, layout):
    layer, x = layer_of(cls, dtype=torch.float64), torch.randn(3, 12).double().relu()
    for mode in (True, False):
        layer.train(mode)
        y, wanted = layer(x.to_sparse(layout=layout)), x @ layer.weight.mT + layer.bias
        torch.testing.assert_close(y, wanted)
        found, grads = (torch.autograd.grad(t.square().sum(), [*layer.parameters()]) for t in (y, wanted))
        torch.testing.assert_close(found, grads)


def test_a_transformer_encoder_gives_nested_tensors_to_layers_with_hooks():
    block = nn.TransformerEncoderLayer(16, 2, 24, dropout=0, batch_first=True)
    block.linear1, block.linear2 = StructuredLinear(16, 24, rank=2), StructuredLinear(24, 16, rank=2)
    encoder, x = nn.TransformerEncoder(block, 2).eval(), torch.randn(2, 5, 16)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        y = encoder(x, src_key_padding_mask=mask)
        for layer in encoder.layers:
            layer.linear1.register_forward_hook(lambda *_: None)
        torch.testing.assert_close(encoder(x, src_key_padding_mask=mask), y)


# Dtypes.


@every_class
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(cls, dtype):
    """At most twice as wrong as nn.Linear with the same weight, in the same dtype."""
    layer = layer_of(cls, 64, 48)
    M = layer.matrix().double()
    dense = nn.Linear(64, 48)
    dense.load_state_dict({"weight": M.to_dense(), "bias": layer.bias})
    x = torch.randn(32, 64)
    exact = x.double() @ M.to_dense().mT + layer.bias.double()
    for mode in (layer.train, layer.eval):
        mode()
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
            ours, theirs = layer(x), dense(x)
            assert layer(x.to(dtype)).dtype == dtype
        assert ours.dtype == theirs.dtype == dtype
        assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max()


@every_class
def test_conversion_keeps_constants_precise(cls):
    """Nodes rounded to bfloat16 would meet."""
    layer = layer_of(cls, 200, 150).to(torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in layer.parameters())
    assert layer(torch.randn(3, 200, dtype=torch.bfloat16)).isfinite().all()


# Errors: each says who, which rule, and what came.


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        (
            {"structure": "toeplitz_lik"},
            ValueError,
            r"unknown structure 'toeplitz_lik'\. Did you mean 'toeplitz_like'\? Known: acdc, blast,",
        ),
        (
            {"rank": 600},
            ValueError,
            r"StructuredLinear: rank must be between 1 and 512 \(the smaller of out_features=512 and "
            r"in_features=784\), got 600\.",
        ),
        ({"rank": 0}, ValueError, "rank must be between 1 and 512"),
        ({"rank": 1.5}, TypeError, "rank must be an int, got 1.5"),
        (
            {"rank": 4, "structure": "circulant"},
            ValueError,
            "the structure 'circulant' has no rank, got rank=4",
        ),
        ({"rnk": 4}, TypeError, "StructuredLinear: unknown keyword 'rnk'. Did you mean 'rank'"),
        ({"block_size": 8}, TypeError, "unknown keyword 'block_size'"),
        (
            {"structure": "block_circulant", "block_size": 0},
            ValueError,
            "block_size must be between 1 and 784",
        ),
        (
            {"structure": "block_circulant", "block_size": 785},
            ValueError,
            "block_size must be between 1 and 784 .*got 785",
        ),
        ({"structure": "block_circulant", "block_siz": 8}, TypeError, "Did you mean 'block_size'"),
        (
            {"product": "fft"},
            ValueError,
            "LDRSubdiagonal: product must be one of auto, convolution, exact, got 'fft'",
        ),
        ({"init": "xavier"}, ValueError, "init must be one of linear, paper, got 'xavier'"),
        ({"bias": 3}, TypeError, "bias must be True or False, got 3"),
        ({"dtype": torch.int32}, TypeError, "dtype must be real floating point, got torch.int32"),
        ({"dtype": torch.complex64}, TypeError, "dtype must be real floating point"),
        ({"dtype": "float32"}, TypeError, "dtype must be one of torch, such as torch.float32, got 'float32'"),
    ],
)
def test_errors_at_construction(kwargs, error, message):
    with pytest.raises(error, match=message):
        StructuredLinear(784, 512, **kwargs)


@pytest.mark.parametrize("sizes", [(0, 3), (3, -1), (2.0, 3), (True, 3)])
def test_errors_for_sizes(sizes):
    with pytest.raises((ValueError, TypeError), match=r"StructuredLinear: (in|out)_features must be"):
        StructuredLinear(*sizes)


@every_class
def test_integers_of_numpy(cls):
    """Those of few bits would overflow: 100 * 100 is 16 as an int8."""
    n, rank = np.int8(100), np.int8(2) if cls.ranked else None
    layer = StructuredLinear(n, n, structure=cls, rank=rank)
    for M in (layer.matrix(), cls.random(n, n, rank), cls(n, n, **layer.matrix().tensors)):
        assert [type(size) for size in (M.out_features, M.in_features)] == [int, int]
        assert M.shape == (100, 100)
    assert layer.rank in (2, None)
    assert type(layer.rank) is not np.int8
    assert layer.products(np.int64(7)).to_dicts() == layer.products(7).to_dicts()
    block = StructuredLinear(8, 8, structure="block_circulant", block_size=np.int64(4))
    assert type(block.options["block_size"]) is int


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (
            torch.randn(3, 11),
            ValueError,
            r"StructuredLinear: the last axis must have in_features=12 entries, got shape \(3, 11\)",
        ),
        (torch.randn(()), ValueError, r"got shape \(\)"),
        (
            torch.randn(3, 12, dtype=torch.float64),
            TypeError,
            "the input has dtype torch.float64, the weights torch.float32",
        ),
        (
            torch.ones(3, 12, dtype=torch.int64),
            TypeError,
            "the input must be real floating point, got torch.int64",
        ),
        (
            torch.randn(3, 12, dtype=torch.complex64),
            TypeError,
            "the input must be real floating point, got torch.complex64",
        ),
        (torch.empty(3, 12, device="meta"), ValueError, "the input is on meta, the weights on cpu"),
        ([1.0] * 12, TypeError, "expected a tensor, got list"),
    ],
)
@every_class
def test_errors_for_inputs(cls, x, error, message):
    for mode in ("train", "eval"):
        layer = getattr(layer_of(cls), mode)()
        with pytest.raises(error, match=message), torch.no_grad():
            layer(x)


@every_class
@pytest.mark.parametrize("mode", [True, False])
def test_errors_for_parameters_of_other_shapes(cls, mode):
    """Compiled products would read beyond their memory."""
    for name in layer_of(cls)._learned:
        layer = layer_of(cls).train(mode)
        layer(torch.zeros(3, 12))
        shape = tuple(getattr(layer, name).shape)
        for other in ((*shape, 1), (*shape[:-1], shape[-1] + 1), (2 * shape[0] + 1, *shape[1:]), (5000,)):
            getattr(layer, name).data = torch.zeros(other)
            with pytest.raises(ValueError, match=rf"StructuredLinear: {name} must have shape "):
                layer(torch.zeros(3, 12))


def test_error_for_a_wrong_product():
    layer = StructuredLinear(4, 4)
    with pytest.raises(
        ValueError, match="StructuredLinear: product must be one of auto, fast, dense, got 'slow'"
    ):
        layer.product = "slow"


def test_matrix_errors():
    with pytest.raises(TypeError, match="LowRank: missing tensor H"):
        torchldr.LowRank(3, 4, G=torch.zeros(1, 3))
    with pytest.raises(ValueError, match=r"LowRank: H must have shape \(1, 4\) for 3 x 4, got \(1, 5\)"):
        torchldr.LowRank(3, 4, G=torch.zeros(1, 3), H=torch.zeros(1, 5))
    with pytest.raises(TypeError, match="LowRank: unknown tensor 'K'"):
        torchldr.LowRank(3, 4, G=torch.zeros(1, 3), H=torch.zeros(1, 4), K=torch.zeros(2))
    with pytest.raises(TypeError, match="Fastfood has no displacement operators"):
        torchldr.Fastfood.random(3, 4).displacement()


@every_class
@pytest.mark.parametrize("other", [torch.float64, torch.int64, torch.complex64, "meta"])
def test_errors_for_tensors_of_other_dtypes_and_devices(cls, other):
    M = cls.random(6, 6, 2 if cls.ranked else None, dtype=torch.float32)
    for name, t in M.tensors.items():
        if not (t.dtype == other or (len(M.tensors) == 1 and other in (torch.float64, "meta"))):
            with pytest.raises(TypeError, match=f"{cls.__name__}: .* must (have dtype|be real floating)"):
                cls(6, 6, **M.tensors | {name: t.to(other)}, **M.options)


def test_repr():
    text = repr(StructuredLinear(784, 512, structure="block_circulant", block_size=16, bias=False))
    assert text == (
        "StructuredLinear(in_features=784, out_features=512, bias=False, structure='block_circulant', "
        "block_size=16)"
    )
    assert "rank=4" in repr(StructuredLinear(784, 512, structure="ldr_sd", rank=4))
    assert repr(torchldr.LowRank.random(3, 4, rank=2)) == "LowRank(3, 4, rank=2, dtype=torch.float32)"
    layer = StructuredLinear(4, 4, structure="low_rank", bias=False)
    layer.product = "fast"
    assert repr(layer).endswith("structure='low_rank', rank=1, product='fast')")


@every_class
@pytest.mark.filterwarnings("error")
def test_numbers_that_are_not_finite_go_through(cls):
    layer = StructuredLinear(64, 64, structure=cls, rank=2 if cls.ranked else None).eval()
    layer.product = "fast"
    with torch.no_grad():
        next(layer.parameters()).view(-1)[0] = torch.inf
        assert not layer(torch.randn(1, 64)).isfinite().all()
