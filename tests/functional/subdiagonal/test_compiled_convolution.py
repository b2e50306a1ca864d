"""The compiled LDR-SD layer: values and gradients against the definition, and what autograd may ask of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torchldr.matrices.ldr_sd.routes import sides

from torchldr import LDRSubdiagonal, StructuredLinear, testing
from torchldr.functional.subdiagonal import compiled_convolution
from torchldr.functional.subdiagonal.guard import Scales, guard
from torchldr.kernels.cpu import library

if library.why_not():
    pytest.skip(library.why_not(), allow_module_level=True)


def problem(m, n, r, b, regime="near one", dtype=torch.float64, seed=0):
    M = testing.member(LDRSubdiagonal, m, n, r, regime=regime, dtype=dtype, seed=seed)
    x = torch.randn(b, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return [t.clone().requires_grad_() for side in sides(M) for t in side] + [x.requires_grad_()]


def product(*inputs):
    A, C = inputs[:3], inputs[3:6]
    scales = Scales(*(torch.cat((s.new_ones(1), s.detach().cumprod(-1))).double() for s in (A[0], C[0])))
    if A[0].dtype == torch.float32:
        found = guard(A, C)
        scales = found if isinstance(found, Scales) else scales
    return compiled_convolution.product(A, C, inputs[6], scales)


def taken(y):
    """Whether y came from the compiled function."""
    seen, todo = set(), [y.grad_fn]
    while todo:
        node = todo.pop()
        seen.add(type(node).__name__)
        todo += [following for following, _ in node.next_functions if following is not None]
    return "_JointBackward" in seen


def definition(*inputs):
    """The product from dense Krylov matrices."""
    names = ("subdiagonal_A", "corner_A", "G", "subdiagonal_C", "corner_C", "H")
    tensors = dict(zip(names, inputs, strict=False))
    shape = inputs[2].shape[-1], inputs[5].shape[-1]
    M = LDRSubdiagonal.unchecked(*shape, tensors, {"product": "auto"})
    return inputs[6] @ M.to_dense().mT


@settings(max_examples=25)
@given(data=st.data())
def test_values_and_gradients(data):
    m, n = (data.draw(st.sampled_from([1, 2, 3, 5, 16, 31, 64, 100, 129])) for _ in range(2))
    r, b = data.draw(st.integers(1, min(m, n, 3))), data.draw(st.sampled_from([1, 2, 7]))
    regime = data.draw(st.sampled_from(testing.NEAR_ONE))
    inputs = problem(m, n, r, b, regime, seed=data.draw(st.integers(0, 99)))
    y, exact = product(*inputs), definition(*inputs)
    assert taken(y)
    bound = testing.tolerance(torch.float64, max(m, n))
    towards = torch.randn_like(y)
    found = [
        torch.autograd.grad(out, inputs, towards, allow_unused=True, materialize_grads=True)
        for out in (y, exact)
    ]
    # Every gradient is a sum of products of the same factors: measured by their size, all of them positive.
    positive = [t.detach().abs().requires_grad_() for t in inputs]
    size = definition(*positive)
    sizes = torch.autograd.grad(size, positive, towards.abs(), allow_unused=True, materialize_grads=True)
    assert (y - exact).abs().max() <= bound * size.max()
    for a, b, of in zip(*found, sizes, strict=True):
        assert a.numel() == 0 or (a - b).abs().max() <= bound * (of.max() + sizes[1] + sizes[4])


@pytest.mark.parametrize("regime", ["near one", "0.8"])
def test_float32(regime):
    """0.8^63 is beyond float32's five bits: the same function in float64."""
    narrow = problem(64, 64, 2, 5, regime, torch.float32)
    wide = [t.detach().double().requires_grad_() for t in narrow]
    y, exact = product(*narrow), definition(*wide)
    assert taken(y)
    assert y.dtype == torch.float32
    bound = testing.tolerance(torch.float32, 64)
    assert (y - exact).abs().max() <= bound * definition(*(t.detach().abs() for t in wide)).max()
    for a, b in zip(
        torch.autograd.grad(y.sum(), narrow), torch.autograd.grad(exact.sum(), wide), strict=True
    ):
        assert torch.allclose(a.double(), b, rtol=1e-3, atol=1e-4 * b.abs().max().item())


def test_more_derivatives():
    inputs = problem(5, 4, 1, 2)
    assert torch.autograd.gradcheck(product, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(product, inputs)


def test_vmap_over_inputs_and_over_operators():
    inputs = [t.detach() for t in problem(12, 12, 2, 3)]
    stacked = torch.stack([inputs[6], 2 * inputs[6]], 1)
    mapped = torch.vmap(product, in_dims=(*[None] * 6, 1))(*inputs[:6], stacked)
    assert torch.allclose(mapped, torch.stack([product(*inputs), 2 * product(*inputs)]))
    twice = [torch.stack((t, t)) for t in inputs]
    assert torch.allclose(torch.vmap(product)(*twice)[1], product(*inputs))


def test_the_output_may_be_changed_in_place():
    layer = StructuredLinear(64, 64, structure="ldr_sd", bias=False)
    x = torch.randn(3, 64)
    plain = torch.autograd.grad(layer(x).relu().sum(), layer.G)[0]
    assert torch.equal(torch.autograd.grad(layer(x).relu_().sum(), layer.G)[0], plain)


def test_threads_share_the_rows():
    inputs = problem(512, 512, 1, 200, dtype=torch.float32)  # enough work for three
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            y = product(*inputs)
            results.append((y.detach(), *torch.autograd.grad(y.square().sum(), inputs)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0][0], results[1][0])  # rows do not know of each other
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4 * b.abs().max().item())


def test_a_training_forward_dispatches_few_operations():
    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.calls += 1
            return func(*args, **(kwargs or {}))

    layer, x = StructuredLinear(1024, 1024, structure="ldr_sd"), torch.randn(2, 1024)
    layer(x)
    with Count():
        layer(x)
    assert Count.calls <= 30
