"""The gate to compiled loops: they are used only where they compile and a tiny product comes out right."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torchldr.core.routes import Call

import torchldr
from torchldr import testing
from torchldr.functional import stencil, toeplitz_residuals, triangular
from torchldr.functional.gko import elimination as gko
from torchldr.functional.reference import krylov_reference, shift_reference
from torchldr.info import info
from torchldr.kernels.cpu import compiled
from torchldr.matrices.vandermonde_like import project as vandermonde

needs_numba = pytest.mark.skipif(bool(compiled.why_not()), reason=str(compiled.why_not()))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has checked nothing yet."""
    for loops in compiled._families:
        monkeypatch.setattr(loops, "_found", {})


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Callable[[compiled.Check], compiled.Loops]:
    """Makes loops that are forgotten after the test."""
    monkeypatch.setattr(compiled, "_families", [])
    monkeypatch.setattr(compiled, "why_not", lambda: None)
    return partial(compiled.Loops, "these")


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def close(got: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(got, right, rtol=1e-8, atol=1e-8)


# Products and their gradients against definitions, each by some of the loops.


def ldr_td() -> torchldr.StructuredMatrix:
    return torchldr.LDRTridiagonal.random(20, 20, rank=2, dtype=torch.float64)


def ldr_sd(n: int) -> torchldr.StructuredMatrix:
    return torchldr.LDRSubdiagonal.random(n, n, rank=2, dtype=torch.float64)


def wide_range() -> torchldr.StructuredMatrix:
    """For the split product: convolutions would lose all digits."""
    M = ldr_sd(64)
    M.subdiagonal_A[::3] = 1e-9
    return M


def multiplies(M: torchldr.StructuredMatrix) -> None:
    """By every route that serves, applied and prepared."""
    x = normal(3, M.in_features)
    close(M.matmul(x), x @ M.to_dense().mT)
    for route in testing.forced(M, Call(3, dtype=M.dtype)):
        close(M.matmul(x, route=route.name), x @ M.to_dense().mT)
    for route in testing.forced(M, Call(3, dtype=M.dtype, kept=True)):
        assert route.prepare is not None
        close(route.prepare(M.promoted())(x), x @ M.to_dense().mT)


def has_gradients(M: torchldr.StructuredMatrix) -> None:
    tensors = [t.requires_grad_() for t in M.tensors.values()]
    x = normal(3, M.in_features)
    for route in testing.forced(M, Call(3, dtype=M.dtype, needs_grad=True)):
        losses = M.matmul(x, route=route.name).square().sum(), (x @ M.to_dense().mT).square().sum()
        for got, right in zip(*(torch.autograd.grad(loss, tensors) for loss in losses), strict=True):
            close(got, right)


def eliminates() -> None:
    s, t = torch.arange(9, dtype=torch.float64), torch.arange(9, dtype=torch.float64) + 0.5
    G, H, b = normal(2, 9), normal(2, 9), normal(2, 9)
    C = gko.cauchy_like_reference(s, t, G, H)
    found = gko.factor(s, t, G, H, b)
    assert found is not None
    for x in (found[1], found[0].solve(b)):
        assert (x @ C.mT - b).norm() <= 1e-8 * C.norm() * x.norm()


def substitutes() -> None:
    w, b = torch.cat((torch.full((1,), 4.0, dtype=torch.float64), normal(8) / 4)), normal(2, 9)
    T = krylov_reference(shift_reference(9, 0.0), w, 9)
    close(triangular.lower_toeplitz_solve(w, b) @ T.mT, b)


def iterates() -> None:
    column, row, b = 40.0 * (torch.arange(20) == 0) + normal(20), normal(20), normal(2, 20)
    T = torchldr.Toeplitz(column, row)
    target = torch.full((2,), 1e-12, dtype=torch.float64)
    x = toeplitz_residuals.form(column, T.row).solve(b, target, 40, transposed=False)
    assert x is not None
    close(T.matmul(x), b)


# Every loop that Python calls, or one of several that are called together: the module, the name, which
# argument it writes to, and who needs it.
CALLED = [
    ("stencil", "columns", 1, lambda: multiplies(ldr_td())),
    ("stencil", "adjoint", 3, lambda: has_gradients(ldr_td())),
    ("convolution", "circulant_pair", 1, lambda: multiplies(ldr_sd(64))),
    ("convolution", "layer_forward", 1, lambda: multiplies(ldr_sd(20))),
    ("convolution", "layer_backward", 3, lambda: has_gradients(ldr_sd(20))),
    ("convolution", "side_gradients", 4, lambda: has_gradients(ldr_sd(20))),
    ("scan", "fill", 5, lambda: multiplies(ldr_sd(20))),
    ("scan", "gradients", 7, lambda: has_gradients(ldr_sd(20))),
    ("gko", "eliminate", 6, eliminates),
    ("gko", "forward", 5, eliminates),
    ("gko", "backward", 6, eliminates),
    ("gko", "substitute", 1, substitutes),
    ("residuals", "conjugate_residuals", 2, iterates),
]
every_loop = pytest.mark.parametrize(
    ("module", "name", "place", "use"), CALLED, ids=[f"{module}.{name}" for module, name, *_ in CALLED]
)


def why_not() -> str:
    """What `torchldr info` says."""
    (reason,) = (path["why_not"] for path in info()["fast_paths"] if path["name"] == "compiled loops")
    return str(reason)


@needs_numba
@every_loop
@pytest.mark.parametrize("fault", ["wrong numbers", "not a number", "an error"])
def test_faulty_loops_are_not_used(fresh, monkeypatch, module, name, place, use, fault):
    home = import_module(f"torchldr.kernels.cpu.{module}")
    loop, calls = getattr(home, name), []

    def faulty(*arguments: Any) -> Any:
        calls.append(name)
        if fault == "an error":
            raise SystemError("LLVM ERROR: cannot select\nmany lines more")
        result = loop(*arguments)
        written = arguments[place] if isinstance(arguments[place], tuple) else (arguments[place],)
        for array in written:
            array[...] += 1 if fault == "wrong numbers" else float("nan")
        return result

    monkeypatch.setattr(home, name, faulty)
    use()
    assert calls  # in the check
    checked = len(calls)
    use()
    assert len(calls) == checked
    reason = "SystemError: LLVM ERROR: cannot select; " if fault == "an error" else "wrong numbers, off by "
    assert f": {reason}" in why_not()


@needs_numba
def test_sound_loops_are_used(fresh, monkeypatch):
    used = []

    def watched(name: str, loop: Any, *arguments: Any) -> Any:
        if not getattr(compiled._here, "checking", False):
            used.append(name)
        return loop(*arguments)

    for module, name, *_ in CALLED:
        home = import_module(f"torchldr.kernels.cpu.{module}")
        monkeypatch.setattr(home, name, partial(watched, name, getattr(home, name)))
    for *_, use in CALLED:
        use()
    assert set(used) == {name for _, name, *_ in CALLED}
    assert why_not() == "None"


@needs_numba
def test_all_loops_serve_here():
    names = [family.name for family in compiled._families]
    assert len(set(names)) == len(names)
    for family in compiled._families:
        solves = family in (*gko.LOOPS.values(), triangular.SUBSTITUTION, toeplitz_residuals.LOOPS)
        dtypes = (torch.float64,) if solves or family.name.startswith("projection") else compiled._DTYPES
        for dtype in (*dtypes, torch.complex128) if family in gko.LOOPS.values() else dtypes:
            assert family.why_not(dtype) is None, family.name


@needs_numba
def test_a_faulty_loop_of_the_projection_is_not_used(fresh, monkeypatch):
    loop = vandermonde._FORWARD
    monkeypatch.setattr(loop, "_compiled", lambda *arrays: None)  # changes nothing
    given = [normal(*shape) for shape in loop._shapes]
    right = [t.clone() for t in given]
    loop(*given)
    loop._plain(*right)
    for t, s in zip(given, right, strict=True):
        close(t, s)
    assert loop._loops.name in compiled.found()


@needs_numba
def test_only_what_is_used_is_compiled(fresh):
    multiplies(ldr_td())
    checked = {family.name: set(family._found) for family in compiled._families if family._found}
    assert checked == {"the stencil": {torch.float64}}


# Checks are made once, whoever asks, and in nobody's way.


def test_threads_that_ask_at_once_wait_for_one_check(loops):
    begun, go_on, checks, found = threading.Event(), threading.Event(), [], []

    def check(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        checks.append(dtype)
        begun.set()
        go_on.wait()
        yield torch.ones(1), torch.ones(1)

    tested = loops(check)
    threads = [threading.Thread(target=lambda: found.append(tested.serves(torch.ones(1)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    begun.wait()
    assert found == []
    go_on.set()
    for thread in threads:
        thread.join()
    assert found == [True] * 8
    assert checks == [torch.float32]


def test_each_dtype_is_checked_for_itself(loops):
    tested = loops(lambda dtype: [(torch.ones(1), torch.ones(1) + (dtype == torch.float64))])
    assert tested.serves(torch.ones(2))
    assert not tested.serves(torch.ones(2).double())
    assert not tested.serves(torch.ones(2), dtype=torch.float64)
    assert compiled.found() == {"these": "wrong numbers, off by 5.0e-01"}


def test_a_check_takes_no_loops_that_were_not_checked(loops):
    others = loops(lambda dtype: [(torch.ones(1), torch.ones(1))])
    said = []

    def check(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        said.append((others.why_not(dtype), tested.why_not(dtype)))
        return [(torch.ones(1), torch.ones(1))]

    tested = loops(check)
    assert tested.why_not(torch.float32) is None
    assert said == [("not checked yet", "not checked yet")]
    assert others.why_not(torch.float32) is None


def test_other_tensors_are_not_taken(loops):
    tested = loops(lambda dtype: pytest.fail("needs no check"))
    assert not tested.serves(torch.ones(2, device="meta"))
    assert not tested.serves(torch.ones(2), torch.ones(2, dtype=torch.bfloat16))


@needs_numba
@pytest.mark.parametrize(
    "mode",
    [
        torch.inference_mode,
        torch.no_grad,
        lambda: torch.device("meta"),
        FakeTensorMode,
        lambda: torch.autocast("cpu"),
    ],
)
def test_modes_of_torch_do_not_reach_a_check(fresh, mode):
    with mode():
        assert stencil.COLUMNS.why_not(torch.float32) is None
        assert stencil.ADJOINT.why_not(torch.float32) is None


@needs_numba
def test_transformations_do_not_reach_a_check(fresh):
    M, x = ldr_td(), normal(2, 3, 20)
    close(torch.vmap(M.matmul)(x), x @ M.to_dense().mT)
    assert stencil.COLUMNS._found == {torch.float64: None}


@needs_numba
def test_a_check_draws_no_random_numbers(fresh):
    state = torch.get_rng_state()
    for family in compiled._families:
        family.why_not(torch.float64)
    assert torch.equal(state, torch.get_rng_state())


# Numba itself.


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "numba is not installed"),
        (
            "import a_module_that_is_missing",
            "numba cannot be imported: ModuleNotFoundError: No module named 'a_module_that_is_missing'",
        ),
        (
            "raise ImportError('Numba needs NumPy 2.0 or less')",
            "numba cannot be imported: ImportError: Numba needs NumPy 2.0 or less",
        ),
        ("raise AttributeError('x')", "numba cannot be imported: AttributeError: x"),
    ],
)
def test_why_numba_cannot_be_imported(monkeypatch, tmp_path: Path, source, reason):
    if source is None:
        monkeypatch.setitem(sys.modules, "numba", None)
    else:
        (tmp_path / "numba.py").write_text(source)
        monkeypatch.delitem(sys.modules, "numba", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
    assert compiled.why_not.__wrapped__() == reason


def test_numba_is_imported_behind_the_gate_alone():
    """By modules that are imported once their loops serve, or while they are checked."""
    root = Path(torchldr.__file__).parent
    importing = re.compile(r"^\s*(?:import|from) (?:numba|llvmlite)\b", re.MULTILINE)
    found = {file for file in root.rglob("*.py") if importing.search(file.read_text())}
    assert found
    assert {file.relative_to(root).parts[:2] for file in found} == {("kernels", "cpu")}
