"""Both products of every class, forced: values and all gradients in every regime of operators.

Eager, compiled, exported and frozen, in float32 against float64 of the definition. The tolerance is that of
`torchldr.testing`: 50 eps (1 + log2 n) times |factors| |x|, and the same with the adjoint for gradients.
"""

import copy

import pytest
import torch
from torch import Tensor

import torchldr
from torchldr import StructuredChannels, StructuredGRU, StructuredLinear, StructuredLSTM, testing

CLASSES = list(torchldr.structures().values())
OPERATORS = [cls for cls in CLASSES if testing.has_operators(cls)]
PRODUCTS = ("fast", "dense")
SHAPES = ((64, 97), (97, 64))
# A times f and C over f: the matrix is the same, and each factor leaves the range of float32 or comes near.
FLAT = ((64, 4.0), (256, 1.5), (512, 1.2), (1024, 1.1))
every_operator = pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.name)
by_product = pytest.mark.parametrize("product", PRODUCTS)
# From 256 on the factors leave float32: 1.5 to the 256th is 1e45. The larger ones add nothing but size.
flat = pytest.mark.parametrize(
    ("n", "f"), [pytest.param(n, f, marks=[pytest.mark.exhaustive] if n > 256 else []) for n, f in FLAT]
)


def in_turn():
    """Every class, in the suite by one of its products or, with learned operators, by both.

    `make test-all` has both of all.
    """
    for i, cls in enumerate(CLASSES):
        for j, product in enumerate(PRODUCTS):
            marks = [] if cls in OPERATORS or (i + j) % 2 else [pytest.mark.exhaustive]
            yield pytest.param(cls, product, marks=marks, id=f"{cls.name}-{product}")


each_class_in_turn = pytest.mark.parametrize(("cls", "product"), list(in_turn()))


def regimes(cls) -> list[str | None]:
    return [*testing.REGIMES, "opposing"] if testing.has_operators(cls) else [None]


def member(cls, m: int, n: int, regime: str | None = None, f: float = 1.0):
    """A member in float32, its corners on: operators of a regime, scaled along the flat direction."""
    named = "near one" if regime == "opposing" else regime
    M = testing.member(cls, m, n, 2 if cls.ranked else None, regime=named)
    for name, t in M.tensors.items():
        if name.startswith("subdiagonal") and regime == "opposing":
            grows = torch.logspace(-0.3, 0.3, len(t), dtype=t.dtype)
            t.copy_(grows if name.endswith("A") else 1 / grows)
        if f != 1 and name.startswith(("diagonal", "superdiagonal", "corner")):
            t.mul_(0.01)  # or |A|^k |C|^k is of no size that float32 knows
        if name not in cls.scaled and name.endswith(("_A", "_C")):
            t.mul_(f if name.endswith("_A") else 1 / f)
    size = M.magnitude().max()
    for name in cls.scaled:
        M.tensors[name].div_(size ** (1 / len(cls.scaled)))
    return M.to(torch.float32)


def layer_of(M, product: str) -> StructuredLinear:
    layer = StructuredLinear(
        M.in_features, M.out_features, False, structure=type(M), rank=M.rank, **M.options
    )
    layer.product = product
    return fill(layer, M)


def fill(layer: StructuredLinear, M) -> StructuredLinear:
    with torch.no_grad():
        for name, t in M.tensors.items():
            getattr(layer, name).copy_(t)
    return layer


def vectors(M) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(3, M.in_features, generator=g), torch.randn(3, M.out_features, generator=g)


def leaves_of(M, *, absolute: bool = False) -> dict[str, Tensor]:
    learned = M.parameter_shapes(M.out_features, M.in_features, M.rank or 1, **M.options)
    tensors = {name: M.tensors[name].detach().double() for name in learned}
    return {name: (t.abs() if absolute else t.clone()).requires_grad_() for name, t in tensors.items()}


