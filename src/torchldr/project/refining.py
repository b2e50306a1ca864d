"""Descent on the residual itself: L-BFGS over any of the parameters, as one flat vector.

Small problems spend their time between evaluations, so the directions come from the compact form of the
inverse Hessian: with the last steps S and gradient differences Y as rows, two products with each of them
and two triangular solves of their size, instead of a loop over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from .climbing import State
from .problem import Problem, Tensors

Evaluate = Callable[[Tensors], Tensor]
HISTORY = 20
_DECREASE, _CURVATURE = 1e-4, 0.9
_TRIALS = 12


def refine(
    problem: Problem,
    tensors: Tensors,
    steps: int,
    *,
    evaluate: Evaluate | None = None,
    frozen: Collection[str] = (),
    stage: str = "refine",
) -> State:
    """Lower the loss from these parameters by L-BFGS and return the best ones seen.

    A step takes about 1.1 evaluations with gradient. `evaluate` computes the dense matrix from parameters, by
    default with the class's own product; `frozen` parameters do not change.
    """
    evaluate = evaluate or problem.dense
    moving = [name for name in tensors if name not in frozen and tensors[name].numel()]
    sizes = [tensors[name].numel() for name in moving]
    flat = torch.cat([torch.zeros(0, dtype=torch.float64)] + [tensors[name].flatten() for name in moving])

    def unflatten(vector: Tensor) -> Tensors:
        parts = zip(moving, vector.split(sizes), strict=True)
        return {**tensors, **{name: part.view(tensors[name].shape) for name, part in parts}}

    evaluations = 0

    def function(vector: Tensor) -> tuple[float, Tensor]:
        nonlocal evaluations
        leaf = vector.detach().requires_grad_()
        with torch.enable_grad():
            loss = problem.loss(evaluate(unflatten(leaf)))
            (gradient,) = torch.autograd.grad(loss, leaf)
        evaluations += 1
        problem.report(f"{problem.cls.name}: {stage}", min(evaluations, steps), steps)
        return loss.item(), gradient

    if steps < 1 or not moving:
        return State(tensors, _comparable(problem.loss(evaluate(tensors)).item()))
    best, loss = lbfgs(function, flat, steps)
    return State({name: t.clone() for name, t in unflatten(best).items()}, _comparable(loss))


def _comparable(loss: float) -> float:
    """The loss, inf instead of nan: a start whose powers overflow must compare as the worst."""
    return loss if math.isfinite(loss) else math.inf


class _History:
    """The last steps and gradient differences, and their inverse Hessian."""

    def __init__(self) -> None:
        self.S: list[Tensor] = []
        self.Y: list[Tensor] = []

    def add(self, s: Tensor, y: Tensor) -> None:
        if (s @ y).item() <= 1e-14 * s.norm().item() * y.norm().item():
            return  # no curvature to learn from
        self.S, self.Y = [*self.S, s][-HISTORY:], [*self.Y, y][-HISTORY:]

    def direction(self, g: Tensor) -> Tensor:
        """-H g with H = gamma I + Z^T [[R^-T (D + gamma Y Y^T) R^-1, -R^-T], [-R^-1, 0]] Z.

        Z has the rows S and gamma Y, R is the upper triangle of S Y^T and D its diagonal.
        """
        if not self.S:
            return -g
        S, Y = torch.stack(self.S), torch.stack(self.Y)
        SY, YY = S @ Y.mT, Y @ Y.mT
        R, D = SY.triu(), SY.diagonal()
        gamma = D[-1] / YY[-1, -1]
        p = torch.linalg.solve_triangular(R, (S @ g).unsqueeze(1), upper=True)
        middle = D.unsqueeze(1) * p + gamma * (YY @ p) - gamma * (Y @ g).unsqueeze(1)
        q = torch.linalg.solve_triangular(R.mT, middle, upper=False)
        return -(gamma * g + q.squeeze(1) @ S - gamma * (p.squeeze(1) @ Y))


def lbfgs(function: Callable[[Tensor], tuple[float, Tensor]], x: Tensor, steps: int) -> tuple[Tensor, float]:
    """Minimise a function that returns its value and gradient, from x, in at most `steps` steps.

    Bisection looks for a step that meets the weak Wolfe conditions; failing that, the lowest point counts. A
    step to values that are not finite is too long.

    Returns:
        The lowest point seen and its value, never higher than that of x.
    """
    value, g = function(x)
    history = _History()
    for step in range(steps):
        d = history.direction(g)
        slope = (d @ g).item()
        if not slope < 0:
            history, d = _History(), -g
            slope = (d @ g).item()
        if not math.isfinite(slope) or slope == 0 or value == 0:
            break
        first = 1.0 if history.S else min(1.0, 0.1 / d.abs().max().item())
        found = _search(function, x, d, value, slope, first)
        if found is None:
            if step == 0 or not history.S:
                break
            history = _History()  # once more along the gradient
            continue
        x_new, value_new, g_new = found
        history.add(x_new - x, g_new - g)
        gain, x, value, g = value - value_new, x_new, value_new, g_new
        if gain <= 1e-15 * abs(value):
            break
    return x, value


def _search(
    function: Callable[[Tensor], tuple[float, Tensor]],
    x: Tensor,
    d: Tensor,
    value: float,
    slope: float,
    t: float,
) -> tuple[Tensor, float, Tensor] | None:
    """A lower point along d, by bisection between too short and too long steps; None if there is none."""
    low, high = 0.0, math.inf
    best: tuple[Tensor, float, Tensor] | None = None
    for _ in range(_TRIALS):
        trial = x + t * d
        there, g = function(trial)
        if math.isfinite(there) and there < (value if best is None else best[1]):
            best = trial, there, g
        if not there <= value + _DECREASE * t * slope:
            high = t
        elif (g @ d).item() < _CURVATURE * slope:
            low = t
        else:
            return trial, there, g
        t = (low + high) / 2 if high < math.inf else 2 * t
    return best
