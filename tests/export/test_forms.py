"""The products that exporters are shown, in torch, against the dense oracle in float64."""

import copy
import pickle

import numpy as np
import pytest
import torch

import torchldr
from torchldr import testing
from torchldr.export import forms
from torchldr.functional.exported import grown, krylov, transforms
from torchldr.functional.exported.convolution import numbers
from torchldr.functional.exported.dense import DenseWeight

CLASSES = list(torchldr.structures().values())
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
every_kind = pytest.mark.parametrize("kind", ["fft", "matmul"])
SHAPES = [(1, 1), (1, 5), (5, 1), (2, 2), (7, 7), (20, 33), (64, 64), (130, 70)]


def product_modulo(a, b):
    """a b modulo X^L + 1."""
    length, t = len(a), np.convolve(a, b)
    return t[:length] - np.append(t[length:], 0)


@every_kind
@pytest.mark.parametrize("points", [1, 2, 4, 7, 12, 16, 35])
def test_transforms_multiply_polynomials(kind, points):
    if kind == "fft" and points & (points - 1):
        points = 1 << points.bit_length()
    cls = transforms.FourierTransform if kind == "fft" else transforms.MatmulTransform
    random = np.random.default_rng(points)
    for taken in {1, points, 2 * points - 1, 2 * points}:
        for given in {1, points, 2 * points}:
            for i, j in ((3, 2), (1, 2), (2, 1), (1, 1)):
                transform = cls(points, taken, given, torch.float64)
                c, x = random.standard_normal((i, j, 2 * points)), random.standard_normal((2, j, taken))
                spectra = torch.from_numpy(transform.spectra(c))
                values = transform.contract(transform.analyse(torch.from_numpy(x)), spectra)
                y = transform.synthesise(values).numpy()
                full = np.pad(x, ((0, 0), (0, 0), (0, 2 * points - taken)))
                want = [[sum(map(product_modulo, c[a], full[b]))[:given] for a in range(i)] for b in range(2)]
                assert y.shape == (2, i, given)
                assert np.abs(y - np.array(want)).max() < 1e-12 * points


@every_class
@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_class_in_every_shape(cls, kind, dtype):
    for m, n in SHAPES if dtype == torch.float64 else SHAPES[-3:]:
        blocks = [b for b in (1, 3, 8, 66) if b <= max(m, n)] if cls.name == "block_circulant" else [None]
        for block in blocks:
            options = {} if block is None else {"block_size": block}
            generator = torch.Generator().manual_seed(m + n)
            rank = min(2, m, n) if cls.ranked else None
            M = cls.random(m, n, rank, dtype=dtype, generator=generator, **options)
            product = forms.product_module(M, kind, "fast")
            x = torch.randn(3, n, dtype=dtype, generator=generator)
            want = x.double() @ M.double().to_dense().mT
            size = x.double().abs() @ M.double().magnitude().mT
            error = (product(x).double() - want).abs().max() / size.max()
            assert error < 50 * torch.finfo(dtype).eps, (m, n, block)


@every_kind
@pytest.mark.parametrize("regime", testing.REGIMES)
@pytest.mark.parametrize(("m", "n"), [(96, 96), (40, 100), (100, 40)])
def test_every_operator_of_ldr_sd(kind, regime, m, n, monkeypatch):
    """Blocks of any number, and the matrix made from its parameters, for operators of every range."""
    M = testing.member(torchldr.LDRSubdiagonal, m, n, 2, regime=regime).double()
    x = torch.randn(3, n, dtype=torch.float64)
    want, size = x @ M.to_dense().mT, x.abs() @ M.magnitude().mT
    for most in (10**6, 0):
        monkeypatch.setattr(krylov, "MOST_BLOCKS", most)
        product = forms.product_module(M, kind, "fast")
        assert product.form.startswith("convolutions" if most else "made")
        # A convolution's error is relative to the largest rows of a block; 2^5 is the range of one.
        assert (product(x) - want).abs().max() <= 32 * testing.tolerance(torch.float64, n) * size.max()


@pytest.mark.parametrize("regime", testing.REGIMES)
@pytest.mark.parametrize("normalize", [False, True])
def test_every_operator_of_ldr_td(regime, normalize):
    M = testing.member(torchldr.LDRTridiagonal, 60, 45, 2, regime=regime).double()
    M = torchldr.LDRTridiagonal(60, 45, **M.tensors, normalize=normalize)
    x = torch.randn(3, 45, dtype=torch.float64)
    y = forms.product_module(M, "matmul", "fast")(x)
    size = x.abs() @ M.magnitude().mT
    assert ((y - x @ M.to_dense().mT).abs() <= 4 * testing.tolerance(torch.float64, 60) * size.max()).all()


def drifted(name, n, factor, regime="near one", corner=0.5):
    """A matrix whose A is scaled by a factor and C by its inverse: the same matrix as before."""
    M = testing.member(torchldr.get_structure(name), n, n, 2, regime=regime, dtype=torch.float32)
    for part, t in M.tensors.items():
        if part.endswith(("_A", "_C")):
            t.fill_(corner) if part.startswith("corner") else None
            t.mul_(factor if part.endswith("_A") else 1 / factor)
    return M


