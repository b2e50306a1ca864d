"""Compiled blocks under DDP, FSDP2 and activation checkpointing; on a GPU, tests/gpu has the same by NCCL."""

import pytest
import torch
import torch.distributed as dist

from .compiled_blocks import WAYS, alone, check

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available(), reason="torch is built without distributed"),
]


@pytest.mark.parametrize("structure", ["ldr_sd", "toeplitz_like", "ldr_td"])
@pytest.mark.parametrize("way", WAYS)
def test_they_train_as_plain_ones(way, structure):
    torch._dynamo.reset()
    with alone("gloo"):
        check(way, structure, "cpu", "inductor")
