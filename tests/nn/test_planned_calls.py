"""Calls that could be slow without a word: each is as fast as the plain one, or `routes` says why not.

Values stand against the definition in float64; speed by which route and which plan serve.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call

from torchldr import StructuredLinear

N, ROWS = 64, 6
STRUCTURES = ["ldr_sd", "ldr_td", "toeplitz_like", "hankel_like", "circulant", "low_rank"]
every_structure = pytest.mark.parametrize("structure", STRUCTURES)


def made(structure: str = "ldr_sd", dtype: torch.dtype = torch.float32) -> StructuredLinear:
    torch.manual_seed(0)
    layer = StructuredLinear(N, N, structure=structure, dtype=dtype).eval().requires_grad_(False)
    layer(torch.randn(ROWS, N, dtype=dtype))
    assert layer._plan.prepared()
    return layer


def exact(layer, x):
    return x.double() @ layer.matrix().double().to_dense().mT + layer.bias.double()


def check(layer, x):
    """The value, and that nothing but the kept plan served."""
    kept = layer._plan
    torch.testing.assert_close(layer(x).double(), exact(layer, x), rtol=1e-4, atol=1e-4)
    assert layer._plan is kept
    assert layer.routes(x).note == ""
    assert layer.routes(x).chosen in kept.prepared()


# Inputs in other memory, or with other axes.

INPUTS = {
    "columns of a wider one": lambda: torch.randn(ROWS, 2 * N)[:, :N],
    "every second entry": lambda: torch.randn(ROWS, 2 * N)[:, ::2],
    "every second row": lambda: torch.randn(2 * ROWS, N)[::2],
    "transposed": lambda: torch.randn(N, ROWS).mT,
    "expanded": lambda: torch.randn(1, N).expand(ROWS, N),
    "one number": lambda: torch.randn(1, 1).expand(ROWS, N),
    "three axes": lambda: torch.randn(2, 3, N),
    "axes exchanged": lambda: torch.randn(3, 2, N).transpose(0, 1),
    "channels last": lambda: (
        torch.randn(2, N, 3, 1).to(memory_format=torch.channels_last).permute(0, 2, 3, 1)
    ),
    "channels in front": lambda: torch.randn(2, N, 3, 1).permute(0, 2, 3, 1),
    "conjugate bit": lambda: torch.randn(ROWS, N, dtype=torch.complex64).conj().real,
    "negative bit": lambda: torch.randn(ROWS, N, dtype=torch.complex64).conj().imag,
    "shared with numpy": lambda: torch.from_numpy(torch.randn(ROWS, N).numpy()),
}


@every_structure
@pytest.mark.parametrize("name", INPUTS)
def test_inputs_in_any_memory_take_the_same_route(structure, name):
    layer, x = made(structure), INPUTS[name]()
    check(layer, x)
    assert layer.routes(x).chosen == layer.routes(torch.randn(ROWS, N)).chosen
    torch.testing.assert_close(layer(x), layer(x.contiguous()), rtol=1e-5, atol=1e-5)


def test_four_axes_that_are_channels_last_in_memory():
    layer, x = made(), torch.randn(2, 3, 1, N).to(memory_format=torch.channels_last)
    assert not x.is_contiguous()
    check(layer, x)


# Gradients of the input alone.


@every_structure
def test_gradients_of_the_input_with_frozen_parameters(structure):
    layer = made(structure, torch.float64)
    x = torch.randn(3, N, dtype=torch.float64, requires_grad=True)
    kept = layer._plan
    assert torch.autograd.gradcheck(layer, x, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: layer(x).sin(), x, fast_mode=True)
    assert layer._plan is kept


@pytest.mark.parametrize("structure", ["ldr_sd", "toeplitz_like", "hankel_like"])
def test_the_compiled_product_serves_gradients_of_the_input(structure):
    layer, x = made(structure), torch.randn(ROWS, N)
    layer.plan = "fast"
    plain = layer.routes(x).chosen
    assert layer.routes(x.requires_grad_()).chosen == plain
    check(layer, x)
    direction = torch.randn(ROWS, N)
    (found,) = torch.autograd.grad(layer(x), x, direction)
    right = direction.double() @ layer.matrix().double().to_dense()
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)


@every_structure
def test_edits_between_forward_and_backward_do_not_reach_the_gradient(structure):
    """A backward by M^T that is prepared there would read the new numbers: the old ones, or torch's error."""
    x, u = torch.randn(1, N, requires_grad=True), torch.randn(1, N)
    served = [row.route for row in made(structure).routes(x) if row.why_not is None]
    assert served
    for route in served:
        layer = made(structure)
        layer.route = route
        right = u.double() @ layer.matrix().double().to_dense()
        y = layer(x)
        with torch.no_grad():
            for p in layer.parameters():
                p.mul_(2)
        try:
            (found,) = torch.autograd.grad(y, x, u)
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            continue
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)


@every_structure
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_tangents_of_forward_mode_pass_through_a_plan(structure, mode):
    """They do not make a tensor require a gradient: compiled products must not drop them."""
    layer, (x, t) = made(structure), torch.randn(2, ROWS, N)
    layer.plan = "fast"
    with mode():
        layer(x)
        with forward_ad.dual_level():
            y = layer(forward_ad.make_dual(x, t))
            tangent = forward_ad.unpack_dual(y).tangent
        assert tangent is not None
        right = t.double() @ layer.matrix().double().to_dense().mT
    torch.testing.assert_close(tangent.double(), right, rtol=1e-4, atol=1e-4)