@every_kind
@pytest.mark.parametrize("regime", ["ones", "signs", "zeros", "near one"])
@pytest.mark.parametrize("corner", [0.0, 0.5])
@pytest.mark.parametrize(
    ("name", "n", "factor"), [("ldr_sd", 512, 1.2), ("ldr_sd", 256, 1.5), ("ldr_td", 300, 1.366)]
)
def test_a_common_scale_changes_nothing(kind, regime, corner, name, n, factor):
    M, x = drifted(name, n, factor, regime, corner), torch.randn(3, n)
    want = x.double() @ M.double().to_dense().mT
    size = x.double().abs() @ M.double().magnitude().mT
    for plan in ("fast", "load"):
        y = forms.product_module(M, kind, plan)(x)
        assert (y - want).abs().max() <= 32 * testing.tolerance(torch.float32, n) * size.max()


def test_powers_of_ldr_td_that_grow():
    """More columns than float32 may be trusted with: the graph makes them in float64."""
    g = torch.Generator().manual_seed(0)
    M = torchldr.LDRTridiagonal.random(1500, 1500, 1, generator=g)
    for side in "AC":
        for part, start, spread in (("sub", 1, 0.05), ("", 0, 0.1), ("super", 0, 0.1)):
            vector = M.tensors[f"{part}diagonal_{side}"]
            vector.copy_(start + spread * torch.randn(vector.shape, generator=g))
    x = torch.randn(3, 1500, generator=g)
    want = x.double() @ M.double().materialize().mT
    y = forms.product_module(M, "matmul", "fast")(x)
    assert y.dtype == torch.float32
    assert (y - want).abs().max() <= 5e-7 * want.abs().max()


@every_class
@pytest.mark.parametrize(("m", "n"), [(33, 20), (16, 16), (1, 3)])
def test_matrices_made_when_loaded(cls, m, n, monkeypatch):
    M = cls.random(m, n, 1 if cls.ranked else None, dtype=torch.float64)
    x = torch.randn(2, n, dtype=torch.float64)
    want = x @ M.to_dense().mT
    monkeypatch.setattr(forms, "GRAPH_NUMBERS", -(10**9))  # or small matrices would be dense
    assert torch.allclose(forms.product_module(M, "fft", "load")(x), want, atol=1e-11)
    monkeypatch.setattr(grown, "_TOGETHER", 1)  # a block of columns at a time
    assert torch.allclose(forms.product_module(M, "fft", "load")(x), want, atol=1e-11)


def test_blocks_begin_where_the_range_ends():
    assert krylov.first_indices(np.ones(9)) == [0]
    assert krylov.first_indices(np.full(9, 2.0)) == [0, 6]
    assert krylov.first_indices(np.array([1.0, 0.0, 1.0, 0.0])) == [0, 2, 4]
    assert krylov.first_indices(np.array([0.0, np.inf])) == [0, 1, 2]


def test_ranges_of_trained_layers_stay_convolutions():
    M = torchldr.LDRSubdiagonal.random(256, 256, 1, dtype=torch.float64)
    forms_of = {}
    for factor in (1.03, 0.5):  # of both operators: no common scale that could be taken out
        for side in "AC":
            M.tensors[f"subdiagonal_{side}"] = torch.full((255,), factor, dtype=torch.float64)
        forms_of[factor] = forms.product_module(M, "fft").form
    assert forms_of[1.03] == "convolutions in 3 blocks"  # products up to 1900
    assert forms_of[0.5] == "made from its parameters when loaded"


@every_class
@every_kind
def test_constants_are_fewer_than_the_dense_weight(cls, kind):
    M = cls.random(512, 512, 1 if cls.ranked else None)
    product = forms.product_module(M, kind)
    if cls.name == "dense":
        assert isinstance(product, DenseWeight)
    else:
        assert numbers(product) < 512 * 512 / 4
        assert "dense" not in product.form


@every_class
def test_small_matrices_are_dense_by_themselves(cls):
    M = cls.random(24, 30, 1 if cls.ranked else None)
    product = forms.product_module(M, "fft")
    assert isinstance(product, DenseWeight)
    assert torch.allclose(product.weight, M.to_dense(), atol=1e-5)


def test_a_class_without_a_form_is_dense():
    class Doubled(torchldr.LowRank):
        def _matmul(self, x):
            return 2 * super()._matmul(x)

        def factors(self):
            return [(2 * left, right) for left, right in super().factors()]

    M = Doubled.random(64, 64, 1)
    made = forms.product_module(M, "fft")
    assert made.form == "dense"
    torch.testing.assert_close(made.weight, M.to_dense())


def test_a_form_is_inherited_with_the_product_alone():
    class Same(torchldr.LowRank):
        pass

    class Other(torchldr.LowRank):
        def _matmul(self, x):
            return 2 * super()._matmul(x)

    tensors = torchldr.LowRank.random(64, 64, 1).tensors
    assert forms.product_module(Same.unchecked(64, 64, tensors, {}), "fft").form == "two matrix products"
    assert forms.product_module(Other.unchecked(64, 64, tensors, {}), "matmul").form == "dense"


@every_class
def test_products_are_pickled_and_copied(cls):
    M, x = cls.random(70, 90, 1 if cls.ranked else None), torch.randn(2, 90)
    product = forms.product_module(M, "fft", "fast")
    for other in (pickle.loads(pickle.dumps(product)), copy.deepcopy(product)):
        assert torch.equal(other(x), product(x))
