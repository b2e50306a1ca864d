"""Where fine-tuning starts: quick projections of all weights of a shape together.

`torchldr.from_dense` goes through all ranks up to the one asked for, which at the ranks of these budgets
(tens to hundreds) takes hours. Here each class starts from a member that is known in closed form:

    low_rank                          the truncated SVD, which is the best
    block_circulant, circulant        averages, which are the best
    pruned                            the largest entries, which is the best
    toeplitz_like, hankel_like,       the truncated SVD of half the rank: a matrix of rank q is a member of
      cauchy_like, vandermonde_like     these classes with 2q generators
    ldr_sd, ldr_td                    the truncated SVD of the same rank: with small operators a member is
                                        nearly G^T H
    fastfood, acdc                    a random member

and those that have no best projection in closed form then take the same number of steps of descent on
|W - M|^2. A start that descent has made worse is taken as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchldr import from_dense
from torchldr.algebra import convert
from torchldr.matrices import LowRank, StructuredMatrix, get_structure

from ..models.images import magnitude_mask
from ..trainer.batches import generator
from .methods import PRUNED, Method, kept, structure_for
from .training import Adam, Trainer

CLOSED = ("dense", "low_rank", "block_circulant", "circulant", PRUNED)
STEPS, RATE, OPERATOR_RATE = 100, 0.03, 0.002
CONTRACTED = 0.1  # where operators start


@dataclass
class Stack:
    """Matrices of one class and shape: learned tensors with an axis in front, and constants.

    Computed constants are shared and have no such axis.
    """

    name: str
    shape: tuple[int, int]
    learned: dict[str, Tensor]
    constants: dict[str, Tensor] = field(default_factory=dict)

    def dense(self, learned: Mapping[str, Tensor] | None = None) -> Tensor:
        return self.matrix(learned or self.learned).materialize()

    def matrix(self, learned: Mapping[str, Tensor]) -> StructuredMatrix:
        """The matrices with these parameters."""
        tensors = {**learned, **self.constants}
        if self.name == PRUNED:
            tensors = {"weight": tensors["weight"] * tensors["mask"]}
        cls = get_structure("dense" if self.name == PRUNED else self.name)
        return cls.unchecked(*self.shape, tensors, cls.default_options())

    def to(self, device: torch.device) -> Stack:
        learned = {k: t.to(device) for k, t in self.learned.items()}
        return Stack(self.name, self.shape, learned, {k: t.to(device) for k, t in self.constants.items()})

    @property
    def operators(self) -> frozenset[str]:
        """Learned tensors that the matrices are not linear in: their entries enter long products."""
        cls = None if self.name == PRUNED else get_structure(self.name)
        return frozenset(self.learned).difference(cls.scaled) if cls and cls.ranked else frozenset()


def fresh_start(method: Method, W: Tensor, seed: int, device: torch.device | None = None) -> Stack:
    """The class as it starts by itself, drawn anew; pruning keeps its mask and draws the weights.

    For the dense weights W (S, m, n), on the CPU; the start is made there and goes to the device.
    """
    stack = _drawn(method, W, generator(seed, "start", method.key)).to(device or W.device)
    if method.name not in (PRUNED, "dense"):
        # |M|_F as nn.Linear's, which `init_` gives in expectation, made exact.
        scaled = get_structure(method.name).scaled
        with torch.no_grad():
            ratio = (stack.shape[0] / 3) ** 0.5 / stack.dense().norm(dim=(1, 2))
        for name in scaled:
            _multiply(stack, name, ratio ** (1 / len(scaled)))
    return stack


def _multiply(stack: Stack, name: str, ratio: Tensor) -> None:
    t = stack.learned[name]
    stack.learned[name] = t * ratio.view(-1, *[1] * (t.ndim - 1))


def _plain(method: Method, W: Tensor, weight: Tensor) -> Stack:
    """These weights, or what pruning of W leaves of them."""
    shape = (W.shape[1], W.shape[2])
    if method.name == "dense":
        return Stack("dense", shape, {"weight": weight})
    mask = magnitude_mask(W, kept(method, *shape))
    return Stack(PRUNED, shape, {"weight": weight * mask}, {"mask": mask})


def _drawn(method: Method, W: Tensor, source: torch.Generator) -> Stack:
    """Parameters as `init_` of the class draws them, and its constants."""
    shape = (W.shape[1], W.shape[2])
    if method.name in (PRUNED, "dense"):
        bound = shape[1] ** -0.5
        return _plain(method, W, torch.empty_like(W).uniform_(-bound, bound, generator=source))
    structure = structure_for(method, *shape)
    assert structure is not None
    cls, rank = get_structure(structure.name), structure.rank or 1
    options = cls.check_options(structure.options)
    shapes = cls.parameter_shapes(*shape, rank, **options)
    parts: list[dict[str, Tensor]] = []
    for _ in range(len(W)):
        constants = cls.constants(*shape, rank, dtype=W.dtype, generator=source, **options)
        tensors = dict(constants)
        tensors |= {name: torch.empty(size, dtype=W.dtype) for name, size in shapes.items()}
        cls.init_(tensors, *shape, source, **options)
        parts.append(tensors)
    learned = {name: torch.stack([part[name] for part in parts]) for name in shapes}
    fixed = {
        name: torch.stack([part[name] for part in parts]) if name in cls.drawn else parts[0][name]
        for name in constants
    }
    return Stack(cls.name, shape, learned, fixed)


def projected_start(method: Method, W: Tensor, seed: int = 0) -> Stack:
    """The start in closed form of a class: its best projection, or one to descend from. On the CPU."""
    name, shape = method.name, (W.shape[1], W.shape[2])
    if name in (PRUNED, "dense"):
        return _plain(method, W, W.clone())
    stack = _drawn(method, W, generator(seed, "start", method.key))
    if name in ("circulant", "block_circulant"):
        structure = structure_for(method, *shape)
        assert structure is not None
        found = [from_dense(w, name, **structure.options).matrix.tensors["column"] for w in W]
        stack.learned["column"] = torch.stack(found)
    elif name in ("fastfood", "acdc"):
        ratio = W.norm(dim=(1, 2)) / stack.dense().norm(dim=(1, 2))
        _multiply(stack, get_structure(name).scaled[0], ratio)
    else:
        _start_from_svd(stack, W)
    return stack


def _start_from_svd(stack: Stack, W: Tensor) -> None:
    """Set the generators, and the operators where they are learned, from the leading singular vectors."""
    name, rank = stack.name, stack.learned["G"].shape[1]
    same = name in ("low_rank", "ldr_sd", "ldr_td") or rank == 1
    g, h = leading_factors(W, rank if same else rank // 2)
    g = g.flip(-1) if name == "hankel_like" else g  # its rows are those of a Toeplitz-like one, reversed
    if name in ("ldr_sd", "ldr_td"):
        for side in "AC":
            stack.learned[f"subdiagonal_{side}"].fill_(CONTRACTED)
    elif name != "low_rank":
        G, H = _in_class(stack, g, h)
        spare = rank - G.shape[1]  # of an odd rank: it starts without effect
        g, h = (torch.nn.functional.pad(V[:, :rank], (0, 0, 0, spare)) for V in (G, H))
        h[:, rank - spare :] = 1e-3 * h[:, :1]
    stack.learned["G"], stack.learned["H"] = g.to(W.dtype).contiguous(), h.to(W.dtype).contiguous()


def leading_factors(W: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """g (S, r, m) and h (S, r, n) with g^T h the truncated SVD of each W, float64."""
    found = next((found for known, found in _known if torch.equal(known, W)), None)
    if found is None:
        found = torch.linalg.svd(W.double(), full_matrices=False)
        _known.append((W.clone(), found))
        del _known[:-6]
    U, s, V = found
    root = s[:, :rank].sqrt()
    return (U[..., :rank] * root.unsqueeze(1)).mT, root.unsqueeze(-1) * V[:, :rank]


_known: list[tuple[Tensor, tuple[Tensor, Tensor, Tensor]]] = []  # the last SVDs, since methods share them


def _in_class(stack: Stack, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The generators of g^T h in a class with fixed operators: those of its displacement, twice as many."""
    if stack.name == "cauchy_like":
        s, t = stack.constants["s"].double(), stack.constants["t"].double()
        return torch.cat((s * g, g), 1), torch.cat((h, -t * h), 1)
    if stack.name == "vandermonde_like":
        moved = torch.cat((torch.zeros_like(h[..., :1]), h[..., :-1]), -1)
        return torch.cat((g, stack.constants["nodes"].double() * g), 1), torch.cat((h, -moved), 1)
    pairs = zip(g, h, strict=True)
    found = [
        convert(LowRank(*stack.shape, G=left, H=right), "toeplitz_like").tensors for left, right in pairs
    ]
    return torch.stack([one["G"] for one in found]), torch.stack([one["H"] for one in found])


