"""torch.func under torch.compile: every transformation of every class, against the dense definition.

The suite has every class with one transformation. Every transformation is among them, and each mode, product
and backend. `make test-all` has all combinations.
`testing.contract` holds the same transformations to the definition in eager mode.
"""

from itertools import product

import pytest
import torch
from torch import nn
from torch._dynamo.exc import TorchRuntimeError
from torch.func import jvp

import torchldr
from torchldr.testing import func

CLASSES = list(torchldr.structures().values())
BACKENDS = ("aot_eager", "eager")


def cases():
    """(class, transformation, mode, product, backend), in all combinations of the first four."""
    numbered = (enumerate(each) for each in (CLASSES, func.TRANSFORMATIONS, func.MODES, func.PRODUCTS))
    for (i, cls), (j, name), (k, mode), (p, by) in product(*numbered):
        in_suite = j == i % len(func.TRANSFORMATIONS) and k == i % len(func.MODES) and p == i // 2 % 2
        marks = [] if in_suite else [pytest.mark.exhaustive]
        backend = BACKENDS[(i // 2 + j + k + p) % 2]
        yield pytest.param(cls, name, mode, by, backend, marks=marks, id=f"{cls.name}-{name}-{mode}-{by}")


@pytest.mark.parametrize(("cls", "name", "mode", "by", "backend"), list(cases()))
def test_compiled(cls, name, mode, by, backend):
    try:
        func.check_transformation(func.func_layer(cls, mode, by), name, mode, backend)
    except TorchRuntimeError as error:
        if name != "jvp of jvp" or not torch_fails_too():
            raise
        pytest.xfail(f"torch's own operations fail the same: {str(error).splitlines()[0]}")


def torch_fails_too():
    """Whether a compiled jvp of jvp of a product and a constant of torch's own is an error, as in 2.13."""
    constant = torch.ones(3, 3)
    product = lambda at: (at @ constant) * constant
    once = lambda at: jvp(product, (at,), (constant,))[1]
    try:
        torch.compile(lambda at: jvp(once, (at,), (constant,))[1], fullgraph=True, backend="eager")(constant)
    except TorchRuntimeError:
        return True
    return False


@pytest.mark.parametrize("of", ["class", "transformation", "mode", "product", "backend"])
def test_the_suite_compiles_some_of_everything(of):
    """What CI leaves to `make test-all` are combinations, nothing else."""
    values = {"class": CLASSES, "transformation": func.TRANSFORMATIONS, "mode": func.MODES}
    values |= {"product": func.PRODUCTS, "backend": BACKENDS}
    exhaustive = pytest.mark.exhaustive
    chosen = [case.values for case in cases() if exhaustive not in case.marks]
    assert {case[list(values).index(of)] for case in chosen} == set(values[of])


class Forward(torch.autograd.Function):
    """A product by hand that forgets its tangent."""

    @staticmethod
    def forward(x, G, H):
        return (x @ H.mT) @ G

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.zeros = torch.zeros_like(output)

    @staticmethod
    def backward(ctx, grad):
        x, G, H = ctx.saved_tensors
        z = grad @ G.mT
        return z @ H, (x @ H.mT).mT @ grad, z.mT @ x

    @staticmethod
    def jvp(ctx, *tangents):
        return ctx.zeros


class Forgets(torchldr.LowRank):
    def _matmul(self, x):
        return Forward.apply(x, self.G, self.H)


def test_a_product_whose_tangent_is_lost_is_noticed():
    with pytest.raises(AssertionError, match="jvp in mode 'train', eager, is something else"):
        func.check_transformation(func.func_layer(Forgets, "train", "fast"), "jvp")


@pytest.mark.parametrize("name", func.TRANSFORMATIONS)
@pytest.mark.exhaustive
def test_torch_itself_compiles_all_of_them(name):
    """nn.Linear as the control: what fails here is torch's."""
    torch.compiler.reset()
    layer = nn.Linear(6, 5, dtype=torch.float64)
    inputs = {**{k: p.detach() for k, p in layer.named_parameters()}, "x": torch.randn(3, 6).double()}
    along = {name: torch.randn_like(t) for name, t in inputs.items()}
    run = lambda inputs, along: func.TRANSFORMATIONS[name](func.layer_product(layer, "train"), inputs, along)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(inputs, along), run(inputs, along))
