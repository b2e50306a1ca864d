"""Everything of torch that has no public name, in one place: what is being traced, transformed or
recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor
from torch._library.autograd import Info, make_autograd_impl
from torch.autograd import Function, forward_ad

_KEYS = torch._C._TorchDispatchModeKey
_TRACERS = _KEYS.PROXY, _KEYS.FAKE, _KEYS.FUNCTIONAL
_count_of_modes, _get_mode = torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_mode
_get_tracing_state = torch._C._get_tracing_state
_early_mode = torch._ops.mode_stack_state_for_pre_dispatch().get  # 0: of proxies. One object, asked directly

has_transforms = torch._C._are_functorch_transforms_active
autocasts_anything = torch._C._is_any_autocast_enabled  # on any type of device


def is_exporting() -> bool:
    """Whether torch.export is at work. Under torch.compile the public function says yes up to torch 2.12."""
    return torch.compiler._is_exporting_flag


def are_recorded() -> bool:
    """By torch.jit.trace, make_fx (which torch.func.linearize and exporters use) or on fake tensors."""
    if _get_tracing_state() is not None or _early_mode(0) is not None:
        return True
    return _count_of_modes() > 0 and any(_get_mode(key) is not None for key in _TRACERS)


def has_modes() -> bool:
    """Whether some mode sees every operation: a tracer, fake tensors, a counter."""
    return _count_of_modes() > 0 or _get_tracing_state() is not None or _early_mode(0) is not None


def is_captured(device: str) -> bool:
    """Whether a CUDA graph is captured now, on this type of device."""
    return device == "cuda" and torch.cuda.is_current_stream_capturing()


def in_forward_mode() -> bool:
    """Whether forward-mode differentiation is at work."""
    return forward_ad._current_level >= 0


def forward_mode(enabled: bool) -> AbstractContextManager[Any]:
    """Forward-mode differentiation on or off: inside of a rule it is off, and forgets outer levels."""
    return forward_ad._set_fwd_grad_enabled(enabled)


def has_memory(t: Tensor) -> bool:
    """Whether a tensor is its memory: those of vmap and other transformations have none, duals a tangent."""
    if type(t).__torch_dispatch__ is not Tensor.__torch_dispatch__:  # a class that multiplies in its own way
        return False
    try:
        t.data_ptr()
    except RuntimeError:
        return False
    return not in_forward_mode() or forward_ad.unpack_dual(t).tangent is None


_PLAIN = frozenset((Tensor, torch.nn.Parameter))


def are_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors are plain: DTensors, nested and fake ones take operations in their own way."""
    return _PLAIN.issuperset(map(type, tensors)) or all(map(_is_plain, tensors))


def _is_plain(t: Tensor) -> bool:
    cls = type(t)
    return cls in _PLAIN or (
        issubclass(cls, torch.nn.Parameter)
        and cls.__torch_function__ is torch.nn.Parameter.__torch_function__
        and cls.__torch_dispatch__ is Tensor.__torch_dispatch__
    )


def apply_alone(function: Any, *inputs: Any) -> Any:
    """`function.apply` where no transformation is at work.

    torch's own binds the inputs to a signature, for transformations of torch.func, which takes as long as to
    launch a few kernels.
    """
    return super(Function, function).apply(*inputs)


def register_autograd(name: str, backward: Callable[..., Any], setup: Callable[..., None]) -> None:
    """torch.library.register_autograd, whose classes the first call makes: they take 5 ms an operator."""
    namespace, _, short = name.partition("::")
    made: list[Any] = []

    def autograd(keyset: Any, *arguments: Any, **options: Any) -> Any:
        if not made:
            operator = getattr(getattr(torch.ops, namespace), short).default
            made.append(make_autograd_impl(operator, Info(backward, setup)))
        return made[0](keyset, *arguments, **options)

    library = torch.library.Library(namespace, "FRAGMENT")
    library.impl(short, autograd, "Autograd", with_keyset=True)
    _LIBRARIES.append(library)


_LIBRARIES: list[torch.library.Library] = []  # what is registered lives as long as they do

_AUTOCAST = reduce(
    or_,
    (
        torch._C.DispatchKeySet(key)
        for name, key in torch._C.DispatchKey.__members__.items()
        if name.startswith("Autocast")
    ),
)


def as_eager() -> AbstractContextManager[None]:
    """Run an operator's code with vmap, lazy conjugation and autograd as anywhere else.

    torch 2.13 excludes them in the first call of a compiled function: vmap then fails, and conjugation is
    forgotten. Autocast, which torch switches off in the same way, stays as it is.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:  # those of a transformation around this
        return nullcontext()
    included, excluded = (
        torch._C._dispatch_tls_local_include_set(),
        torch._C._dispatch_tls_local_exclude_set(),
    )
    return torch._C._ForceDispatchKeyGuard(included, excluded & _AUTOCAST)


def cuda_device() -> int:
    """The current CUDA device; CUDA is initialised."""
    return torch._C._cuda_getDevice()


def cuda_stream(index: int) -> int:
    """The handle of the current stream of a device."""
    return torch._C._cuda_getCurrentRawStream(index)
