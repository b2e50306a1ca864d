"""Dense weights of stacks on a GPU, where scans make them: values and gradients against float64 on a CPU."""

import subprocess
import sys
import threading

import pytest
import torch

import torchldr
from torchldr import StructuredChannels, StructuredLSTM, testing
from torchldr.functional import scan, stein
from torchldr.functional.doubling import shifted_sum

SCANNED = ("ldr_sd", "toeplitz_like", "hankel_like")
SHAPES = ((40, 40), (17, 40), (40, 17), (1, 5), (5, 1), (1, 1))


def stack(cls, shape, regime, dtype):
    """Three members of a class as one stack, and the members."""
    rank = min(2, *shape)
    members = [testing.member(cls, *shape, rank, regime=regime, dtype=dtype, seed=seed) for seed in range(3)]
    return {k: torch.stack([M.tensors[k] for M in members]) for k in members[0].tensors}, members


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("regime", testing.REGIMES)
@pytest.mark.parametrize("name", SCANNED)
def test_values_are_the_definition_in_every_regime(name, regime, shape):
    cls = torchldr.get_structure(name)
    for dtype in (torch.float32, torch.float64):
        tensors, members = stack(cls, shape, regime, dtype)
        tensors = {k: t.cuda() for k, t in tensors.items()}
        assert scan.serves(*tensors.values())
        W = cls.unchecked(*shape, tensors, cls.default_options()).materialize().cpu().double()
        for ours, M in zip(W, members, strict=True):
            limit = testing.tolerance(dtype, max(shape)) * M.double().magnitude()
            assert ((ours - M.double().to_dense()).abs() <= limit).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("regime", testing.REGIMES)
@pytest.mark.parametrize("name", SCANNED)
def test_gradients_are_those_of_a_cpu(name, regime, shape):
    """In float64, against plain autograd through doubling."""
    cls = torchldr.get_structure(name)
    tensors, _ = stack(cls, shape, regime, torch.float64)
    D = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = {}
    for device in ("cpu", "cuda"):
        leaves = {k: t.to(device).requires_grad_(t.is_floating_point()) for k, t in tensors.items()}
        W = cls.unchecked(*shape, leaves, cls.default_options()).materialize()
        wanted = [t for t in leaves.values() if t.requires_grad]
        grads = torch.autograd.grad(W, wanted, D.to(device), allow_unused=True)
        # Of a single term a sum has no operators: one side says None, the other 0.
        found[device] = [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, grads, strict=True)]
    for ours, theirs in zip(found["cuda"], found["cpu"], strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-9, atol=1e-9 * float(theirs.norm()))


@pytest.mark.parametrize("name", SCANNED)
def test_layers_train_as_on_a_cpu(name):
    torch.manual_seed(0)
    for layer, x in (
        (StructuredChannels(3, 2, 16, structure=name, rank=2), torch.randn(64, 3, 16)),
        (StructuredLSTM(16, 16, structure=name, rank=2), torch.randn(7, 3, 16)),
    ):
        layer.double()
        x = x.double()
        results = {}
        for device in ("cpu", "cuda"):
            layer.to(device).zero_grad(set_to_none=True)
            y = layer(x.to(device))
            y = y[0] if isinstance(y, tuple) else y
            y.square().sum().backward()
            # Copies: a layer that moves takes its gradients along, in place.
            results[device] = [t.detach().cpu().clone() for t in (y, *(p.grad for p in layer.parameters()))]
        for ours, theirs in zip(results["cuda"], results["cpu"], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_thread_without_a_context_launches_kernels():
    """As autograd's own thread may be, whose first work on the GPU is a kernel of ours."""
    tensors, members = stack(torchldr.LDRSubdiagonal, (9, 9), "uniform", torch.float64)
    tensors = {k: t.cuda() for k, t in tensors.items()}
    of = scan.Operators(*(tensors[f"{part}_{side}"] for side in "AC" for part in ("corner", "subdiagonal")))
    G, H = tensors["G"], tensors["H"]
    assert scan.serves(*of, G, H)
    found = []
    thread = threading.Thread(target=lambda: found.append(scan.stein_scan(of, G, H)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0].cpu(), torch.stack([M.to_dense() for M in members]))


def test_the_kernels_are_found_by_a_thread_without_a_context():
    """A process of its own: what `unavailable` says is kept for good."""
    code = """
import threading
from torchldr.kernels.cuda import unavailable
said = []
thread = threading.Thread(target=lambda: said.append(unavailable()))
thread.start()
thread.join()
assert said == [None], said
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_more_matrices_than_a_grid_has():
    """Of 2 x 2, whose dense form is easily told: M = E + A E C^T."""
    inputs = a, c, G, H = tuple(
        torch.randn(70_000, *shape, device="cuda", requires_grad=True)
        for shape in ((2,), (2,), (1, 2), (1, 2))
    )
    M = stein.stein_matrix((a[:, :1], a[:, 1:]), (c[:, :1], c[:, 1:]), G, H)
    expected = shifted_sum(G.mT @ H, a, c, 2)
    torch.testing.assert_close(M, expected)
    D = torch.randn_like(M)
    for ours, theirs in zip(
        torch.autograd.grad(M, inputs, D), torch.autograd.grad(expected, inputs, D), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_second_derivatives_and_maps_on_a_gpu():
    tensors, _ = stack(torchldr.LDRSubdiagonal, (6, 6), "uniform", torch.float64)
    names, values = zip(*tensors.items(), strict=True)
    options = torchldr.LDRSubdiagonal.default_options()

    def dense(*values):
        tensors = dict(zip(names, values, strict=True))
        return torchldr.LDRSubdiagonal.unchecked(6, 6, tensors, options).materialize()

    leaves = tuple(t.cuda().requires_grad_() for t in values)
    assert torch.autograd.gradgradcheck(dense, leaves)
    twice = torch.vmap(dense)(*(torch.stack((t, 2 * t)) for t in leaves))
    torch.testing.assert_close(twice[0], dense(*leaves))
    torch.testing.assert_close(twice[1], dense(*(2 * t for t in leaves)))


def test_an_exported_layer_on_a_gpu():
    layer = StructuredChannels(2, 2, 16, structure="ldr_sd", rank=2).cuda()
    x = torch.randn(64, 2, 16, device="cuda")
    program = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(program(x), layer(x), rtol=1e-4, atol=1e-4)
