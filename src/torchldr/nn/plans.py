"""The `auto` plan: whether inference keeps the dense matrix or the constants of the fast product.

Which is faster depends on the class, the shape, the rank, the operators' regime, the batch, the dtype,
the device and the number of threads. So both are timed, once for each of these, on the machine that
asks: a few calls at the first inference of a layer, less than making its plan takes. What was found is
kept in the user's cache folder (`plans.json`), keyed by machine, torch, torchldr and threads; an
unwritable folder or a damaged file is no error, it only means timing again in the next process.

Two bounds need no clock: up to `SMALL_ENTRIES` entries the dense matrix is always taken, above
`DENSE_ENTRIES` never, for memory's sake (2^26 entries are 256 MiB in float32). The fast product must win
by `MARGIN`, so that the noise of a timing does not cost speed: `auto` is then never slower than dense.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..matrices import StructuredMatrix
from ..matrices.products import Product, run_product
from ..timing import minimum_seconds

SMALL_ENTRIES = 1 << 14  # always dense: no product of several steps beats one of 128 x 128
DENSE_ENTRIES = 1 << 26  # never dense above: 256 MiB in float32
UNMEASURED_ENTRIES = 1 << 20  # dense up to here where nothing can be timed (capture, meta device)
# How much faster the fast product must be. They are timed back to back, each with its code and constants
# in the caches; among other calls a product of many steps loses more than a single one.
MARGIN = 1.4
LARGEST_BATCH = 256  # larger ones take as long a vector
_CHUNK = 1 << 24  # numbers of one intermediate while the dense matrix is made
_SLICE = 1 << 23  # entries of the dense matrix that are timed; the rest takes its share of that


class Choice(NamedTuple):
    """Seconds a call of either product."""

    dense: float
    fast: float

    @property
    def prefers_dense(self) -> bool:
        return self.fast * MARGIN >= self.dense


_known: dict[str, dict[str, Choice]] = {}  # by machine, then by case


def batch_class(batch: int) -> int:
    """The batch size that stands for this one: the next power of two, at most `LARGEST_BATCH`.

    >>> [batch_class(b) for b in (0, 1, 8, 50, 1000)]
    [1, 1, 8, 64, 256]
    """
    return min(1 << max(batch - 1, 0).bit_length(), LARGEST_BATCH)


def prefers_dense(matrix: StructuredMatrix, batch: int = 1, product: Product | None = None) -> bool:
    """Whether inference with this matrix is faster by a dense matrix, which is small enough to keep.

    Args:
        matrix: the structured matrix, with the values that it has now.
        batch: how many vectors are multiplied at a time.
        product: what `matrix.promoted().prepare()` gave, where the caller has it.

    Returns:
        The choice, timed if its like was not timed before. Deterministic from then on.
    """
    entries = matrix.out_features * matrix.in_features
    if matrix.name == "dense" or entries > DENSE_ENTRIES:  # the class "dense" needs no copy of itself
        return False
    if entries <= SMALL_ENTRIES:
        return True
    if not _can_measure(matrix):
        return entries <= UNMEASURED_ENTRIES
    machine, case = _machine(), _case(matrix, batch_class(batch))
    choices = _choices(machine)
    if case not in choices:
        choices[case] = _measure(matrix, batch_class(batch), product)
        _save(machine)
    return choices[case].prefers_dense


@torch.no_grad()
def dense_weight(matrix: StructuredMatrix, batch: int = 1, product: Product | None = None) -> Tensor:
    """The dense matrix that inference keeps, made some columns at a time: intermediates stay small.

    Args:
        matrix: the structured matrix.
        batch: how many vectors it will multiply at a time, see `lay_out`.
        product: what `matrix.promoted().prepare()` gave, where the caller has it.

    Returns:
        Shape (out_features, in_features), in the dtype of the matrix.

    The same, with intermediates of 2 r n^2 numbers: `matrix.materialize()`.
    """
    (m, n), M = matrix.shape, matrix.promoted()
    product = product or M.prepare()
    columns = torch.empty(n, m, dtype=matrix.dtype, device=matrix.device)
    step = max(1, _CHUNK // ((m + n) * (matrix.rank or 1)))
    for j in range(0, n, step):
        unit = torch.zeros(min(step, n - j), n, dtype=M.dtype, device=M.device)
        unit.diagonal(j).fill_(1)
        columns[j : j + step] = product(unit)
    return lay_out(columns.mT, batch)


def lay_out(weight: Tensor, batch: int) -> Tensor:
    """The dense matrix as its product likes it: by rows for single vectors, as it comes for a batch."""
    return weight.contiguous() if batch == 1 else weight


def path(matrix: StructuredMatrix, batch: int = 1) -> str:
    """The way a product of this matrix and so many vectors takes with the values it has now, in two words.

    A class may say so itself by a method `path(batch)`. Needs the values: on a GPU this synchronises.
    """
    if (own := getattr(type(matrix), "path", None)) is not None:
        return str(own(matrix, batch))
    return {"low_rank": "two products", "dense": "dense"}.get(matrix.name, "fast")


def describe() -> dict[str, Any]:
    """The rule, where choices are kept, and all that were made on this machine, for `torchldr info`."""
    rows = [
        {
            "case": case,
            "dense_us": choice.dense * 1e6,
            "fast_us": choice.fast * 1e6,
            "choice": "dense" if choice.prefers_dense else "fast",
        }
        for case, choice in sorted(_choices(_machine()).items())
    ]
    return {
        "always_dense_up_to": SMALL_ENTRIES,
        "never_dense_above": DENSE_ENTRIES,
        "kept_in": _kept_in(),
        "machine": _machine(),
        "choices": rows,
    }


def forget() -> None:
    """Drop every choice, in memory and on disk: they are timed anew when next asked for."""
    _known.clear()
    with suppress(OSError):
        _file().unlink()


# Timing.


def _can_measure(matrix: StructuredMatrix) -> bool:
    if torch.compiler.is_compiling() or matrix.device.type not in ("cpu", "cuda"):
        return False
    return not (matrix.device.type == "cuda" and torch.cuda.is_current_stream_capturing())


@torch.no_grad()
def _measure(matrix: StructuredMatrix, batch: int, product: Product | None = None) -> Choice:
    (m, n), dtype, device = matrix.shape, matrix.dtype, matrix.device
    rows = max(1, min(m, _SLICE // n))
    # No random numbers: the caller's generator is not ours to move.
    x = torch.full((batch, n), 0.5, dtype=dtype, device=device)
    W = lay_out(torch.full((n, rows), 0.5, dtype=dtype, device=device).mT, batch)
    fast = partial(run_product, product or matrix.promoted().prepare(), x, dtype)
    sides = {"fast": _finished(fast, device), "dense": _finished(partial(linear, x, W), device)}
    share = {"fast": 1.0, "dense": m / rows}
    rough = {name: _once(call) * share[name] for name, call in sides.items()}
    if max(rough.values()) > 4 * min(rough.values()):  # plain enough
        return Choice(rough["dense"], rough["fast"])
    best = minimum_seconds(sides, repeats=5, seconds=0.01)
    return Choice(best["dense"] * share["dense"], best["fast"])


def _finished(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    if device.type != "cuda":
        return call

    def timed() -> None:
        call()
        torch.cuda.synchronize(device)

    return timed


def _once(call: Callable[[], object]) -> float:
    """The second call's time: the first one loads code and fills caches."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# Keeping.


