"""On a GPU: every class against its oracle, the stencil kernels, and capture in a CUDA graph."""

import copy

import pytest
import torch
import torch.utils.checkpoint

import torchldr
from torchldr import StructuredLinear, testing
from torchldr.functional import scan, stream
from torchldr.functional.doubling import shifted_sum
from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.kernels import cuda
from torchldr.timing import captured

every_class = pytest.mark.parametrize("cls", torchldr.structures().values(), ids=lambda cls: cls.name)


@every_class
def test_values_and_gradients(cls):
    for M in testing.cases(cls, shapes=((1, 1), (3, 5), (64, 129), (150, 100))):
        M = M.to("cuda")
        testing.check_values(M)
        testing.check_gradients(M)
        testing.dot_test(M)


@every_class
def test_an_empty_batch(cls):
    M = testing.member(cls, 12, 8, 2 if cls.ranked else None).to("cuda")
    x = torch.zeros(0, 8, dtype=M.dtype, device="cuda", requires_grad=True)
    y = M.matmul(x)
    y.sum().backward()
    assert y.shape == (0, 12)
    assert x.grad.shape == (0, 8)


@every_class
@pytest.mark.parametrize("product", ["fast", "dense"])
def test_stacks_are_trained(cls, product):
    """By sizes from which on kernels of their own serve."""
    S = torchldr.stack([testing.member(cls, 160, 160, 2 if cls.ranked else None, seed=i) for i in range(3)])
    x, v = torch.randn(2, 3, 5, 160, dtype=S.dtype)
    found = []
    for device in ("cpu", "cuda"):
        M = S.to(device)
        learned = [t.requires_grad_() for t in M.tensors.values() if t.is_floating_point()]
        y = M.matmul(x.to(device), product=product)
        grads = torch.autograd.grad(y, learned, v.to(device), allow_unused=True)
        found.append([y, *(g for g in grads if g is not None)])
    for want, got in zip(*found, strict=True):
        assert (got.cpu() - want).norm() <= 1e-9 * want.norm()


@every_class
def test_layer_and_low_precision(cls):
    rank = 2 if cls.ranked else None
    testing.check_layer(StructuredLinear(70, 50, structure=cls, rank=rank).cuda().double())
    regime = "near one" if testing.has_operators(cls) else None
    for dtype in (torch.bfloat16, torch.float16):
        testing.check_low_precision(testing.member(cls, 64, 129, rank, regime=regime).to("cuda"), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("m", "k"),
    [
        (1, 1),
        (2, 2),
        (5, 3),
        (33, 33),
        (192, 192),
        (200, 70),
        (784, 784),
        (2048, 100),
        (4096, 37),
        (5000, 40),
    ],
)
def test_stencil_kernels(m, k, dtype):
    assert cuda.unavailable() is None
    s, r = 3, 2
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=g)
    rings = torch.cat(
        (0.05 * draw(s, 1, m), 0.9 + 0.02 * draw(s, 1, m), 0.05 * draw(s, 1, m), draw(s, r, m)), 1
    )
    rings, dK = rings.requires_grad_(), draw(s, r, k, m)
    want = torch.stack(
        [
            torch.stack([krylov_of_ring_reference(lower, diagonal, upper, v, k).mT for v in V])
            for upper, lower, diagonal, *V in rings
        ]
    )
    (exact,) = torch.autograd.grad(want, rings, dK)
    on_gpu = rings.detach().to("cuda", dtype)
    K = cuda.krylov_columns(on_gpu, k)
    got = cuda.krylov_adjoint(on_gpu, K, dK.to("cuda", dtype)).cpu()
    tolerance = testing.tolerance(dtype, m)
    assert (K.cpu() - want).abs().max() <= tolerance * want.abs().max()
    assert ((got - exact).abs().amax(-1) <= 10 * tolerance * exact.abs().amax(-1).clamp(min=1)).all()