def results(call, leaves: dict[str, Tensor], x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """The product, and its gradients by name."""
    x = x.clone().requires_grad_()
    y = call(x)
    inputs = [*leaves.values(), x]
    found = torch.autograd.grad(y, inputs, grad, allow_unused=True, materialize_grads=True)
    return {"output": y.detach(), **dict(zip([*leaves, "input"], found, strict=True))}


def assert_right(M, call, parameters: dict[str, Tensor], what: str = "") -> None:
    """Values and all gradients of a product of M, against float64 of the definition."""
    x, grad = vectors(M)
    D, bound = M.double(), testing.tolerance(torch.float32, max(M.shape))
    exact, above = leaves_of(M), leaves_of(M, absolute=True)
    W = D.with_tensors({**D.tensors, **exact}).to_dense()
    size = D.with_tensors({**D.tensors, **above}).magnitude()
    wanted = results(lambda x: x @ W.mT, exact, x.double(), grad.double())
    sizes = results(lambda x: x @ size.mT, above, x.double().abs(), grad.double().abs())
    # Where a class divides parameters by their own sum, sizes cancel as well: none counts as nothing.
    least = 0.01 * max(float(t.abs().max()) for t in sizes.values() if t.numel())
    for name, found in results(call, parameters, x, grad).items():
        assert found.dtype == torch.float32, name
        error = (found.double() - wanted[name]).abs()
        scale = sizes[name].abs().max().clamp(min=least) if error.numel() else 1.0
        assert (error <= bound * scale).all(), (
            f"{what}: {name} is off by {(error / (bound * scale)).max():.3g}"
        )


def parameters_of(layer: StructuredLinear) -> dict[str, Tensor]:
    return dict(layer.named_parameters())


CASES = [(cls, regime) for cls in CLASSES for regime in regimes(cls)]


@by_product
@pytest.mark.parametrize(("cls", "regime"), CASES, ids=[f"{cls.name}-{regime}" for cls, regime in CASES])
def test_eager(cls, regime, product):
    for shape in SHAPES:
        M = member(cls, *shape, regime)
        assert testing.fits(M, torch.float32)
        for training in (True, False):
            layer = layer_of(M, product).train(training)
            assert_right(M, layer, parameters_of(layer), f"{product}, {shape}, {training=}")


@each_class_in_turn
def test_compiled(cls, product):
    """One program for all regimes: nothing that it took for granted about the numbers."""
    torch.compiler.reset()
    M = member(cls, *SHAPES[0], regimes(cls)[0])
    layer = layer_of(M, product)
    call = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for regime in regimes(cls):
        M = member(cls, *SHAPES[0], regime)
        fill(layer, M)
        assert_right(M, call, parameters_of(layer), f"{product}, {regime}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "product"),
    [("ldr_sd", "fast"), pytest.param("toeplitz_like", "dense", marks=pytest.mark.exhaustive)],
)
def test_compiled_by_inductor(name, product):
    torch.compiler.reset()
    cls = torchldr.get_structure(name)
    M = member(cls, *SHAPES[0], regimes(cls)[-1])
    layer = layer_of(M, product)
    assert_right(M, torch.compile(layer, fullgraph=True), parameters_of(layer), product)


@flat
@by_product
@every_operator
def test_the_flat_direction(cls, product, n, f):
    M = member(cls, n, n, "near one", f)
    layer = layer_of(M, product)
    assert_right(M, layer, parameters_of(layer), f"{product}, {n=}, {f=}")


@pytest.mark.parametrize(
    ("n", "f"), [(n, f) if n < 100 else pytest.param(n, f, marks=pytest.mark.exhaustive) for n, f in FLAT]
)
@by_product
@every_operator
def test_the_flat_direction_compiled(cls, product, n, f):
    torch.compiler.reset()
    M = member(cls, n, n, "near one", f)
    layer = layer_of(M, product)
    call = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_right(M, call, parameters_of(layer), f"{product}, {n=}, {f=}")


def assert_values(M, call) -> None:
    x, D = vectors(M)[0], M.double()
    error = (call(x).double() - x.double() @ D.to_dense().mT).abs()
    size = (x.double().abs() @ D.magnitude().mT).max()
    assert (error <= testing.tolerance(torch.float32, max(M.shape)) * size).all()


@each_class_in_turn
def test_exported(cls, product):
    for f in (1.0, 4.0) if cls in OPERATORS else (1.0,):
        M = member(cls, 64, 64, "near one" if cls in OPERATORS else None, f)
        layer = layer_of(M, product).eval()
        shapes = {"input": {0: torch.export.Dim("batch")}}
        assert_values(M, torch.export.export(layer, (vectors(M)[0],), dynamic_shapes=shapes).module())


@by_product
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_frozen(cls, product):
    """In every regime, along the flat direction too: values, and the gradient of the input."""
    flat = [(n, n, "near one", f) for n, f in FLAT[:2]] if cls in OPERATORS else []
    for m, n, regime, f in [*((*SHAPES[0], regime, 1.0) for regime in regimes(cls)), *flat]:
        M = member(cls, m, n, regime, f)
        served = torchldr.freeze(layer_of(M, product))
        assert_values(M, served)
        x, grad = vectors(M)
        x.requires_grad_()
        (found,) = torch.autograd.grad(served(x), x, grad)
        D, bound = M.double(), testing.tolerance(torch.float32, max(M.shape))
        error = (found.double() - grad.double() @ D.to_dense()).abs()
        assert (error <= bound * (grad.double().abs() @ D.magnitude()).max()).all(), regime


OTHERS = {
    "lstm": (lambda **more: StructuredLSTM(12, 10, which="both", **more), (3, 2, 12)),
    "gru": (lambda **more: StructuredGRU(12, 10, which="both", **more), (3, 2, 12)),
    "grid": (lambda **more: StructuredChannels(2, 3, 12, **more), (3, 2, 12)),
    "wide": (lambda **more: StructuredChannels(2, 3, 12, form="wide", **more), (3, 2, 12)),
}


def several():
    for kind in OTHERS:
        for name in ("ldr_sd", "ldr_td", "toeplitz_like", "fastfood", "cauchy_like"):
            yield kind, name, False
        for name in ("ldr_sd", "fastfood"):
            in_suite = name == "ldr_sd" and kind in ("lstm", "grid")
            yield pytest.param(kind, name, True, marks=[] if in_suite else [pytest.mark.exhaustive])


@pytest.mark.parametrize(("kind", "name", "compiled"), list(several()))
def test_layers_of_several_matrices(kind, name, compiled):
    """Recurrent layers and channels by both products, against the layer with dense weights."""
    make, shape = OTHERS[kind]
    layer = make(structure=name, rank=2 if torchldr.get_structure(name).ranked else None, dtype=torch.float64)
    x, found = torch.randn(shape, dtype=torch.float64, requires_grad=True), []
    for product in PRODUCTS:
        torch.compiler.reset()
        one = copy.deepcopy(layer)
        one.product = product
        call = torch.compile(one, fullgraph=True, backend="aot_eager") if compiled else one
        found.append(outputs(call(x), [x, *one.parameters()]))
    torch.testing.assert_close(*found)
    if kind in ("lstm", "gru"):
        wanted = outputs(layer.to_torch()(x), [x])
    else:
        y = (x.flatten(1) @ layer.weight.mT).view(3, 3, 12) + layer.bias.unsqueeze(-1)
        wanted = outputs(y, [x])
    torch.testing.assert_close(found[0][: len(wanted)], wanted)


def outputs(y, inputs: list[Tensor]) -> list[Tensor]:
    y = y if isinstance(y, Tensor) else y[0]
    return [y, *torch.autograd.grad(y.square().sum(), inputs, retain_graph=True)]
