"""Classes of O(n^2) work hold no n x n matrix in inference."""

import subprocess
import sys

import pytest

CODE = """
import resource, sys, torch, torchldr
structure = sys.argv[1]
with torch.no_grad():
    for n in (128, 8192):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        layer = torchldr.StructuredLinear(n, n, structure=structure).eval()
        layer.plan = "fast"
        layer(torch.randn(1, n))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.parametrize("structure", ["ldr_td", "vandermonde_like", "cauchy_like"])
def test_inference_holds_no_square_matrix(structure):
    result = subprocess.run(
        [sys.executable, "-c", CODE, structure], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < 64  # megabytes; 8192 x 8192 floats are 256
