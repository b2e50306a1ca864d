"""The learning theory: degrees measured on the classes, the bound held to counted sign patterns."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil, comb, e, log, log2

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchldr
from torchldr import cli
from torchldr_paper.theory import (
    ACTIVATIONS,
    Activation,
    Degree,
    Layer,
    convolution_layer,
    entry_degree,
    layers_of,
    pac_sample_size,
    structured_layer,
    sylvester_degree,
    vc_bound,
)
from torchldr_paper.theory.bound import _log2_patterns
from torchldr_paper.theory.paper import GENERIC, NETWORKS, network_layers, rows

POLYNOMIAL = [(name, {}) for name in torchldr.structures()]
POLYNOMIAL += [("vandermonde_like", {"learn_nodes": True})]


def along_a_line(name: str, m: int, n: int, options: dict, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Entries of M where the parameters move along a random line, at `count` Chebyshev points."""
    generator = torch.Generator().manual_seed(m * 100 + n)
    cls = torchldr.get_structure(name)
    base = cls.random(m, n, 1 if cls.ranked else None, dtype=torch.float64, generator=generator, **options)
    learned = cls.parameter_shapes(m, n, 1, **base.options)
    ends = [{k: torch.randn(s, generator=generator, dtype=torch.float64) for k, s in learned.items()}]
    ends += [{k: torch.randn(s, generator=generator, dtype=torch.float64) for k, s in learned.items()}]
    points = np.cos((2 * np.arange(count) + 1) * np.pi / (2 * count))
    values = []
    for t in points:
        moved = {k: ends[0][k] + float(t) * ends[1][k] for k in learned}
        M = cls.unchecked(m, n, {**base.tensors, **moved}, base.options)
        values.append(M.to_dense().flatten().numpy())
    return points, np.array(values)


@pytest.mark.parametrize(("m", "n"), [(3, 3), (4, 2), (2, 4)])
@pytest.mark.parametrize(("name", "options"), POLYNOMIAL, ids=str)
def test_the_degrees_are_those_of_the_classes(name: str, options: dict, m: int, n: int):
    """On a line the entries are polynomials of the stated degree, and some are of no lower one."""
    d = entry_degree(name, m, n, **options).numerator
    points, values = along_a_line(name, m, n, options, 2 * d + 4)
    coefficients = np.abs(np.polynomial.chebyshev.chebfit(points, values, 2 * d + 3)).max(1)
    scale = np.abs(values).max()
    assert coefficients[d + 1 :].max() < 1e-12 * scale
    assert coefficients[d] > 1e-9 * scale


def test_the_rational_degree_is_that_of_cramers_rule():
    """det(I (x) A - B^T (x) I) M is a polynomial of degree m n + 1 on a line, the determinant of m n."""
    m, n = 3, 2
    rng = np.random.default_rng(0)
    start, slope = ([rng.normal(size=s) for s in ((m, m), (n, n), (m, 1), (1, n))] for _ in range(2))
    degree = sylvester_degree(m, n)
    count = 2 * degree.numerator + 4
    points = np.cos((2 * np.arange(count) + 1) * np.pi / (2 * count))
    numerators, denominators = [], []
    for t in points:
        A, B, G, H = (a + t * b for a, b in zip(start, slope, strict=True))
        system = np.kron(np.eye(n), A) - np.kron(B.T, np.eye(m))
        denominators.append(np.linalg.det(system))
        numerators.append(denominators[-1] * np.linalg.solve(system, (G @ H).flatten(order="F")))
    for values, d in ((numerators, degree.numerator), (denominators, degree.denominator)):
        series = np.polynomial.chebyshev.chebfit(points, np.array(values), count - 1)
        sizes = np.abs(series.reshape(count, -1)).max(1)
        assert sizes[d + 1 :].max() < 1e-11 * sizes.max() < 1e-5 * sizes[d]


