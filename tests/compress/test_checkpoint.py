"""Files of tensors, read one by one or mapped as a whole."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from torchldr.compress.checkpoint.files import TensorFiles

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def test_files_are_mapped(tmp_path):
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}
    more = {"none": torch.zeros(0, 3), "one": torch.tensor(2.0)}
    save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"})
    save_file(more, tmp_path / "b.safetensors")
    files = TensorFiles(tmp_path)
    found = files.mapped()
    assert found.keys() == files.keys() == {**tensors, **more}.keys()
    for name, wanted in {**tensors, **more}.items():
        for tensor in (found[name], files[name]):
            assert torch.equal(tensor, wanted)
            assert tensor.dtype == wanted.dtype


def test_a_dtype_that_is_not_mapped_is_named(tmp_path):
    save_file({"eight": torch.ones(4).to(torch.float8_e4m3fn)}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="eight is of dtype F8_E4M3, which is not supported"):
        TensorFiles(tmp_path).mapped()
