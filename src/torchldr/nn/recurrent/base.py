"""The common base of StructuredLSTM and StructuredGRU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from ...core.checks import check_choices, check_flags, checked_int
from ...core.owned import owned
from ...functional.recurrence import Product, State, run_steps, sequence
from ...matrices import StructuredMatrix, get_structure
from ...torch_private import has_transforms
from ..channels.stack import MatrixStack
from ..parameters import INITS, Multiplying, describe
from ..tensors import let_prune
from .inputs import Given, Sequences, give, take, take_state
from .step import RecurrentStep

WHICH = ("input", "hidden", "both")
# Arguments of torch's functions after the state: weights, biases, layers, dropout, training, bidirectional.
Settings: TypeAlias = tuple[list[Tensor], bool, int, float, bool, bool]
Run: TypeAlias = Callable[[str, Tensor, State], tuple[Tensor, State]]  # one direction of one layer
DENSE_ENTRIES = 1 << 22  # of a gate


class StructuredRecurrent(Multiplying):
    """A recurrent layer whose gates have structured matrices; the base of the LSTM and the GRU."""

    gates: ClassVar[str]  # their letters, in the order of torch
    state_names: ClassVar[tuple[str, ...]]
    torch_class: ClassVar[type[nn.RNNBase]]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        proj_size: int = 0,
        structure: str | type[StructuredMatrix] = "ldr_sd",
        rank: int | None = None,
        which: str = "input",
        init: str = "linear",
        **options: Any,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        input_size = checked_int(who, "input_size", input_size)
        hidden_size = checked_int(who, "hidden_size", hidden_size)
        num_layers = checked_int(who, "num_layers", num_layers)
        proj_size = checked_int(who, "proj_size", proj_size, 0)
        if proj_size >= hidden_size:
            raise ValueError(f"{who}: proj_size must be below hidden_size={hidden_size}, got {proj_size}.")
        check_flags(who, bias=bias, batch_first=batch_first, bidirectional=bidirectional)
        check_choices(who, which=(which, WHICH), init=(init, INITS))
        own = type(self).__init__ is not StructuredRecurrent.__init__
        _check_dropout(who, dropout, num_layers, above=2 if own else 1)
        if proj_size and self.torch_class is not nn.LSTM:
            raise ValueError(f"{who}: proj_size is for the LSTM alone, got {proj_size}.")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size, self.which, self.init = bidirectional, proj_size, which, init
        self.structure = get_structure(structure)
        self.state_size = proj_size or hidden_size  # of h; that of c is hidden_size
        directions = 2 if bidirectional else 1
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        common = {"structure": structure, "rank": rank, "options": options, "layer": type(self), **factory}
        rows = len(self.gates) * hidden_size
        for layer in range(num_layers):
            for suffix in self._suffixes(layer):
                inputs = input_size if layer == 0 else directions * self.state_size
                for side, size in (("ih", inputs), ("hh", self.state_size)):
                    name = f"weight_{side}{suffix}"
                    if which == "both" or which == {"ih": "input", "hh": "hidden"}[side]:
                        self.add_module(name, MatrixStack((len(self.gates),), size, hidden_size, **common))
                    else:
                        self.register_parameter(name, nn.Parameter(torch.empty(rows, size, **factory)))
                if bias:
                    self.register_parameter(f"bias_ih{suffix}", nn.Parameter(torch.empty(rows, **factory)))
                    self.register_parameter(f"bias_hh{suffix}", nn.Parameter(torch.empty(rows, **factory)))
                if proj_size:
                    shape = (proj_size, hidden_size)
                    self.register_parameter(f"weight_hr{suffix}", nn.Parameter(torch.empty(shape, **factory)))
        self.reset_parameters()

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"] if self.bidirectional else [f"_l{layer}"]

    def _all_suffixes(self) -> list[str]:
        return [suffix for layer in range(self.num_layers) for suffix in self._suffixes(layer)]

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all parameters anew, in place, with the variance 1 / (3 hidden_size) of torch's layers."""
        bound = self.hidden_size**-0.5
        for stack in self._stacks().values():
            gain = (stack.in_features / self.hidden_size) ** 0.5
            stack.reset_parameters(generator, init=self.init, gain=gain)
        for p in self._parameters.values():
            if p is not None:
                p.uniform_(-bound, bound, generator=generator)

    # The matrices.

    def _stacks(self) -> dict[str, MatrixStack]:
        return {name: part for name, part in self._modules.items() if isinstance(part, MatrixStack)}

    def matrices(self, layer: int = 0, *, reverse: bool = False) -> dict[str, StructuredMatrix]:
        """The structured matrices of a layer by their names (W_ii, W_if, ...), sharing its parameters."""
        suffix = f"_l{layer}" + ("_reverse" if reverse else "")
        if suffix not in self._all_suffixes():
            raise ValueError(f"{type(self).__name__}: no layer {layer} with reverse={reverse}.")
        return {
            f"W_{side}{gate}": stack.matrix()[i]
            for side in "ih"
            if (stack := self._stacks().get(f"weight_{side}h{suffix}")) is not None
            for i, gate in enumerate(self.gates)
        }

    def dense_weight(self, name: str) -> Tensor:
        """A weight as torch's layer has it, such as `weight_ih_l0`, (gates * hidden_size, size)."""
        part = getattr(self, name)
        return part.dense().flatten(0, 1) if isinstance(part, MatrixStack) else part

    # How products are done.

    def _takes_dense(self, name: str) -> bool:
        """Whether a weight becomes dense once per call, for torch's own recurrence."""
        stack = getattr(self, name)
        if not isinstance(stack, MatrixStack) or not stack.structure.structured:
            return True
        if self.product != "auto":
            return self.product == "dense"
        return stack.in_features * stack.out_features <= DENSE_ENTRIES

    def _product(self, side: str, suffix: str, *, dense: bool) -> Product:
        """Multiply vectors (b, size) by the matrices of all gates and add their bias: (b, gates * h)."""
        name = f"weight_{side}{suffix}"
        bias = getattr(self, f"bias_{side}{suffix}") if self.bias else None
        if dense:
            W = self.dense_weight(name)
            return lambda x: linear(x, W, bias)
        matrix = getattr(self, name).matrix()

        def product(x: Tensor) -> Tensor:
            y = matrix.multiply(x, product=self.product)
            y = y.movedim(0, 1).flatten(1)
            return y if bias is None else (y + bias).to(y.dtype)

        return product

    # The recurrence.

    def forward(self, input: Sequences, hx: Any = None) -> tuple[Any, Any]:
        who, some = type(self).__name__, next(self.parameters())
        input = owned(input) if isinstance(input, Tensor) else input
        given = take(who, input, self.input_size, some, batch_first=self.batch_first)
        output, state = self._run(given, self._start(given, hx))
        sequences, state = give(given, output, state, batch_first=self.batch_first)
        return sequences, state if len(state) > 1 else state[0]

    def _run(self, given: Given, state: State) -> tuple[Tensor, State]:
        dense = {name: self._takes_dense(name) for name in self._stacks()}
        if not all(dense.values()) or has_transforms():  # vmap does not support torch's function
            return self._run_steps(given, state, dense)
        if not torch.compiler.is_compiling():
            return self._run_fused(given, state)
        if given.batch_sizes is None and not self.proj_size:
            return self._run_layers(given, state, self._run_sequence(given))
        return self._run_steps(given, state, dense)

    def _run_sequence(self, given: Given) -> Run:
        """Each direction of each layer as one operator, because compilers do not support torch's function."""
        steps, cell = given.data.shape[:2], self.torch_class.__name__.lower()

        def run(suffix: str, x: Tensor, start: State) -> tuple[Tensor, State]:
            b_ih, b_hh = (
                getattr(self, f"bias_{side}{suffix}") if self.bias else None for side in ("ih", "hh")
            )
            W_ih, W_hh = (self.dense_weight(f"weight_{side}{suffix}") for side in ("ih", "hh"))
            reverse = suffix.endswith("reverse")
            y, last = sequence(
                x.unflatten(0, steps), start, (W_ih, W_hh, b_ih, b_hh), cell=cell, reverse=reverse
            )
            return y.flatten(0, 1), last

        return run

    def _start(self, given: Given, hx: Any) -> State:
        """The initial state: h for a GRU, (h, c) for an LSTM, as in torch."""
        layers = len(self._all_suffixes())
        sizes = ((layers, self.state_size), (layers, self.hidden_size))[: len(self.state_names)]
        state = (hx,) if len(sizes) == 1 and hx is not None else hx
        return take_state(type(self).__name__, given, state, sizes, self.state_names)

    def step(self) -> RecurrentStep:
        """One step of all layers as a module, for decoding and export: (x, hx) to (y, hx)."""
        return RecurrentStep(self)

    def _run_fused(self, given: Given, state: State) -> tuple[Tensor, State]:
        """All layers by torch's own function, which is faster than single steps."""
        parts = ["weight_ih", "weight_hh"] + ["bias_ih", "bias_hh"] * self.bias
        parts += ["weight_hr"] * (self.proj_size > 0)
        weights = [self.dense_weight(part + suffix) for suffix in self._all_suffixes() for part in parts]
        settings = (weights, self.bias, self.num_layers, self.dropout, self.training, self.bidirectional)
        with _quiet() if given.data.is_cuda or self.proj_size else nullcontext():
            output, *after = self._torch(given, state, settings)
        return output, tuple(after)

    def _torch(self, given: Given, state: State, settings: Settings) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _run_steps(self, given: Given, state: State, dense: Mapping[str, bool]) -> tuple[Tensor, State]:
        """All layers, step after step; `dense` says of each structured weight whether it multiplies as dense
        matrices."""

        def product(side: str, suffix: str) -> Product:
            return self._product(side, suffix, dense=dense.get(f"weight_{side}{suffix}", True))

        def run(suffix: str, x: Tensor, start: State) -> tuple[Tensor, State]:
            products = product("ih", suffix)(x)
            step = partial(self._step, hidden=product("hh", suffix), suffix=suffix)
            return run_steps(step, products, start, given.sizes(), reverse=suffix.endswith("reverse"))

        return self._run_layers(given, state, run)

    def _run_layers(self, given: Given, state: State, run: Run) -> tuple[Tensor, State]:
        """Layer after layer; `run` takes one direction of one layer from its inputs, one step's after the
        other, (all steps, features), and its first state to its outputs and last state."""
        x = given.data if given.batch_sizes is not None else given.data.flatten(0, 1)
        after: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.training and self.dropout:
                x = dropout(x, self.dropout)
            outputs = []
            for suffix in self._suffixes(layer):
                y, last = run(suffix, x, tuple(part[len(after)] for part in state))
                outputs.append(y)
                after.append(last)
            x = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        if given.batch_sizes is None:
            x = x.unflatten(0, given.data.shape[:2])
        return x, tuple(torch.stack(parts) for parts in zip(*after, strict=True))

    def _step(self, x: Tensor, state: State, hidden: Product, suffix: str) -> State:
        raise NotImplementedError

    # To and from torch.

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Weights of torch's layer, (gates * hidden_size, size), are those of stacks of the dense class."""
        for name, stack in self._stacks().items():
            W = state_dict.get(prefix + name)
            if not stack.structure.structured and isinstance(W, Tensor) and len(W) % len(self.gates) == 0:
                state_dict[f"{prefix}{name}.weight"] = W.unflatten(0, (len(self.gates), -1))
                del state_dict[prefix + name]
        super()._load_from_state_dict(state_dict, prefix, *args)

    @torch.no_grad()
    def load_dense_weights(self, weights: Mapping[str, Tensor] | nn.RNNBase) -> Self:
        """Copy the weights of torch's layer, or of its state_dict, into this one.

        A structured matrix cannot represent every weight, so the structured parts of `self` must have
        `structure="dense"`.
        """
        who = type(self).__name__
        given = dict(weights.state_dict() if isinstance(weights, nn.Module) else weights)
        places: dict[str, Tensor] = {name: p for name, p in self._parameters.items() if p is not None}
        for name, stack in self._stacks().items():
            if stack.structure.structured:
                raise TypeError(
                    f"{who}: {name} has structure {stack.structure.name!r}; only 'dense' holds any weight."
                )
            places[name] = stack.get_parameter("weight").flatten(0, 1)
        for name, place in places.items():  # all are checked before the first is changed
            if name not in given:
                raise ValueError(f"{who}: the weights lack {name}. Given: {', '.join(given)}.")
            if given[name].shape != place.shape:
                shapes = f"{tuple(place.shape)}, got {tuple(given[name].shape)}"
                raise ValueError(f"{who}: {name} must have shape {shapes}.")
        if unknown := [name for name in given if name not in places]:
            raise ValueError(f"{who}: unexpected weights {', '.join(unknown)}.")
        for name, place in places.items():
            place.copy_(given[name])
        return self

    @torch.no_grad()
    def to_torch(self) -> nn.RNNBase:
        """torch's layer with the dense weights of this one."""
        let_prune(self)
        some = next(self.parameters())
        layer = self.torch_class(**arguments_of(self), device=some.device, dtype=some.dtype)
        for name, p in layer.named_parameters():
            p.copy_(self.dense_weight(name))
        return layer.train(self.training)

    def flatten_parameters(self) -> None:
        """Do nothing. Exists for code written for torch's layers."""

    def extra_repr(self) -> str:
        parts = [str(self.input_size), str(self.hidden_size)]
        defaults = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0}
        for name, default in {**defaults, "bidirectional": False, "proj_size": 0}.items():
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)}")
        parts += [describe(next(iter(self._stacks().values()))), f"which={self.which!r}"]
        parts += [f"init={self.init!r}"] if self.init != "linear" else []
        parts += [f"product={self.product!r}"] if self.product != "auto" else []
        return ", ".join(parts)


def arguments_of(layer: StructuredRecurrent | nn.RNNBase) -> dict[str, Any]:
    """The constructor arguments of a recurrent layer: sizes, flags and dropout."""
    names = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"]
    names += ["proj_size"] * (layer.proj_size > 0)
    return {name: getattr(layer, name) for name in names}


def _check_dropout(who: str, dropout: float, num_layers: int, *, above: int) -> None:
    """`above`: how far the user's line is from the call of this."""
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise ValueError(f"{who}: dropout must be a probability between 0 and 1, got {dropout!r}.")
    if dropout > 0 and num_layers == 1:
        warnings.warn(
            f"{who}: dropout acts between layers, so dropout={dropout} has no effect with one layer.",
            stacklevel=2 + above,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warnings about the layout of weights, which users cannot change.

    cuDNN copies weights that are not contiguous, and ours are computed in every call. oneDNN leaves
    projections to torch's own loop.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single")
        warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
        yield