@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.parametrize(("dtype", "tf32"), [("float32", False), ("float32", True), ("bfloat16", False)])
@pytest.mark.parametrize(
    ("m", "rank"), [(1, 1), (100, 3), (700, 1), (2048, 1), (2100, 2), (4096, 1), (6000, 1)]
)
def test_dense_matrices_of_tridiagonal_operators(m, rank, dtype, tf32, monkeypatch):
    """By columns that are made in groups from 2048 on, and by products of bfloat16 numbers where these do."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    dtype = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(m)
    options = {"normalize": m == 700}
    M = torchldr.LDRTridiagonal.random(m, m, rank, generator=generator, **options).to("cuda", dtype)
    tensors = {name: t.requires_grad_() for name, t in M.tensors.items()}
    wide = {name: t.detach().double().requires_grad_() for name, t in tensors.items()}
    D = torch.randn(m, m, generator=generator).to("cuda", dtype)

    def gradients(tensors, dtype):
        W = torchldr.LDRTridiagonal.unchecked(m, m, tensors, M.options).dense_in(dtype)
        return [W.detach(), *torch.autograd.grad(W, tensors.values(), D.to(dtype))]

    eps = 2**-16 if tf32 else torch.finfo(dtype).eps
    exact = gradients(wide, torch.float64)
    size = max(t.square().mean().sqrt() for t in exact[3:] if t.numel())  # of operators': corners may cancel
    for got, right in zip(gradients(tensors, dtype), exact, strict=True):
        assert got.dtype == dtype
        assert (got - right).norm() <= eps * (30 + m / 20) * (right.norm() + size)


def test_dense_matrices_of_tridiagonal_operators_in_float64():
    M = torchldr.LDRTridiagonal.random(300, 300, 2, dtype=torch.float64)
    on_gpu = M.to("cuda").dense_in(torch.float64).cpu()
    assert (on_gpu - M.to_dense()).abs().max() <= 1e-12 * M.to_dense().abs().max()


@pytest.mark.parametrize(("m", "n"), [(100, 100), (100, 70), (70, 100)])
def test_vmap_over_operators_takes_the_kernel(m, n):
    s, b = 4, 3
    rings = [[torch.rand(s, size, device="cuda") / 3 for _ in range(3)] for size in (m, n)]
    A, C = ((*ring, torch.randn(s, 2, size, device="cuda")) for ring, size in zip(rings, (m, n), strict=True))
    x = torch.randn(s, b, n, device="cuda")
    together = torch.vmap(stream.product)(A, C, x)
    alone = [stream.product(*(tuple(t[i] for t in of) for of in (A, C)), x[i]) for i in range(s)]
    exact = [
        stream.product(*(tuple(t[i].double().cpu() for t in of) for of in (A, C)), x[i].double().cpu())
        for i in range(s)
    ]
    for found in (together, torch.stack(alone)):
        assert torch.allclose(found.double().cpu(), torch.stack(exact), atol=1e-4)


@pytest.mark.parametrize("unseen", [False, True])
def test_powers_that_grow_run_in_float64(unseen):
    g = torch.Generator().manual_seed(0)
    draw = lambda start, spread, *shape: start + spread * torch.randn(*shape, generator=g)
    A, C = ((draw(1, 0.05, n), draw(0, 0.1, n), draw(0, 0.1, n), draw(0, 1, 1, n)) for n in (2048, 2048))
    inputs = [t.cuda().requires_grad_() for t in (*A, *C, draw(0, 1, 2, 2048))]
    wide = [t.detach().cpu().double().requires_grad_() for t in inputs]

    def gradients(t, product):
        y = product(t[:4], t[4:8], t[8])
        return y.detach(), *torch.autograd.grad(y.sum(), t)

    by_vmap = lambda A, C, x: torch.vmap(lambda row: stream.product(A, C, row[None])[0])(x)
    got = gradients(inputs, by_vmap if unseen else stream.product)
    for a, b in zip(got, gradients(wide, stream.product), strict=True):
        assert a.dtype == torch.float32
        assert (a.cpu() - b).abs().max() <= 1e-6 * b.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 20])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 7), (31, 31), (64, 64), (100, 129), (300, 300), (65, 700)])
def test_diagonals(m, n, rank, dtype):
    """Matrices by scans, their adjoints and gradients, against sums by doubling in float64."""
    g = torch.Generator().manual_seed(m + n)
    a, c = (1 + 0.2 * torch.randn(3, size, dtype=torch.float64, generator=g) for size in (m, n))
    a[0, 0], c[1, 0], a[2, m // 2] = -0.5, 0.3, 0.0
    shapes = (rank, m), (rank, n), (m, n)
    G, H, D = (torch.randn(3, *shape, dtype=torch.float64, generator=g) for shape in shapes)
    exact = [t.to(dtype).double() for t in (a, c, G, H, D)]

    def plain(a, c, G, H, D):
        a, c, E = (t.requires_grad_() for t in (a.clone(), c.clone(), G.mT @ H))
        M = shifted_sum(E, a, c, min(m, n))
        da, dc, dE = torch.autograd.grad(M, (a, c, E), D, allow_unused=True, materialize_grads=True)
        return [M.detach(), dE, da[:, :1], da[:, 1:], dc[:, :1], dc[:, 1:], dE]

    a, c, G, H, D = (t.to("cuda", dtype) for t in exact)
    of = scan.Operators(a[:, :1], a[:, 1:], c[:, :1], c[:, 1:])
    assert scan.serves(G, H)
    found = scan.stein_scan_gradients(of, G, H, D)
    results = [scan.stein_scan(of, G, H), scan.stein_scan_adjoint(of, D), *found.of, found.e]
    for ours, want, magnitude in zip(results, plain(*exact), plain(*(t.abs() for t in exact)), strict=True):
        assert ours.dtype == dtype
        assert ((ours.cpu() - want).abs() <= testing.tolerance(dtype, n) * (magnitude + 1e-30)).all()


@pytest.mark.parametrize("name", ["toeplitz_like", "hankel_like", "ldr_sd"])
@pytest.mark.parametrize("mode", ["bfloat16", "autocast", "float16"])
@pytest.mark.parametrize(("m", "n"), [(64, 64), (70, 200), (200, 70)])
def test_the_dense_matrix_of_narrow_numbers_is_rounded_once(name, mode, m, n):
    """Values and gradients of a training step beside float64."""
    dtype = {"bfloat16": torch.bfloat16, "autocast": torch.float32, "float16": torch.float16}[mode]
    layer = torchldr.StructuredLinear(n, m, structure=name, rank=2, device="cuda", dtype=dtype)
    layer.product = "dense"
    exact = copy.deepcopy(layer).double()
    x = torch.randn(300, n, device="cuda", dtype=dtype)
    with torch.autocast("cuda", torch.bfloat16, enabled=mode == "autocast"):
        y = layer(x)
    target = torch.randn_like(y)
    y.backward(target)
    exact(x.double()).backward(target.double())
    eps = torch.finfo(y.dtype).eps
    assert (y.double() - exact(x.double())).norm() <= 2 * eps * y.double().norm()
    for (which, ours), theirs in zip(layer.named_parameters(), exact.parameters(), strict=True):
        error = (ours.grad.double() - theirs.grad).norm() / theirs.grad.norm()
        assert error <= 8 * eps, (which, error)


@pytest.mark.parametrize(
    ("m", "n", "regime"),
    [*((1200, 100, regime) for regime in testing.REGIMES), (100, 1200, "zeros"), (1030, 1030, "uniform")],
)
def test_the_matrix_of_large_layers(m, n, regime):
    M = testing.member(torchldr.LDRSubdiagonal, m, n, 2, regime=regime).to("cuda")
    testing.check_values(M)
    testing.check_gradients(M)


@pytest.mark.parametrize("batch", [2, 700])
@pytest.mark.parametrize(("n", "rank"), [(4, 1), (1250, 3), (4096, 8), (12288, 1), (32768, 2)])
def test_large_fast_products(n, rank, batch):
    """LDR-SD against itself in float64: values, and gradients of every tensor."""
    M = torchldr.LDRSubdiagonal.random(n, n, rank=rank)
    for side in "AC":
        M.tensors[f"subdiagonal_{side}"] = 1 + 0.3 / n**0.5 * (2 * torch.rand(n - 1) - 1)
        M.tensors[f"corner_{side}"] = torch.rand(1) - 0.5
    tensors = {name: t.cuda().requires_grad_() for name, t in M.tensors.items()}
    exact = {name: t.detach().double().requires_grad_() for name, t in tensors.items()}
    x, u = torch.randn(2, batch, n, device="cuda")
    y = M.with_tensors(tensors).matmul(x, product="fast")
    wanted = M.with_tensors(exact).matmul(x.double(), product="fast")
    assert (y - wanted).abs().max() <= 1e-6 * n**0.5 * wanted.abs().max()
    y.backward(u)
    wanted.backward(u.double())
    for name, t in tensors.items():
        assert (t.grad - exact[name].grad).norm() <= 1e-4 * exact[name].grad.norm(), name


@pytest.mark.parametrize("product", ["fast", "dense"])
def test_frozen_on_one_stream_it_serves_another(product):
    layer = StructuredLinear(512, 512, device="cuda")
    layer.product = product
    x = torch.randn(3, 512, device="cuda")
    with torch.no_grad():
        want = x.double() @ layer.matrix().double().to_dense().mT + layer.bias.double()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            served = torchldr.freeze(layer)
            torch.cuda.current_stream().synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            y = served(x)
        torch.cuda.synchronize()
    assert (y - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize("name", ["ldr_sd", "toeplitz_like", "hankel_like"])
@pytest.mark.parametrize("how", ["float32", "bfloat16", "float16", "autocast", "gradients"])
def test_frozen_fast_products(name, how):
    """As layers call them: any number of axes, other dtypes, autocast, frozen parameters."""
    torch.manual_seed(0)
    dtype = getattr(torch, how) if how in ("bfloat16", "float16") else torch.float32
    layer = StructuredLinear(512, 512, structure=name, rank=2, device="cuda", dtype=dtype)
    layer.product = "fast"
    W, bias = (t.detach().double().cpu() for t in (layer.matrix().double().to_dense(), layer.bias))
    x = torch.randn(2, 3, 512, device="cuda", dtype=dtype)
    want = x.double().cpu() @ W.mT + bias
    if how == "gradients":
        y = torchldr.freeze(layer)(x.requires_grad_())
        u = torch.randn_like(y)
        y.backward(u)
        assert torch.allclose(x.grad.double().cpu(), u.double().cpu() @ W, atol=1e-5)
    else:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=how == "autocast"):
            served = torchldr.freeze(layer)
            y = served(x)
            assert y.dtype == (torch.bfloat16 if how == "autocast" else dtype)
            assert served(x[:0]).shape == (0, 3, 512)
    error = (y.detach().double().cpu() - want).abs().max() / want.abs().max()
    assert error <= max(torch.finfo(y.dtype).eps, 2e-6)


@pytest.mark.parametrize("name", ["ldr_sd", "toeplitz_like", "hankel_like"])
@pytest.mark.parametrize("bias", [False, True])
def test_layers_train_by_fast_products(name, bias):
    """With an activation that overwrites what the layer returns."""
    layer = StructuredLinear(512, 512, bias=bias, structure=name, rank=2, device="cuda")
    x, found = torch.randn(5, 512, device="cuda"), []
    for product in ("fast", "dense"):
        layer.product = product
        found.append(torch.autograd.grad(layer(x).relu_().square().sum(), [*layer.parameters()]))
    largest = max(theirs.norm() for theirs in found[1])
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() <= 1e-4 * largest


@pytest.mark.parametrize("product", ["fast", "dense"])
@pytest.mark.parametrize("name", ["ldr_sd", "toeplitz_like", "ldr_td"])
def test_numbers_that_are_noted_to_be_negated(name, product):
    """Rows, their gradients and parameters whose sign torch has not written yet."""
    z = torch.randn(5, 512, dtype=torch.complex64, device="cuda")
    x, u = z.conj().imag, z.flip(0).conj().imag
    assert x.is_neg()
    M = StructuredLinear(512, 512, structure=name, device="cuda").requires_grad_(False).matrix()
    M = M.with_tensors({**M.tensors, "G": torch.complex(M.G, -M.G).conj().imag})
    assert M.G.is_neg()
    found = []
    for lazy in (True, False):
        given, rows = [t if lazy else t.clone().resolve_neg() for t in (M.G, x)]
        assert given.is_neg() == lazy
        leaf = rows.detach().requires_grad_()
        y = M.with_tensors({**M.tensors, "G": given}).matmul(leaf, product=product)
        found.append([y.detach(), *torch.autograd.grad(y, leaf, u if lazy else u.clone().resolve_neg())])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("product", ["auto", "dense"])
def test_training_is_deterministic_where_that_is_asked_for(product, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    layer = StructuredLinear(8192, 8192, device="cuda")
    layer.product = product
    x = torch.randn(4096, 8192, device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        steps = []
        for _ in range(2):
            layer.zero_grad()
            layer(x).sum().backward()
            steps.append([p.grad for p in layer.parameters()])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, *steps))


def test_more_vectors_than_a_grid_has():
    M = torchldr.LDRTridiagonal.random(8, 8, 8)
    found = torchldr.stack([M.to("cuda")] * 8200).dense_in(torch.float32)
    assert (found.cpu() - M.to_dense()).abs().max() <= 1e-4 * M.to_dense().abs().max()


def test_a_checkpoint_of_operators_out_of_range():
    layer = StructuredLinear(16384, 16384, device="cuda")
    layer.product = "fast"
    with torch.no_grad():
        layer.subdiagonal_A[5] = 64
    x = torch.randn(512, 16384, device="cuda", requires_grad=True)
    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert torch.isfinite(layer.G.grad).all()


@pytest.mark.parametrize("product", ["fast", "dense"])
@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("ldr_sd", 100),
        ("ldr_sd", 2000),
        ("ldr_td", 100),
        ("ldr_td", 700),
        ("ldr_td", 2100),
        ("circulant", 100),
        ("toeplitz_like", 100),
    ],
)
def test_a_training_step_is_captured_in_a_graph(name, n, product):
    """No host synchronisation in forward or backward."""
    rank = 2 if torchldr.get_structure(name).ranked else None
    layer = StructuredLinear(n, n, structure=name, rank=rank, device="cuda")
    layer.product = product
    x, target = torch.randn(8, n, device="cuda"), torch.randn(8, n, device="cuda")

    def step():
        for p in layer.parameters():
            p.grad = None
        layer(x).backward(target)

    graph = captured(step)
    graph.replay()
    got = [p.grad.clone() for p in layer.parameters()]
    step()
    for a, p in zip(got, layer.parameters(), strict=True):
        assert torch.allclose(a, p.grad, atol=1e-4 * max(1, p.grad.abs().max().item()))


def gradients_in_float64(layer, x, target):
    """Of the layer's parameters, by the dense oracle."""
    exact = copy.deepcopy(layer).cpu().double()
    exact.zero_grad()
    (x.cpu().double() @ exact.matrix().to_dense().mT).backward(target.cpu().double())
    return [p.grad for p in exact.parameters()]