def descend(stack: Stack, W: Tensor, steps: int = STEPS) -> Stack:
    """Lower |W - M|^2 from a start, each matrix by itself, on the device of W."""
    if stack.name in CLOSED or steps < 1:
        return stack
    squares = W.square().sum((1, 2))
    begin = {name: t.detach().clone().requires_grad_() for name, t in stack.learned.items()}
    rates: dict[str, Tensor | float] = {}
    for name, t in begin.items():
        size = t.detach().square().flatten(1).mean(1).sqrt() if t.ndim > 1 else t.detach().abs()
        shaped = size.view(-1, *[1] * (t.ndim - 1))
        rates[name] = OPERATOR_RATE if name in stack.operators else RATE * shaped
    adam = Adam(begin, rates, steps, clip=None)

    def losses(tensors: Mapping[str, Tensor]) -> Tensor:
        return (stack.dense(tensors) - W).square().sum((1, 2)) / squares

    Trainer(adam, losses, graphs=False).run(steps)
    with torch.no_grad():
        after, before = losses(begin), losses(stack.learned)
        better = (after < before) & after.isfinite()
        learned = {
            name: torch.where(better.view(-1, *[1] * (t.ndim - 1)), t.detach(), stack.learned[name])
            for name, t in begin.items()
        }
    return Stack(stack.name, stack.shape, learned, stack.constants)


@torch.no_grad()
def residuals(stack: Stack, W: Tensor) -> Tensor:
    """|W - M| / |W| of every matrix, (S,)."""
    return (W - stack.dense()).norm(dim=(1, 2)) / W.norm(dim=(1, 2))
