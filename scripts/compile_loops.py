"""Compile all loops of the library into Numba's cache, as their first use would: the tests start warm.

python scripts/compile_loops.py
"""

from __future__ import annotations

import torch

import torchldr  # noqa: F401 -- families register when their modules are imported
from torchldr.kernels.cpu import compiled


def main() -> None:
    for family in compiled._families:
        for dtype in (torch.float32, torch.float64):
            family.why_not(dtype)


if __name__ == "__main__":
    main()