@pytest.mark.parametrize(
    ("n", "product", "reach"),
    [(100, "auto", 1e30), (1000, "auto", 2.0), (1000, "auto", 1e4), (1500, "dense", 1e30)],
)
def test_no_step_of_training_waits(n, product, reach):
    """LDR-SD in steps that the host queues without looking, then held to the oracle where it came to."""
    torch.manual_seed(0)
    layer = StructuredLinear(n, n, bias=False, structure="ldr_sd").cuda()
    layer.product = product
    with torch.no_grad():
        for side in "AC":
            s = layer.get_parameter(f"subdiagonal_{side}")
            s[: n // 2] /= reach ** (2 / n)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    x, target = torch.randn(8, n, device="cuda"), torch.randn(8, n, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        layer(x).backward(target)
        optimizer.step()

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    optimizer.zero_grad(set_to_none=True)
    layer(x).backward(target)
    want = gradients_in_float64(layer, x, target)
    largest = max(exact.abs().max().item() for exact in want)  # a corner's may be a small rest of large terms
    for p, exact in zip(layer.parameters(), want, strict=True):
        assert (p.grad.cpu() - exact).abs().max() <= 2e-5 * largest


@pytest.mark.parametrize("name", torchldr.structures())
def test_rows_depend_on_themselves_alone(name):
    """Both products of every class: rows of NaN, inf and 1e+-30 harm no other row."""
    cls = torchldr.get_structure(name)
    for shape in ((16, 16), (64, 64), (129, 64)):
        for regime in testing.NEAR_ONE if testing.has_operators(cls) else [None]:
            rank = 2 if cls.ranked else None
            for dtype in (torch.float32, torch.float64):
                testing.check_rows(testing.member(cls, *shape, rank, regime=regime, dtype=dtype).to("cuda"))


@pytest.mark.parametrize("structure", ["low_rank", "block_circulant"])
def test_compression_on_a_gpu_is_that_on_a_cpu(structure):
    """Fits are computed where the model is."""
    torch.manual_seed(0)
    parts = [torch.nn.Linear(32, 48), torch.nn.Tanh(), torch.nn.Linear(48, 32), torch.nn.Tanh()]
    dense = torch.nn.Sequential(*parts, torch.nn.Linear(32, 32)).double()
    batches = [torch.randn(200, 32, dtype=torch.float64) for _ in range(8)]
    found = {}
    for device in ("cpu", "cuda"):
        model = copy.deepcopy(dense).to(device)
        report = torchldr.compress_(
            model, 0.5, structures=[structure], loader=[x.to(device) for x in batches]
        )
        assert {p.device.type for p in model.parameters()} == {device}
        found[device] = model.cpu()(batches[0]).detach(), report.distance
    (right, distance), (y, other) = found["cpu"], found["cuda"]
    torch.testing.assert_close(y, right, rtol=1e-6, atol=1e-6)
    assert abs(other - distance) < 1e-6
