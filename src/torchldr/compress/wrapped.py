"""Models that torch.distributed has taken over keep their parameters: their layers cannot be replaced."""

from __future__ import annotations

import sys

from torch import nn


def check_unwrapped(who: str, model: nn.Module) -> None:
    """Raise an error for a model under DDP, or whose parameters are sharded.

    Raises:
        ValueError: which says what to do instead.
    """
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise ValueError(
                f"{who}: the model is wrapped in DistributedDataParallel, which keeps the parameters that "
                "it was given; change the model first, then wrap it."
            )
    tensors = sys.modules.get("torch.distributed.tensor")  # where nobody has imported it, nothing is sharded
    if tensors is None:
        return
    for name, p in model.named_parameters():
        if isinstance(p, tensors.DTensor):
            raise ValueError(
                f"{who}: the parameter {name!r} is sharded (a DTensor); change the model first, then call "
                "fully_shard or parallelize_module."
            )
