"""The compiled stencil: Krylov columns of a ring operator and their adjoint, on a CPU.

Numba compiles the loops of `kernels.cpu.stencil` (see `compiled`). Where they cannot be used, or a tensor is
not in CPU memory, `serves` says no and the plain form of `tridiagonal` is taken.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..kernels.cpu.compiled import Loops, numbers, wide
from .reference import krylov_of_ring_reference


def is_plain(t: Tensor) -> bool:
    """Whether a tensor is its memory: those of vmap and other transformations have none, duals a tangent."""
    if type(t).__torch_dispatch__ is not Tensor.__torch_dispatch__:  # a class that multiplies in its own way
        return False
    try:
        t.data_ptr()
    except RuntimeError:
        return False
    return forward_ad._current_level < 0 or forward_ad.unpack_dual(t).tangent is None


# Rows are this much longer than they seem: of length 4096 all of them would share a few sets of the cache.
_STAGGER = 112


def _staggered(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(*shape[:-1], shape[-1] + _STAGGER)[..., : shape[-1]]


class Stencil:
    """A ring operator made ready for compiled loops, with room for `width` Krylov columns of r vectors.

    Attributes:
        gradients: of lower, diagonal and upper (m,) and of the state before the columns (r, m), as far as
            `adjoint` has come.
    """

    def __init__(self, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, width: int) -> None:
        r, m = V.shape
        self._scratch = _staggered(V, r, width + 1, m)
        self._gradient: Tensor | None = None
        block = _staggered(V, 6 + r, m).zero_()
        torch.stack((lower, diagonal, upper), out=block[:3])
        self._ring, self._collected = block[:3].numpy(), block[3:].numpy()
        self.gradients = block[3], block[4], block[5], block[6:]

    def run(self, state: Tensor, width: int) -> None:
        """Make `columns` state, A state, .. of every Krylov matrix."""
        from ..kernels.cpu.stencil import columns  # imports numba

        array = self._scratch.numpy()[:, : width + 1]
        array[:, 0] = state.detach().numpy()  # not by torch: other threads do not know of no_grad
        columns(self._ring, array)

    def columns(self, width: int) -> Tensor:
        """The columns of the last run, (r, width, m)."""
        return self._scratch[:, :width]

    def following(self, width: int) -> Tensor:
        """The state after `width` columns of the last run, (r, m), a copy."""
        return self._scratch[:, width].clone()

    def gradient(self, width: int) -> Tensor:
        """Room for the gradient of the columns, (r, width, m)."""
        if self._gradient is None:
            self._gradient = _staggered(self._scratch, *self._scratch.shape)
        return self._gradient[:, :width]

    def adjoint(self, width: int) -> None:
        """Take the gradient of the columns, and that of the state that follows, back to the state before."""
        from ..kernels.cpu.stencil import adjoint

        columns, gradient = self._scratch.numpy()[:, :width], self.gradient(width).numpy()
        adjoint(self._ring, columns, gradient, self._collected)


_WIDTH = 5


def _tiny(dtype: torch.dtype) -> tuple[Stencil, list[Tensor], Tensor]:
    """A stencil whose columns were run, copies of its tensors, and the columns by the definition."""
    (lower, diagonal, upper), V = numbers(3, 11, dtype=dtype), numbers(2, 11, dtype=dtype)
    stencil = Stencil(lower, diagonal, upper, V, _WIDTH)
    stencil.run(V, _WIDTH)
    a, b, c, starts = copies = [wide(t).requires_grad_() for t in (lower, diagonal, upper, V)]
    return stencil, copies, krylov_of_ring_reference(a, b, c, starts, _WIDTH).mT


def _check_columns(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    stencil, _, right = _tiny(dtype)
    yield stencil.columns(_WIDTH), right


def _check_adjoint(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    stencil, tensors, columns = _tiny(dtype)
    gradient = stencil.gradient(_WIDTH).copy_(numbers(*columns.shape, dtype=dtype))
    right = torch.autograd.grad((columns * wide(gradient)).sum(), tensors)
    stencil.adjoint(_WIDTH)
    yield from zip(stencil.gradients, right, strict=True)


COLUMNS = Loops("the stencil", _check_columns)
ADJOINT = Loops("the stencil's gradients", _check_adjoint)
serves = COLUMNS.serves
