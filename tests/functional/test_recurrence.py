"""Sequences by the operator's loops against steps in torch, differentiated by autograd."""

import pytest
import torch

from torchldr.functional import recurrence, sequences
from torchldr.functional.recurrence import SEQUENCE

GATES = {"lstm": 4, "gru": 3}
every_cell = pytest.mark.parametrize("cell", ["lstm", "gru"])


def arguments(cell, steps=5, bias=True, dtype=torch.float64):
    torch.manual_seed(0)
    b, features, hidden = 3, 4, 6
    rows = GATES[cell] * hidden
    shapes = [
        (steps, b, features),
        (b, hidden),
        (b, hidden),
        (rows, features),
        (rows, hidden),
        (rows,),
        (rows,),
    ]
    given = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    there = (True, True, cell == "lstm", True, True, bias, bias)
    return [t if here else None for t, here in zip(given, there, strict=True)]


def gradients(function, given, cell, chosen=slice(None)):
    y = function(*given, cell)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    return y, torch.autograd.grad((y * weights).sum(), [t for t in given if t is not None][chosen])


@every_cell
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients(cell, steps, bias):
    given = arguments(cell, steps, bias)
    (y, got), (z, want) = gradients(SEQUENCE, given, cell), gradients(SEQUENCE.plain, given, cell)
    torch.testing.assert_close([y, *got], [z, *want], rtol=1e-12, atol=1e-12)


@every_cell
def test_each_gradient_alone(cell):
    given = arguments(cell)
    want = gradients(SEQUENCE.plain, given, cell)[1]
    for i, one in enumerate(want):
        got = gradients(SEQUENCE, given, cell, slice(i, i + 1))[1]
        torch.testing.assert_close(got, (one,), rtol=1e-12, atol=1e-12)


@every_cell
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_rounded_once(cell, dtype):
    given = [None if t is None else t.detach().requires_grad_() for t in arguments(cell, dtype=dtype)]
    wide = [None if t is None else t.detach().double().requires_grad_() for t in given]
    (y, got), (z, want) = gradients(SEQUENCE, given, cell), gradients(SEQUENCE.plain, wide, cell)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), z, rtol=eps, atol=eps)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, rtol=2 * eps, atol=2 * eps * float(b.abs().max()))


@every_cell
def test_a_gradient_does_not_run_the_forward_again(cell, monkeypatch):
    """Nor may it use what has changed: it is right after both forms of the forward are gone."""
    given = arguments(cell)
    y, want = gradients(SEQUENCE.plain, given, cell)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    tensors = [t for t in given if t is not None]
    for compiled in (False, True):
        call = torch.compile(SEQUENCE, fullgraph=True, backend="aot_eager") if compiled else SEQUENCE
        loss = (call(*given, cell) * weights).sum()
        with monkeypatch.context() as gone:
            gone.setattr(sequences, "forward", None)
            gone.setattr(recurrence, "_by_torch", None)
            got = torch.autograd.grad(loss, tensors)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@every_cell
def test_second_derivatives(cell):
    given = arguments(cell, steps=2)
    tensors = [t for t in given if t is not None]

    def again(function):
        grads = torch.autograd.grad(function(*given, cell).sin().sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), tensors)

    torch.testing.assert_close(again(SEQUENCE), again(SEQUENCE.plain), rtol=1e-10, atol=1e-10)
