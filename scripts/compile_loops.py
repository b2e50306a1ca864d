"""Compile all loops of the library into Numba's cache, as their first use would: the tests start warm.

python scripts/compile_loops.py
"""

from __future__ import annotations

import os

import torch

import torchldr  # noqa: F401 -- families register when their modules are imported
from torchldr.kernels.cpu import compiled


def compile_all(dtype: torch.dtype) -> None:
    for family in compiled._families:
        family.why_not(dtype)


def main() -> None:
    child = os.fork()  # one process for each dtype
    compile_all(torch.float64 if child else torch.float32)
    if child:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
