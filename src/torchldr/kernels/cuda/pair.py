"""The circulant pair of `functional.subdiagonal.pair` as kernels: products, and all their gradients.

A row of n numbers is one complex row of h = n / 2. A block's threads keep it in registers and exchange
numbers in shared memory between the passes of a transform, two times for most sizes. What is needed again
later lies in global memory: 3 complex rows a block for products, 4 for gradients and, as sums over the rows
that a block takes one after the other, 2r + 2 spectra.
"""

from __future__ import annotations

import cmath
import math
from functools import cache, lru_cache
from importlib import resources
from typing import NamedTuple

import torch
from torch import Tensor

from . import nvrtc
from .numbers import NAMES
from .numbers import SOURCE as NUMBERS

READ = torch.float32, torch.bfloat16
_SOURCE = (resources.files(__package__) / "pair.cu").read_text("utf-8")
_FEW, _MANY = 16, 32  # complex numbers of a row that a thread has
_LONG = 4096  # places, beyond which it has many; a transform takes as long as the launch of a kernel
_REGISTERS = 65536  # of a multiprocessor
_COLUMNS, _SHARES = 256, 128  # pairs of columns of a block that makes sums, and such blocks


class Constants(NamedTuple):
    """M prepared, in float32 and complex64; enter = D beside and leave = D aside."""

    beside: Tensor  # P_C, (n,)
    aside: Tensor  # P_A D^{-1}
    tables: Tensor
    right: Tensor  # (r + 1, h): spectra over h, in `order`
    left: Tensor


class Gradients(NamedTuple):
    """Of the vectors, in their dtype, and sums over all rows."""

    x: Tensor
    spectra: Tensor  # (2, r + 1, h): of left and of right
    products: Tensor | None  # (2, n): dy y and x dx


