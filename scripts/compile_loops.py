"""Compile all loops of the library into Numba's cache, as their first use would: the tests start warm.

python scripts/compile_loops.py
"""

from __future__ import annotations

import os

import torch

import torchldr  # noqa: F401 -- families register when their modules are imported
from torchldr.functional import triangular
from torchldr.functional.gko import elimination
from torchldr.kernels.cpu import compiled

COMPLEX = list(elimination.LOOPS.values())  # over the complex numbers too
# Solving and projecting are done in double precision whatever the matrix is in.
WIDE = [*COMPLEX, triangular.SUBSTITUTION]
WIDE += [family for family in compiled._families if family.name.startswith("projection")]


def compile_double() -> None:
    for family in compiled._families:
        family.why_not(torch.float64)


def compile_others() -> None:
    for family in compiled._families:
        if family not in WIDE:
            family.why_not(torch.float32)
    for family in COMPLEX:
        family.why_not(torch.complex128)


def main() -> None:
    child = os.fork()  # two processes, about as long
    if child:
        compile_double()
        os.waitpid(child, 0)
    else:
        compile_others()


if __name__ == "__main__":
    main()
