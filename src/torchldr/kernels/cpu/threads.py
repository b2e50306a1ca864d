"""As many threads as torch uses, for kernels that release the GIL: torch's own, if they are available.

Threads of torch's OpenMP wait actively for some milliseconds after each of its products, and others would
share the cores with them. So where torch's library has GNU's interface of OpenMP (on Linux), its team runs
the kernels too; elsewhere, and in a forked child, which has no team, a pool does.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

WORTHWHILE = 1 << 16  # steps of an inner loop, some 50 us: starting a thread costs about as much

_Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _parallel() -> Callable[..., None] | None:
    """GOMP_parallel(body, its argument, threads, flags) of the OpenMP that torch runs on, or None."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        function: ctypes._NamedFuncPointer = library.GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = [_Body, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return function


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="torchldr")


_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True
    _pool.cache_clear()  # the child has the pool but not its threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def in_parts(count: int, work: int, call: Callable[[int, int], object]) -> None:
    """call(start, stop) for parts that make up range(count), each of them `work` steps long or so."""
    threads = torch.get_num_threads() if count > 1 else 1
    if threads > 1:
        threads = min(threads, count, 1 + count * work // WORTHWHILE)
    if threads < 2:
        call(0, count)
        return
    parts = list(pairwise(count * part // threads for part in range(threads + 1)))
    parallel = None if _forked else _parallel()
    if parallel is None:
        others = [_pool(threads - 1).submit(call, *part) for part in parts[1:]]
        call(*parts[0])
        for other in others:
            other.result()
        return
    shared, errors = iter(parts), list[BaseException]()  # a team may be smaller than requested
    parallel(_Body(lambda _: _work(shared, call, errors)), None, threads, 0)
    if errors:
        raise errors[0]


def _work(
    parts: Iterable[tuple[int, int]], call: Callable[[int, int], object], errors: list[BaseException]
) -> None:
    try:
        for part in parts:
            call(*part)
    except BaseException as error:  # C would print and forget it
        errors.append(error)


def joined(parts: dict[int, Tensor], rows: int, shape: Sequence[int], like: Tensor) -> Tensor:
    """Sums for every matrix of a stack, from those that `in_parts` made for the matrices of its parts.

    Args:
        parts: from the first row of a part to its sums, which begin with the matrix of that row.
        rows: of each matrix.
        shape: of the result: the stack, then what one matrix has.
        like: gives the dtype.

    In the order of the rows, so that sums do not depend on timing.
    """
    if len(parts) == 1:
        return next(iter(parts.values()))
    total = like.new_zeros(shape)
    for start in sorted(parts):
        first, sums = start // rows, parts[start]
        total[first : first + len(sums)] += sums
    return total
