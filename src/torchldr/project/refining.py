"""Descent on the residual itself: L-BFGS over any of the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from .climbing import State
from .descent import lbfgs
from .problem import Problem, Tensors

Evaluate = Callable[[Tensors], Tensor]


def refine(
    problem: Problem,
    tensors: Tensors,
    steps: int,
    *,
    evaluate: Evaluate | None = None,
    frozen: Collection[str] = (),
    stage: str = "refine",
) -> State:
    """Lower the loss from these parameters; the best ever seen are returned, never worse ones.

    Args:
        problem: gives the loss.
        tensors: where to start.
        steps: of L-BFGS, each about 1.1 evaluations with gradient.
        evaluate: parameters to the dense matrix; by default the class's own product.
        frozen: names of parameters to leave as they are.
        stage: what is reported.
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
    """Powers of an operator may overflow: such a start is the worst, where nan would compare as nothing."""
    return loss if math.isfinite(loss) else math.inf