class Plan(NamedTuple):
    """How a block transforms rows of h complex numbers."""

    radices: tuple[int, ...]
    threads: int
    most: int  # numbers of a row that a thread has

    @property
    def gap(self) -> int:
        """After so many numbers in shared memory stands a gap, where the last radix would meet few banks."""
        return self.radices[-1] if self.radices[-1] % 8 == 0 else math.prod(self.radices)

    @property
    def room(self) -> int:
        h = math.prod(self.radices)
        return h + h // self.gap

    def shared(self, *, keeps: bool) -> int:
        """Bytes of a row in shared memory, with or without the tables."""
        return 8 * (self.room + keeps * self.places[-1])

    @property
    def places(self) -> list[int]:
        """Where the tables for each pass begin, and the end of all."""
        h, found = math.prod(self.radices), []
        count, at = h // self.radices[0], 3 * h // self.radices[0]
        for radix, after in zip(self.radices, (*self.radices[1:], 0), strict=True):
            found.append(at)
            at += (2 + (radix > 16)) * count
            count //= after or 1
        return [*found, at]

    @property
    def blocks(self) -> int:
        """As many as a multiprocessor runs at once: a thread takes some registers besides its numbers."""
        return max(1, _REGISTERS // ((2 * self.most + 48) * self.threads))


@cache
def plan(h: int) -> Plan:
    """
    >>> plan(8192)
    Plan(radices=(32, 16, 16), threads=256, most=32)
    """
    found = radices(h)
    threads = min(1024, -(-h // (32 * (_FEW if h <= _LONG else _MANY))) * 32)
    return Plan(found, threads, max(-(-(h // radix) // threads) * radix for radix in found))


def radices(h: int) -> tuple[int, ...]:
    """Factors of h: 3, 5, 7 and powers of two up to 32. The largest is first, a second power of two last.

    >>> radices(16384), radices(1024), radices(30)
    ((32, 32, 16), (16, 8, 8), (5, 3, 2))
    """
    odd = []
    for prime in (7, 5, 3):
        while h % prime == 0:
            odd.append(prime)
            h //= prime
    twos = h.bit_length() - 1
    count = -(-twos // (4 if twos <= 12 else 5))
    found = [*odd, *(1 << (twos // count + (i < twos % count)) for i in range(count))] or [1]
    found.insert(0, found.pop(found.index(max(found))))
    return tuple(found)


def order(h: int, device: torch.device) -> Tensor:
    """Which frequency stands where in the kernels' spectra."""
    cut = plan(h).radices
    found = torch.arange(h, device=device).view(cut[::-1]).permute(*reversed(range(len(cut))))
    return found.reshape(-1, cut[-1]).T.flatten()


def tables(h: int, device: torch.device) -> Tensor:
    """What a block keeps beside a row, complex64.

    For b < h / radix of the first pass: e^{i pi b / n} and both parts of D = 2^{b / n} and of 1 / D. Then for
    each pass the powers 1, 4 and, of a large radix, 16 of its twiddles.
    """
    first = _up_to(h // plan(h).radices[0], device) / (2 * h)
    both = first.unsqueeze(-1) + torch.tensor((0.0, 0.5), dtype=torch.float64, device=device)
    parts = [_unit(first / 2), *(torch.view_as_complex(2 ** (sign * both)) for sign in (1, -1))]
    length = 1
    for radix in plan(h).radices:
        inner = _up_to(h // (length * radix), device) * length / h
        parts += [_unit(-power * inner) for power in (1, 4, 16)[: 2 + (radix > 16)]]
        length *= radix
    return torch.cat(parts).to(torch.complex64)


def _up_to(end: int, device: torch.device) -> Tensor:
    return torch.arange(end, dtype=torch.float64, device=device)


def _unit(turns: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(turns), 2 * torch.pi * turns)


def multiply(K: Constants, x: Tensor) -> Tensor:
    """M x for rows of x, (b, n), contiguous and of a dtype that is read."""
    (b, n), ranks, device, y = x.shape, K.right.shape[0], x.device, torch.empty_like(x)
    kernels, blocks, parts = _launches(n // 2, x.dtype, ranks, b, device)
    memory = K.right.new_empty(blocks * parts * 3, n // 2)
    kernels.queue(device, [x, *K, memory, y, ranks - 1, b, parts])
    return y


def gradients(K: Constants, x: Tensor, y: Tensor | None, dy: Tensor) -> Gradients:
    """Those of sum(dy * y) for y = M x, all of one dtype that is read and contiguous.

    Products are made where y is given.
    """
    (b, n), ranks, device, dx = x.shape, K.right.shape[0], x.device, torch.empty_like(x)
    h = n // 2
    blocks = min(b, _blocks(h, device))
    memory, sums = K.right.new_empty(blocks * 4, h), K.right.new_empty(blocks, 2, ranks, h)
    kernels = _kernels(h, x.dtype, _keeps(h, device), (("gradients", (blocks, 1, 1)),))
    kernels.queue(device, [x, dy, *K, memory, sums, dx, ranks - 1, b])
    return Gradients(dx, sums.sum(0), None if y is None else _dots(dy, y, x, dx))


def _dots(*rows: Tensor) -> Tensor:
    """For a, b, c and d the sums over all rows of a b and of c d, entry by entry: (2, n)."""
    (b, n), device, size = rows[0].shape, rows[0].device, 2 * rows[0].itemsize
    rows = tuple(t.clone() if t.data_ptr() % size else t for t in rows)  # numbers are read in pairs
    sums = torch.empty(2, min(b, _SHARES), n, dtype=torch.float32, device=device)
    grid = -(-n // (2 * _COLUMNS)), sums.shape[1], 2
    made = source(n // 2, rows[0].dtype, ("dots",))
    nvrtc.launch(made, "dots", device, grid, _COLUMNS, [*rows, sums, b])
    return sums.sum(1)


@lru_cache(maxsize=1024)
def _kernels(
    h: int, dtype: torch.dtype, keeps: bool, launches: tuple[tuple[str, nvrtc.Grid], ...]
) -> nvrtc.Kernels:
    cut, made = plan(h), source(h, dtype, tuple(name for name, _ in launches), keeps)
    return nvrtc.Kernels(made, [(*launch, cut.threads) for launch in launches], cut.shared(keeps=keeps))


@lru_cache(maxsize=1024)
def _launches(
    h: int, dtype: torch.dtype, ranks: int, rows: int, device: torch.device
) -> tuple[nvrtc.Kernels, int, int]:
    """The kernels for so many rows, their blocks, and in how many parts a row's ranks are cut.

    Parts run side by side where rows leave multiprocessors idle.
    """
    together = _blocks(h, device)
    parts = max(1, min(ranks, together // rows)) if _worth_parting(h, ranks) else 1
    blocks = min(rows, together) if parts == 1 else rows
    launches = ("pair", (blocks, parts, 1)), ("join", (blocks, 1, 1))
    return _kernels(h, dtype, _keeps(h, device), launches[: min(parts, 2)]), blocks, parts


def _worth_parting(h: int, ranks: int) -> bool:
    """Whether the transforms that parts save take longer than the second kernel that they cost."""
    return ranks > 2 or h >= _LONG


def _circle(R: int, times: float) -> str:
    """e^{2 pi i times k / R} for k < R."""
    them = (cmath.exp(2j * cmath.pi * times * k / R) for k in range(R))
    return ", ".join(f"{{{z.real:.9e}f, {z.imag:.9e}f}}" for z in them)


@cache
def source(h: int, dtype: torch.dtype, names: tuple[str, ...], keeps: bool = True) -> str:
    """Of the kernels of these names, which keep the tables in shared memory or read them where they are."""
    cut = plan(h)
    first, last = cut.radices[0], cut.radices[-1]
    passes, length = [], h
    for radix, at in zip(cut.radices, cut.places, strict=False):
        passes.append((radix, length, at))
        length //= radix

    def through(passes: list[tuple[int, int, int]], back: str) -> str:
        met = []
        for (R, N, at), (S, M, _) in zip(passes, [*passes[1:], (0, 0, 0)], strict=True):
            met.append(f"pass<{R}, {N}, {at}, {back}>(v, tables);")
            if S:
                met.append(f"leave<{R}, {N}>(v, shared); take<{S}, {M}>(v, shared);")
        return " ".join(met)

    known = {
        "X": NAMES[dtype],
        "H": h,
        "FIRST": first,
        "LAST": last,
        "MOST": cut.most,
        "THREADS": cut.threads,
        "BLOCKS": cut.blocks,
        "GAP": cut.gap,
        "COLUMNS": _COLUMNS,
        "ROOM": cut.room,
        "TABLES": keeps * cut.places[-1],
        "ANALYSIS": through(passes, "false"),
        "SYNTHESIS": through(passes[::-1], "true"),
        "TILTS": _circle(first, 0.25),
        "GROWTHS": ", ".join(f"{2 ** (0.5 * k / first):.9e}f" for k in range(first)),
        **{f"MAKE_{name}": 1 for name in names},
        **{f"ROOTS{R}": _circle(R, -1) for R in (3, 5, 7, 8, 16, 32)},
    }
    head = "".join(f"#define {key} {value}\n" for key, value in known.items())
    return head + NUMBERS + _SOURCE


def fits(h: int, device: torch.device) -> bool:
    """Whether a block can exchange its rows."""
    return plan(h).shared(keeps=False) <= _shared_most(device)


def _keeps(h: int, device: torch.device) -> bool:
    """Whether the tables fit beside a row."""
    return plan(h).shared(keeps=True) <= _shared_most(device)


@cache
def _shared_most(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 << 10))


@cache
def _blocks(h: int, device: torch.device) -> int:
    """As many as the device runs at once."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count * plan(h).blocks)