def _case(matrix: StructuredMatrix, batch: int) -> str:
    device, dtype = matrix.device, str(matrix.dtype).removeprefix("torch.")
    if torch.is_autocast_enabled(device.type):
        dtype += f" under autocast to {str(torch.get_autocast_dtype(device.type)).removeprefix('torch.')}"
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    shape = f"{matrix.out_features} x {matrix.in_features}"
    rank = [f"rank {matrix.rank}"] if matrix.rank is not None else []
    options = [f"{k}={v}" for k, v in matrix.options.items() if k != "product" and v is not None]
    return ", ".join(
        [matrix.name, shape, *rank, *options, path(matrix, batch), f"batch {batch}", dtype, where]
    )


def _machine() -> str:
    """What the times depend on besides the case."""
    from .. import __version__

    parts = [platform.machine(), platform.processor(), f"{os.cpu_count()} cores"]
    parts += [f"{torch.get_num_threads()} threads", f"torch {torch.__version__}", f"torchldr {__version__}"]
    return ", ".join(part for part in parts if part)


def _file() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if chosen and Path(chosen).is_absolute():
        return Path(chosen) / "torchldr" / "plans.json"
    try:
        return Path.home() / ".cache" / "torchldr" / "plans.json"
    except RuntimeError as error:  # no HOME, and no entry in the table of users
        raise FileNotFoundError(str(error)) from error


def _kept_in() -> str | None:
    try:
        return str(_file())
    except FileNotFoundError:
        return None


def _choices(machine: str) -> dict[str, Choice]:
    """Those made on this machine, by this process and, read once, by earlier ones."""
    if machine not in _known:
        _known[machine] = _read().get(machine, {})
    return _known[machine]


def _read() -> dict[str, dict[str, Choice]]:
    """The file, as far as it is sound."""
    try:
        content = json.loads(_file().read_text())
        return {
            machine: {key: Choice(float(dense), float(fast)) for key, (dense, fast) in cases.items()}
            for machine, cases in content.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _save(machine: str) -> None:
    """Write the file anew with our choices; another process that writes at the same time may win."""
    with suppress(OSError):  # the choices of this process stand all the same
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {**_read(), machine: _known[machine]}
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".json", delete=False) as draft:
            json.dump(content, draft, indent=1)
        os.replace(draft.name, file)
