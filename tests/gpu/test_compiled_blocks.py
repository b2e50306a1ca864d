"""Compiled blocks under DDP, FSDP2 and activation checkpointing, with one process of NCCL."""

import pytest
import torch

from ..compiled_blocks import WAYS, alone, check


@pytest.mark.parametrize("structure", ["ldr_sd", "toeplitz_like", "ldr_td"])
@pytest.mark.parametrize("way", WAYS)
def test_they_train_as_plain_ones(way, structure):
    torch._dynamo.reset()
    with alone("nccl"):
        check(way, structure, "cuda", "inductor")
