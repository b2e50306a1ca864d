"""A stage of the CNN for all replicas: convolution, ReLU and 2 x 2 max-pooling, as one CUDA kernel each way.

Libraries do a convolution with a group a replica one group after the other, and every layer of a stage
passes its images through memory. Here a block has one image of one replica in shared memory. Going forward,
a thread makes a square of four outputs for a few channels and keeps their largest. Going back, at most one
output of the four has a gradient, and which one is all that is remembered: the image's gradient is the
convolution of what is there with the filters turned round, by the same loop, and the filters' gradient is a
sum over the outputs that have one. No sum depends on the order of threads.

Elsewhere, and where an image is too large for a block, a stage is torch's operations one after the other,
which a test holds the kernels to, run as C++.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, max_pool2d, relu

from torchldr.kernels.cuda.nvrtc import launch, unavailable

_MOST_THREADS = 512
_SPLIT_THREADS = 192  # for the filters' gradient

SOURCE = (resources.files(__package__) / "stage.cu").read_text("utf-8")


def stage(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve with every replica's filters, keeping the size; ReLU; the largest of every 2 x 2 pixels.

    Args:
        x: shape (R, b, c, h, w), or (1, b, c, h, w) for images common to all replicas.
        weight: shape (R, o, c, q, q), q odd.
        bias: shape (R, o).

    Returns:
        Shape (R, b, o, h // 2, w // 2).
    """
    if _serves(x, weight, bias):
        y: Tensor = _Stage.apply(x, weight, bias)
        return y
    return plain_stage(x, weight, bias)


def _serves(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether the kernels take these tensors. What is wrong with others, the plain form says."""
    if not x.is_cuda or x.dtype not in _NAMES or unavailable() is not None:
        return False
    alike = all(t.dtype == x.dtype and t.device == x.device for t in (weight, bias))
    whole = len(x) in (1, len(weight)) and x.shape[1] > 0 and weight.shape[-1] % 2 == 1
    properties = torch.cuda.get_device_properties(x.device)
    block = getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    return alike and whole and Sizes.of(x, weight).fit(block // x.element_size(), back=x.requires_grad)


def plain_stage(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What `stage` computes, by torch's operations on the replicas' channels side by side."""
    R, half = len(weight), weight.shape[-1] // 2
    y = conv2d(
        x.transpose(0, 1).flatten(1, 2), weight.flatten(0, 1), bias.flatten(), padding=half, groups=len(x)
    )
    return max_pool2d(relu(y), 2).unflatten(1, (R, -1)).transpose(0, 1)


class Sizes(NamedTuple):
    """What the kernels are compiled for."""

    C: int
    O: int  # noqa: E741 -- as in the source
    H: int
    W: int
    Q: int

    @classmethod
    def of(cls, x: Tensor, weight: Tensor) -> Sizes:
        """Those of such images and filters."""
        _, _, c, h, w = x.shape
        return cls(c, weight.shape[1], h, w, weight.shape[-1])

    @property
    def _area(self) -> int:
        return (self.H + self.Q) * (self.W + self.Q)

    @property
    def _filters(self) -> int:
        return self.O * self.C * self.Q**2

    @property
    def splits(self) -> int:
        """Among how many threads the pixels of a filter's gradient are shared."""
        return max(1, _SPLIT_THREADS // (self.O * self.C))

    @property
    def shared(self) -> dict[str, int]:
        """Numbers in shared memory by kernel."""
        return {
            "stage_forward": self.C * self._area + self._filters,
            "stage_image": self.O * self._area + self._filters,
            "stage_filters": self.C * self._area + self.splits * (self._filters + self.O * self.C),
        }

    @property
    def threads(self) -> dict[str, int]:
        """Threads of a block by kernel."""
        H, W = self.H, self.W
        forward = self.O // _group(self.O) * (H // 2) * (W // 2)
        back = self.C // _group(self.C) * ((H + 1) // 2) * ((W + 1) // 2)
        return {
            "stage_forward": min(_MOST_THREADS, 32 * math.ceil(forward / 32)),
            "stage_image": min(_MOST_THREADS, 32 * math.ceil(back / 32)),
            "stage_filters": self.splits * self.O * self.C,
        }

    def fit(self, numbers: int, *, back: bool) -> bool:
        """Whether blocks of so many numbers in shared memory hold them; `back`: the image's gradient too."""
        most = max(count for name, count in self.shared.items() if back or name != "stage_image")
        return most <= numbers and self.O * self.C <= _MOST_THREADS and min(self.H, self.W) >= 2

    def source(self, dtype: torch.dtype) -> str:
        """The kernels of these sizes."""
        groups = {"GROUP": _group(self.O), "GROUP_BACK": _group(self.C)}
        macros = {**self._asdict(), **groups, "Real": _NAMES[dtype], "MOST_THREADS": _MOST_THREADS}
        return "".join(f"#define {name} {value}\n" for name, value in macros.items()) + SOURCE


class _Stage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        ctx.sizes = sizes = Sizes.of(x, weight)
        y = x.new_empty(len(weight), x.shape[1], sizes.O, sizes.H // 2, sizes.W // 2)
        at = torch.empty_like(y, dtype=torch.uint8)
        _launch("stage_forward", sizes, y, [x, weight, bias, y, at, int(len(x) > 1)])
        ctx.save_for_backward(x, weight, at)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, at = ctx.saved_tensors
        sizes, u, dx = ctx.sizes, u.contiguous(), None
        R, b, taps = *u.shape[:2], sizes.Q**2
        if ctx.needs_input_grad[0]:
            dx = x.new_empty(R, *x.shape[1:])
            _launch("stage_image", sizes, u, [u, at, weight, dx])
            dx = dx.sum(0, keepdim=True) if len(x) < R else dx
        each = x.new_empty(R, b, sizes.O, sizes.C, taps + 1)
        _launch("stage_filters", sizes, u, [x, u, at, each, int(len(x) > 1), sizes.splits])
        both = each.sum(1)
        return dx, both[..., :taps].reshape(weight.shape), both[:, :, 0, taps]


_NAMES = {torch.float32: "float", torch.float64: "double"}


def _group(channels: int) -> int:
    """How many channels a thread makes: they share what it reads, and it has registers for four."""
    return next(size for size in (4, 3, 2, 1) if channels % size == 0)


@cache
def _source(sizes: Sizes, dtype: torch.dtype) -> str:
    return sizes.source(dtype)


def _launch(name: str, sizes: Sizes, like: Tensor, arguments: list[Any]) -> None:
    grid = like.shape[1], like.shape[0], 1
    shared = sizes.shared[name] * like.element_size()
    launch(_source(sizes, like.dtype), name, like.device, grid, sizes.threads[name], arguments, shared)
