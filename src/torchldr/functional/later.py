"""Numbers that a GPU computes, read later."""

from __future__ import annotations

import torch
from torch import Tensor


class Later:
    """A copy of a tensor on the CPU, which waits for the tensor and for nothing that is queued after it."""

    def __init__(self, t: Tensor) -> None:
        self._event = None
        if t.is_cuda:
            empty = torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=True)
            self._copy = empty.copy_(t, non_blocking=True)
            self._event = torch.cuda.current_stream(t.device).record_event()
        else:
            self._copy = t.cpu()

    def read(self) -> Tensor:
        if self._event is not None:
            self._event.synchronize()
        return self._copy
