"""Numbers that are on their way from a device to the host."""

from __future__ import annotations

import torch
from torch import Tensor


class Later:
    """The numbers of a tensor, for a reader who does not wait: on a GPU they are copied as they come.

    Elsewhere they are here at once.
    """

    def __init__(self, numbers: Tensor) -> None:
        self._numbers, self._event = numbers, None
        if numbers.is_cuda:
            room = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            with torch.cuda.device(numbers.device):  # whose stream the copy and the event are for
                self._numbers, self._event = room.copy_(numbers, non_blocking=True), torch.cuda.Event()
                self._event.record()

    def here(self) -> bool:
        return self._event is None or self._event.query()

    def read(self) -> list[float]:
        """The numbers, which must be here."""
        return self._numbers.tolist()