# Modes around the call.


@every_structure
def test_modes_in_each_other_keep_the_plan(structure):
    layer, x = made(structure).requires_grad_(), torch.randn(ROWS, N)
    with torch.no_grad():
        layer(x)
        kept = layer._plan
        with torch.inference_mode():
            check(layer, x)
        with torch.no_grad(), torch.inference_mode(), torch.no_grad():
            check(layer, x)
        with torch.enable_grad():
            assert "gradient of" in layer.routes(x).note
            assert layer(x).requires_grad
            with torch.no_grad():
                check(layer, x)
        assert layer._plan is kept


def cost(layer, x):
    return next(row.seconds for row in layer.routes(x) if row.chosen)


@every_structure
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_takes_no_slower_route(structure, dtype):
    """What computes in float32 is rounded in the end: the route costs no more than without autocast."""
    layer = made(structure)
    for rows in (1, ROWS):
        x = torch.randn(rows, N)
        plain = cost(layer, x)
        with torch.autocast("cpu", dtype=dtype):
            assert cost(layer, x) <= plain
            kept = layer._plan
            y = layer(x)
            assert layer._plan is kept
            assert layer.routes(x).chosen in kept.prepared()
        assert y.dtype == dtype
        bound = 2 * torch.finfo(dtype).eps * N**0.5
        assert (y.double() - exact(layer, x)).norm() <= bound * exact(layer, x).norm()


@every_structure
def test_hooks_leave_the_plan_alone(structure):
    layer, x = made(structure), torch.randn(ROWS, N)
    kept, seen = layer._plan, []
    layer.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    layer.register_forward_hook(lambda module, args, y: seen.append(y))
    torch.testing.assert_close(layer(x).double(), exact(layer, 2 * x), rtol=1e-4, atol=1e-4)
    assert layer._plan is kept
    assert len(seen) == 1
    assert layer.routes(x).note == ""


# Other tensors in the place of the parameters.


class Asking(nn.Module):
    """Calls a layer, and keeps what it says about routes."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        self.note = self.layer.routes(x).note
        return self.layer(x)


@every_structure
def test_functional_calls_with_the_same_numbers_take_the_plan(structure):
    model, x = Asking(made(structure)), torch.randn(ROWS, N)
    kept, right = model.layer._plan, exact(model.layer, x)
    own = dict(model.named_parameters())
    for others in (
        own,
        {name: p.detach() for name, p in own.items()},
        {k: p.clone() for k, p in own.items()},
    ):
        y = functional_call(model, others, (x,))
        torch.testing.assert_close(y.double(), right, rtol=1e-4, atol=1e-4)
        assert model.note == ""
        assert model.layer._plan is kept


@every_structure
def test_functional_calls_with_other_numbers_say_why_not(structure):
    model, x = Asking(made(structure)), torch.randn(ROWS, N)
    kept = model.layer._plan
    others = {name: 1.05 * p for name, p in model.named_parameters()}  # 2 ** 127 would be out of range
    y = functional_call(model, others, (x,))
    assert "was swapped for another tensor" in model.note
    assert model.layer._plan is kept
    right = made(structure)
    with torch.no_grad():
        for p in right.parameters():
            p.mul_(1.05)
    torch.testing.assert_close(y.double(), exact(right, x), rtol=1e-4, atol=1e-4)
    check(model.layer, x)


@every_structure
def test_replicas_of_data_parallel_make_no_plans(structure):
    """Replicas are made at every call, with copies of the parameters: a plan would serve once."""
    layer, x = made(structure), torch.randn(ROWS, N)
    kept = layer._plan
    replica = layer._replicate_for_data_parallel()
    for name, p in layer.named_parameters():
        setattr(replica, name, p.detach().clone())  # as torch.nn.parallel.replicate does
    replica._buffers = dict(layer._buffers)
    assert "replica of DataParallel" in replica.routes(x).note
    torch.testing.assert_close(replica(x).double(), exact(layer, x), rtol=1e-4, atol=1e-4)
    assert layer._plan is kept is replica._plan
    right, device = exact(layer, x), "cuda" if torch.cuda.is_available() else "cpu"  # all of the GPUs, if any
    y = nn.DataParallel(layer.to(device))(x.to(device))
    torch.testing.assert_close(y.cpu().double(), right, rtol=1e-4, atol=1e-4)


class Named(nn.Parameter):
    """A parameter with attributes of its own, as loaders make them."""


class Watching(nn.Parameter):
    """A parameter that sees the operations it takes part in."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@every_structure
def test_parameters_of_a_subclass_that_only_adds_attributes_keep_the_plan(structure):
    layer, x = made(structure), torch.randn(ROWS, N)
    route = layer.routes(x).chosen
    for name, p in list(layer.named_parameters()):
        setattr(layer, name, Named(p.detach(), requires_grad=False))
    layer(x)
    check(layer, x)
    assert layer.routes(x).chosen == route
    with torch.no_grad():
        next(layer.parameters()).mul_(2)
    torch.testing.assert_close(layer(x).double(), exact(layer, x), rtol=1e-4, atol=1e-4)


@every_structure
def test_parameters_of_other_classes_say_why_not(structure):
    layer, x = made(structure), torch.randn(ROWS, N)
    name, p = next(iter(layer.named_parameters()))
    setattr(layer, name, Watching(p.detach(), requires_grad=False))
    assert f"{name} has no values to look at" in layer.routes(x).note
    torch.testing.assert_close(layer(x).double(), exact(layer, x), rtol=1e-4, atol=1e-4)