def random_network(seed: int, depth: int) -> list[Layer]:
    rng = np.random.default_rng(seed)
    sizes = [*rng.integers(1, 40, depth), 1]
    names = list(torchldr.structures())
    layers = []
    for i in range(depth):
        structure = torchldr.get_structure(names[rng.integers(len(names))])
        phi = list(ACTIVATIONS)[rng.integers(len(ACTIVATIONS))] if i + 1 < depth else "identity"
        rank = 1 if structure.ranked else None
        bias = bool(rng.integers(2))
        layers.append(structured_layer(int(sizes[i]), int(sizes[i + 1]), structure, rank, bias=bias, phi=phi))
    if rng.integers(2):
        i = int(rng.integers(depth))
        degree = sylvester_degree(layers[i].out_features, layers[i].in_features)
        layers[i] = replace(layers[i], degree=degree)
    return layers


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), depth=st.integers(1, 6))
def test_the_three_bounds_are_ordered_and_the_first_is_a_root(seed: int, depth: int):
    found = vc_bound(random_network(seed, depth))
    assert found.parameters <= found.bound <= found.closed <= found.theorem
    assert found.bound <= _log2_patterns(found.terms, found.bound)
    assert found.bound + 1 > _log2_patterns(found.terms, found.bound + 1)
    assert 1 <= found.effective_depth <= found.depth == depth


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), depth=st.integers(2, 5))
def test_more_of_anything_never_lowers_the_bound(seed: int, depth: int):
    layers = random_network(seed, depth)
    bound = vc_bound(layers).bound
    first = layers[0]
    for change in (
        {"parameters": first.parameters + 1},
        {"degree": Degree(first.degree.numerator + 3, first.degree.denominator)},
        {"activation": Activation(first.activation.breakpoints + 1, first.activation.degree)},
        {"activation": Activation(first.activation.breakpoints, first.activation.degree + 1)},
    ):
        assert vc_bound([replace(first, **change), *layers[1:]]).bound >= bound


def test_the_formula_by_hand():
    """Two layers of 3 -> 2 -> 1: d = 1, 2; log2 K = 2 + 8 log2(4 e m / 8) + 11 log2(4 e m / 11)."""
    found = vc_bound([structured_layer(3, 2), structured_layer(2, 1, phi="identity")])
    assert (found.degrees, found.parameters, found.units) == ((1, 2), 11, 6)
    by_hand = 2 + 8 * log2(2 * e * 500 * 2 / 8) + 11 * log2(2 * e * 500 * 2 / 11)
    assert found.log2_patterns(500) == pytest.approx(by_hand)
    assert found.log2_patterns(10) == 10
    R = 2 * e * (2 + 2)
    assert found.closed == ceil(2 + 19 * log2(2 * R * log2(R)))


def test_linear_threshold_functions_stay_below():
    """Half-spaces in n dimensions have VC dimension n + 1, which an upper bound cannot undercut."""
    for n in (1, 2, 10, 100):
        assert vc_bound([structured_layer(n, 1, phi="identity")]).bound >= n + 1


@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_counts_known_exactly_stay_below(n: int):
    """Cover's count of half-spaces; and on a line, functions with n units cross zero n - 1 times or more."""
    half_spaces = vc_bound([structured_layer(n, 1, phi="identity")])
    on_a_line = [
        vc_bound([structured_layer(1, n, phi=phi), structured_layer(n, 1, phi="identity")])
        for phi in ("relu", "hardtanh", "square")
    ]
    for samples in (n + 1, 3 * n + 1, 10 * n, 100 * n, 10_000 * n):
        cover = log2(2 * sum(comb(samples - 1, i) for i in range(n + 1)))
        assert cover <= half_spaces.log2_patterns(samples)
        crossings = [n - 1, n - 1, 1 if n == 1 else 2]  # a sum of squares with signs is a parabola
        for bound, most in zip(on_a_line, crossings, strict=True):
            lowest = log2(2 * sum(comb(samples - 1, i) for i in range(most + 1)))
            assert lowest <= bound.log2_patterns(samples)


def test_pooling_adds_its_comparisons():
    layer = convolution_layer(1, 6, 28, 28, 5, pool=2)
    assert (layer.parameters, layer.out_features, layer.features) == (156, 6 * 784, 6 * 196)
    assert layer.polynomials == 6 * 784 + 6 * 6 * 196  # a breakpoint a unit, six pairs a window


