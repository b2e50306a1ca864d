"""Files of tensors."""

from __future__ import annotations

import torch
from safetensors.torch import save_file

from torchldr.compress.checkpoint.weights import read_tensors

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def test_shards_are_read(tmp_path):
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}
    more = {"none": torch.zeros(0, 3), "one": torch.tensor(2.0)}
    save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"})
    save_file(more, tmp_path / "b.safetensors")
    found = read_tensors(tmp_path)
    assert found.keys() == {**tensors, **more}.keys()
    for name, wanted in {**tensors, **more}.items():
        assert torch.equal(found[name], wanted)
        assert found[name].dtype == wanted.dtype
