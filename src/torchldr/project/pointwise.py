"""Entrywise products of a fixed matrix and a low-rank one, M = c o (g^T h).

Cauchy-like matrices have this form with c = 1 / (s_i - t_j). Toeplitz-like ones have it in the basis of their
operators: with the roots lambda_i^m = a and mu_j^n = -a and the unitary matrices
U[i, p] = lambda_i^p / sqrt(m), V[j, q] = mu_j^q / sqrt(n),

    (U M V^T)[i, j] = c_ij sum_r g_r(lambda_i) h_r(mu_j),   c_ij = sum_{l < k} (lambda_i mu_j)^l / sqrt(m n).

So the best g for a given h is a small least-squares problem for each row, and the best h for a given g is one
for each column, or with activations one for all columns together. The algorithm alternates between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .solving import balanced, conjugate_gradients, ridged

_CG_STEPS = 20
_EXACT = 1e-26  # of the loss


@dataclass
class Pointwise:
    """Minimise |(W - c o (g^T h)) B|_F over g (r, m) and h (r, n), real or complex; B None for identity."""

    W: Tensor  # (m, n)
    c: Tensor  # (m, n)
    B: Tensor | None = None  # (n, q)

    def __post_init__(self) -> None:
        self.c_squared = self.c.abs().square()
        self.Wc = self.W * self.c.conj()
        self.WB = self.W if self.B is None else self.W @ self.B
        self.moments = None if self.B is None else self.B @ self.B.mH
        self.norm_squared = self.WB.abs().square().sum().item()

    def loss(self, g: Tensor, h: Tensor) -> float:
        """The relative squared residual."""
        rest = self.W - self.c * (g.mT @ h)
        rest = rest if self.B is None else rest @ self.B
        return rest.abs().square().sum().item() / max(self.norm_squared, 1e-300)

    def best_rows(self, h: Tensor) -> Tensor:
        """The best g for this h: r unknowns for each row."""
        if self.B is None:
            return _small_solves(self.c_squared, self.Wc, h)
        Phi = torch.stack([(self.c * x) @ self.B for x in h])  # (r, m, q)
        normal = torch.einsum("rmq,smq->mrs", Phi.conj(), Phi)
        right = torch.einsum("rmq,mq->mr", Phi.conj(), self.WB)
        return torch.linalg.solve(ridged(normal), right).mT

    def best_columns(self, g: Tensor, h: Tensor) -> Tensor:
        """The best h for this g; with activations an improved h, by conjugate gradients."""
        if self.moments is None:
            return _small_solves(self.c_squared.mT, self.Wc.mT, g)
        moments = self.moments

        def adjoint(X: Tensor) -> Tensor:
            return g.conj() @ (self.c.conj() * (X @ moments))

        blocks = (self.c_squared.mT.to(g.dtype) @ _pairs(g)).unflatten(1, (len(g), -1))
        blocks = ridged(blocks * moments.diagonal()[:, None, None])
        return conjugate_gradients(
            lambda x: adjoint(self.c * (g.mT @ x)),
            adjoint(self.W),
            h,
            lambda y: torch.linalg.solve(blocks, y.mT).mT,
            _CG_STEPS,
        )

    def alternate(self, g: Tensor, h: Tensor, sweeps: int, tolerance: float) -> tuple[Tensor, Tensor, float]:
        """Alternate exact solves until a sweep lowers the loss by less than the fraction `tolerance`."""
        loss = self.loss(g, h)
        for _ in range(sweeps):
            if loss <= _EXACT:
                break
            g_new = self.best_rows(h)
            h_new = self.best_columns(g_new, h)
            g_new, h_new = balanced(g_new, h_new)
            new = self.loss(g_new, h_new)
            if not new < loss:
                break
            gain = (loss - new) / loss
            g, h, loss = g_new, h_new, new
            if gain < tolerance:
                break
        return g, h, loss


def _pairs(h: Tensor) -> Tensor:
    """conj(h_r) h_s for all r and s: (n, r r)."""
    return (h.conj().unsqueeze(1) * h).flatten(0, 1).mT


def _small_solves(weights: Tensor, Wc: Tensor, h: Tensor) -> Tensor:
    """Rows of min |W - c o (g^T h)|: normal matrices sum_j |c_ij|^2 conj(h_rj) h_sj."""
    r, pairs = h.shape[0], _pairs(h)
    if pairs.is_complex():  # the weights are real: half the work in real products
        flat = torch.view_as_real(pairs).flatten(1)
        normal = torch.view_as_complex((weights @ flat).unflatten(1, (-1, 2)))
    else:
        normal = weights @ pairs
    return torch.linalg.solve(ridged(normal.unflatten(1, (r, r))), Wc @ h.mH).mT


def with_one_more(G: Tensor, H: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """The same matrix with one more rank: a new direction in H and zeros in G."""
    return torch.cat((G, torch.zeros_like(G[:1]))), torch.cat((H, more))
