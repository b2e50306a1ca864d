"""As many threads as torch uses, for kernels that release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

WORTHWHILE = 1 << 16  # steps of an inner loop, some 50 us: starting a thread costs about as much


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="torchldr")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # the child has the pool but not its threads


def both(work: int, first: Callable[[], object], second: Callable[[], object]) -> None:
    """Both calls, of `work` steps each, at the same time where that pays beside the threads of torch."""
    if torch.get_num_threads() < 2 or work < 8 * WORTHWHILE:
        first()
        second()
        return
    other = _pool(1).submit(second)
    first()
    other.result()


def in_parts(count: int, work: int, call: Callable[[int, int], object]) -> None:
    """call(start, stop) for parts that make up range(count), each of them `work` steps long or so."""
    threads = torch.get_num_threads() if count > 1 else 1
    if threads > 1:
        threads = min(threads, count, 1 + count * work // WORTHWHILE)
    if threads < 2:
        call(0, count)
        return
    bounds = [count * part // threads for part in range(threads + 1)]
    others = [_pool(threads - 1).submit(call, start, stop) for start, stop in pairwise(bounds[1:])]
    call(bounds[0], bounds[1])
    for other in others:
        other.result()


def joined(parts: dict[int, Tensor], rows: int, shape: Sequence[int], like: Tensor) -> Tensor:
    """Sums for every matrix of a stack, from those that `in_parts` made for the matrices of its parts.

    Args:
        parts: from the first row of a part to its sums, which begin with the matrix of that row.
        rows: of each matrix.
        shape: of the result: the stack, then what one matrix has.
        like: gives the dtype.

    In the order of the rows, so that sums do not depend on the clock.
    """
    if len(parts) == 1:
        return next(iter(parts.values()))
    total = like.new_zeros(shape)
    for start in sorted(parts):
        first, sums = start // rows, parts[start]
        total[first : first + len(sums)] += sums
    return total
