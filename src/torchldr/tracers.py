"""Whether torch records operations, for values that come later. What leaves torch would not be recorded."""

from __future__ import annotations

import torch

_KEYS = torch._C._TorchDispatchModeKey
_TRACERS = _KEYS.PROXY, _KEYS.FAKE, _KEYS.FUNCTIONAL
_count_of_modes, _get_mode = torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_mode
_get_tracing_state = torch._C._get_tracing_state
_early_mode = torch._ops.mode_stack_state_for_pre_dispatch().get  # 0: of proxies. One object, asked directly


def are_recorded() -> bool:
    """By torch.jit.trace, make_fx (which torch.func.linearize and exporters use) or on fake tensors."""
    if _get_tracing_state() is not None or _early_mode(0) is not None:
        return True
    return _count_of_modes() > 0 and any(_get_mode(key) is not None for key in _TRACERS)