def test_layers_of_a_module():
    model = nn.Sequential(
        nn.Flatten(),
        torchldr.StructuredLinear(784, 784, bias=False, structure="ldr_td", rank=2),
        nn.ReLU(),
        nn.Linear(784, 1),
    )
    layers = layers_of(model)
    assert layers == [
        structured_layer(784, 784, "ldr_td", 2, bias=False),
        structured_layer(784, 1, phi="identity"),
    ]
    assert vc_bound(layers).parameters == sum(p.numel() for p in model.parameters())
    with pytest.raises(TypeError, match="no rule for Tanh"):
        layers_of(nn.Sequential(nn.Linear(3, 1), nn.Tanh()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vc_bound([]), "at least one layer"),
        (lambda: vc_bound([structured_layer(3, 2)]), "one unit and the identity"),
        (lambda: vc_bound([structured_layer(3, 2), structured_layer(4, 1, phi="identity")]), "takes 4"),
        (lambda: entry_degree("ldr_td", 4, 4, normalize=True), "normalize=True"),
        (lambda: structured_layer(3, 2, phi="tanh"), "unknown activation 'tanh'"),
        (lambda: Layer(3, 5, 7, pool=2), "must divide"),
        (lambda: Layer(0, 5, 7), "in_features must be"),
        (lambda: pac_sample_size(3, epsilon=1.5), "epsilon must lie"),
        (lambda: pac_sample_size(0), "at least 1"),
        (lambda: rows(["lstm"]), "model must be one of"),
    ],
)
def test_errors_say_what_is_wrong(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


@settings(max_examples=60, deadline=None)
@given(
    d=st.integers(1, 10**7),
    epsilon=st.sampled_from([0.5, 0.1, 0.01]),
    delta=st.sampled_from([0.5, 0.05, 1e-6]),
)
def test_the_sample_size_is_the_smallest(d: int, epsilon: float, delta: float):
    def realisable(m: int) -> float:
        return 1 + d * log2(2 * e * m / d) - epsilon * m / 2

    def agnostic(m: int) -> float:
        return 2 + d * log2(2 * e * m / d) - epsilon**2 * m / 32 / log(2)

    m = pac_sample_size(d, epsilon, delta)
    assert realisable(m) <= log2(delta)
    assert m >= 8 / epsilon
    assert m == ceil(8 / epsilon) or realisable(m - 1) > log2(delta)
    # The closed form of Blumer, Ehrenfeucht, Haussler and Warmuth, 1989, from the same inequality.
    assert m <= max(4 / epsilon * log2(2 / delta), 8 * d / epsilon * log2(13 / epsilon)) + 1
    m = pac_sample_size(d, epsilon, delta, agnostic=True)
    assert agnostic(m) <= log2(delta) < agnostic(m - 1)


def test_sample_sizes_may_be_larger_than_any_list():
    m = pac_sample_size(1000, 1e-10, agnostic=True)
    assert m > 2**63
    assert m == pytest.approx(32e20 * log(2) * (1000 * log2(2 * e * m / 1000) + 2 - log2(0.05)))


def test_the_papers_parameter_counts_and_the_theorems_claim():
    """Counts of its tables, and what the theorem is for: far smaller bounds for structured networks."""
    found = {(r["model"], r["hidden"], r["structure"], r["rank"]): r for r in rows()}
    for key, count in {
        ("shl", 784, "dense", None): 622_506,
        ("shl", 784, "ldr_td", 1): 14_122,
        ("shl", 784, "ldr_sd", 1): 10_986,
        ("shl", 784, "ldr_sd", 16): 34_506,
        ("shl", 1024, "toeplitz_like", 4): 18_442,
        ("shl", 1024, "circulant", None): 11_274,
        ("cnn", 784, "ldr_sd", 1): 11_770,
        ("cnn", 784, "ldr_sd", 16): 35_290,
    }.items():
        assert found[key]["paper_parameters"] == count
    assert all(row["of_dense"] < 0.1 for row in found.values() if row["structure"] != "dense")
    for network in NETWORKS:
        generic = found[network.model, network.hidden, GENERIC, 1]
        krylov = found[network.model, network.hidden, "ldr_td", 1]
        assert krylov["vc_bound"] < generic["vc_bound"] < 2 * krylov["vc_bound"]
    assert vc_bound(network_layers(NETWORKS[0], GENERIC, 1)).rational


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as exit:
        cli.main(["theory", "--model", "shl", "--epsilon", "0.2", "--json"])
    captured = json.loads(capsys.readouterr().out)
    assert exit.value.code == 0
    assert captured["rows"] == rows(["shl"], 0.2)
    with pytest.raises(SystemExit) as exit:
        cli.main(["theory", "--model", "shl"])
    out = capsys.readouterr().out
    assert exit.value.code == 0
    assert "622,506" in out
    assert "cnn" not in out
    for wrong in (["--model", "lstm"], ["--epsilon", "2"]):
        with pytest.raises(SystemExit) as exit:
            cli.main(["theory", *wrong])
        assert exit.value.code == 2
