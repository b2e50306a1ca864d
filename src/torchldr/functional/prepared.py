"""Products whose constants are prepared: the part of a frozen layer that does not depend on the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn


class Prepared(nn.Module):
    """A product of rows, (b, n) to (b, m), with prepared constants as buffers.

    Args:
        words: what it does, in a few words.
        function: (rows, **constants, **settings) to the products, in the dtype of the rows, whatever it is.
            It must pickle: a function of a module.
        settings: other arguments of the function.
        **constants: tensors, complex ones as pairs of real numbers.

    `.to` of another device moves the constants; of another dtype it leaves them as they are, so that they
    keep their digits and complex pairs stay pairs.
    """

    def __init__(
        self, words: str, function: Callable[..., Tensor], settings: dict[str, Any], **constants: Tensor
    ) -> None:
        super().__init__()
        self.words, self.function, self.settings = words, function, settings
        for name, t in constants.items():
            self.register_buffer(name, t.detach())

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(rows, **self._buffers, **self.settings)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        for name, t in self.named_buffers():
            moved = fn(t)
            self._buffers[name] = moved if moved.dtype is t.dtype else t.to(moved.device)
        return self

    def extra_repr(self) -> str:
        return self.words
