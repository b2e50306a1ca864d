"""Compiled blocks in CUDA graphs, and by one process of NCCL under DDP, FSDP2 and checkpointing."""

import pytest
import torch

from ..compiled_blocks import WAYS, Blocks, alone, check, trained


@pytest.mark.parametrize("structure", ["ldr_sd", "toeplitz_like", "ldr_td"])
@pytest.mark.parametrize("way", WAYS)
def test_they_train_as_plain_ones(way, structure):
    torch._dynamo.reset()
    with alone("nccl"):
        check(way, structure, "cuda", "inductor")


@pytest.mark.parametrize("structure", ["ldr_sd", "toeplitz_like", "ldr_td"])
def test_they_train_in_cuda_graphs(structure):
    torch._dynamo.reset()
    x = torch.randn(8, 64, device="cuda")
    plain, model = (Blocks(64, structure, recomputed=False).cuda() for _ in range(2))
    want = trained(plain, x)
    model.compile(mode="reduce-overhead")
    for name, t in trained(model, x).items():
        torch.testing.assert_close(t, want[name], rtol=2e-4, atol=2e-5, msg=name)
