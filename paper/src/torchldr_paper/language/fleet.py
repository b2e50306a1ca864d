"""The language models of one class, all ranks together: parameters with a replica axis, and their step.

Replicas never mix: each has its own gradient, norm, clipping and learning rate, and a replica's numbers
are those of the model alone (a test holds them to a plain loop of torch modules). On a GPU a step is a
CUDA graph that takes the next words by a counter on the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..protocol import LanguageProtocol, Run
from ..trainer.batches import generator
from ..trainer.graphs import StepGraphs
from . import decoder, recurrence
from .text import Masks, Text
from .weights import GATES, build, even_rates, initial_tensors

SPREAD = 0.1  # the words' vectors and the decoder start uniform in +- this
_TINY = 1e-6  # beside the norm, as in torch.nn.utils.clip_grad_norm_


class Scores(NamedTuple):
    """Mean losses a word of an epoch, one entry a replica."""

    train: list[float]
    validation: list[float]
    test: list[float]


class LanguageFleet:
    """The replicas of one class.

    Args:
        runs: what to train: the same but for their ranks.
        text: the corpus, on the device to train on.
        masks: of dropout, drawn by the caller before every epoch.

    Attributes:
        structured: parameters of the input matrices, name -> (R, 4, ...), gates in the order of `GATES`.
        embedding: (R, words, n). decoder: packed, see `decoder`.
        hidden: (R, 4n, n). bias_input, bias_hidden: (R, 4n).
        rates: learning rates, (R,).
        stream: the fleet's own on a GPU, so that fleets fill each other's gaps; None on a CPU.
    """

    def __init__(self, runs: Sequence[Run], text: Text, masks: Masks) -> None:
        protocol = runs[0].protocol
        if not isinstance(protocol, LanguageProtocol):
            raise TypeError(f"LanguageFleet: expected a LanguageProtocol, got {type(protocol).__name__}.")
        self.runs, self.text, self.masks, self.protocol = tuple(runs), text, masks, protocol
        device, dtype = text.device, getattr(torch, protocol.dtype)
        R, n = len(runs), protocol.hidden
        for name, tensor in _initial(runs, protocol, text.words).items():
            setattr(self, name, tensor.to(device, dtype))
        first, drawn = runs[0], initial_tensors(runs, n)
        self._operators = [name for name in drawn if name.startswith(("subdiagonal", "corner"))]
        self._fixed = self._operators if first.fixed else []
        self.structured = {
            name: t.to(device, dtype).requires_grad_(name not in self._fixed) for name, t in drawn.items()
        }
        self._bring_back()
        factors = even_rates(runs, self.structured) if first.even else {}
        self._factors = {f"structured.{name}": f.to(device, dtype) for name, f in factors.items()}
        self._structure, self._gain = first.structure, first.gain or 1.0
        self.rates = torch.full((R,), protocol.lrs[0], dtype=dtype, device=device)
        self._losses = torch.zeros(R, dtype=torch.float64, device=device)
        self._totals = torch.zeros(R, 2, dtype=torch.float64, device=device)
        self._position = torch.zeros((), dtype=torch.int64, device=device)
        self._places = torch.arange(protocol.bptt + 1, device=device)
        self._state = torch.zeros(2, R, protocol.batch, n, dtype=dtype, device=device)
        self._read = torch.zeros(2, R, text.scored.shape[1], n, dtype=dtype, device=device)
        self._weight = torch.zeros(R, 4 * n, n, dtype=dtype, device=device)
        self._narrow = decoder.narrowed(self.decoder, protocol.precision)
        self.stream: torch.cuda.Stream | None = None
        self._patient: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream, self._patient = torch.cuda.Stream(device, priority=-1), torch.cuda.Stream(device)
        changed = [*self.parameters().values(), self._narrow, self._losses, self._position, self._state]
        scored = [self._totals, self._position, self._read]
        self._training = StepGraphs(self.step, changed, self.stream)
        self._scoring = StepGraphs(self.score_step, scored, self.stream)

    embedding: Tensor
    decoder: Tensor
    hidden: Tensor
    bias_input: Tensor
    bias_hidden: Tensor

    def parameters(self) -> dict[str, Tensor]:
        """Everything that training changes, by name."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {**plain, **{f"structured.{name}": tensor for name, tensor in self.structured.items()}}

    @torch.no_grad()
    def input_weights(self) -> Tensor:
        """The four input matrices of every replica, (R, 4, n, n), gates in the order of `GATES`."""
        return self._gain * build(self._structure, self.structured)

    # A step of training.

    @torch.no_grad()
    def step(self, size: int) -> None:
        """One step on the next `size` rows of the text. Reads no value on the host."""
        protocol, R, n = self.protocol, len(self.runs), self.protocol.hidden
        rows = self._position + self._places[: size + 1]
        block = self.text.train.index_select(0, rows)
        words, targets = block[:-1].reshape(-1), block[1:].reshape(-1)
        keep_x, keep_h = self._kept(rows[:size])
        with torch.enable_grad():
            built = (self._gain * build(self._structure, self.structured)).reshape(R, 4 * n, n)
        W = built.detach()
        vectors = self.embedding.index_select(1, words)
        x = vectors * keep_x
        trace = self._run(x, W, self._state, size)
        out = trace.h[:, 1:].flatten(1, 2) * keep_h
        count = len(words)
        with self._patiently():
            loss, dh, d_decoder = decoder.loss_and_gradients(out, self._narrow, targets)
            d_norm = torch.linalg.vector_norm(d_decoder, dim=(1, 2), dtype=out.dtype) / count
        da = recurrence.backward(trace, self.hidden, (dh * keep_h).view(R, size, -1, n)).flatten(1, 2)
        dx = torch.bmm(da, W) * keep_x
        d_bias = da.sum(1)
        gradients = {"hidden": torch.bmm(da.mT, trace.h[:, :-1].flatten(1, 2)), "bias_input": d_bias}
        if not self.runs[0].one_bias:  # else the second stays as it is
            gradients["bias_hidden"] = d_bias
        names = [name for name in self.structured if name not in self._fixed]
        found = torch.autograd.grad(built, [self.structured[name] for name in names], torch.bmm(da.mT, x))
        gradients |= {f"structured.{name}": d for name, d in zip(names, found, strict=True)}
        # A word's gradient is the sum over its occurrences: their vectors are summed by a product with the
        # matrix that says which words are equal, and a row that is written twice is written the same.
        equal = (words.unsqueeze(1) == words).to(dx.dtype)
        d_vectors = torch.matmul(equal, dx)
        squares = (dx * d_vectors).sum((1, 2)) + d_norm.square()
        for d in gradients.values():
            squares += d.flatten(1).square().sum(1)
        scale = -self.rates * (protocol.clip / (squares.sqrt() + _TINY)).clamp(max=1)
        parameters = self.parameters()
        for name, d in gradients.items():
            own = scale * self._factors[name] if name in self._factors else scale
            parameters[name].addcmul_(d, own.view(R, *[1] * (d.ndim - 1)))
        self._bring_back()
        wide = scale.view(R, 1, 1)
        with self._patiently():
            decoder.update(self.decoder, self._narrow, d_decoder, scale / count)
        self.embedding.index_copy_(1, words, torch.addcmul(vectors, d_vectors, wide))
        self._losses.add_(loss.sum(1))
        self._position.add_(size)

    def _run(self, x: Tensor, W: Tensor, state: Tensor, size: int) -> recurrence.Trace:
        """The layer on `size` rows of words' vectors, (R, N, n), from a state, which goes on in place."""
        inputs = torch.baddbmm((self.bias_input + self.bias_hidden).unsqueeze(1), x, W.mT)
        trace = recurrence.forward(inputs.view(len(W), size, -1, W.shape[1]), self.hidden, *state)
        state.copy_(torch.stack((trace.h[:, -1], trace.c[:, -1])))
        return trace

    @contextlib.contextmanager
    def _patiently(self) -> Iterator[None]:
        """Long kernels in here give way to short ones of other fleets, which would wait for them."""
        if self._patient is None:
            yield
            return
        now = torch.cuda.current_stream()
        self._patient.wait_stream(now)
        with torch.cuda.stream(self._patient):
            yield
        now.wait_stream(self._patient)

    @torch.no_grad()
    def _bring_back(self) -> None:
        """Bring the operators' entries back within the protocol's bound."""
        bound = self.protocol.bound
        for name in self._operators if bound and not self._fixed else ():
            self.structured[name].clamp_(-bound, bound)

    def _kept(self, rows: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Factors of dropout for the words' vectors and for the outputs, (N, n) each."""
        if self.masks.kept is None:
            return 1.0, 1.0
        kept = self.masks.kept.index_select(0, rows).to(self.rates.dtype) / self.masks.share
        return kept[:, :, 0].flatten(0, 1), kept[:, :, 1].flatten(0, 1)

    # A step of evaluation.

    @torch.no_grad()
    def score_step(self, size: int) -> None:
        """Add the losses of the next `size` rows of the validation and the test part."""
        R, rows = len(self.runs), self._position + self._places[: size + 1]
        block = self.text.scored.index_select(0, rows)
        weights = self.text.weights.index_select(0, rows[1:])
        words, targets = block[:-1].reshape(-1), block[1:].reshape(-1)
        trace = self._run(self.embedding.index_select(1, words), self._weight, self._read, size)
        loss = decoder.losses(trace.h[:, 1:].flatten(1, 2), self.decoder, targets)
        both = (loss.view(R, size, -1) * weights).view(R, size, 2, -1)
        self._totals.add_(both.sum((1, 3)))
        self._position.add_(size)

    # An epoch; the caller goes through several fleets in turn.

    def begin_training(self) -> None:
        for tensor in (self._position, self._losses, self._state):
            tensor.zero_()
        self._narrow.copy_(self.decoder)  # which a checkpoint may have changed

    def begin_scoring(self) -> None:
        for tensor in (self._position, self._totals, self._read):
            tensor.zero_()
        self._weight.copy_(self.input_weights().flatten(1, 2))

    def advance(self, size: int, *, training: bool) -> None:
        """A step on the next `size` rows, replayed on a GPU."""
        (self._training if training else self._scoring).replay(size)

    def scores(self) -> Scores:
        """The mean losses of what was trained and scored last; waits for the device."""
        train, validation, test = self.text.counts
        totals = (self._totals / self._totals.new_tensor((validation, test))).T.tolist()
        return Scores((self._losses / train).tolist(), totals[0], totals[1])


_PLAIN = ("embedding", "decoder", "hidden", "bias_input", "bias_hidden")


def _initial(runs: Sequence[Run], protocol: LanguageProtocol, words: int) -> dict[str, Tensor]:
    """All parameters but those of the input matrices; the same for runs of the same seed."""
    n = protocol.hidden
    parts: dict[str, list[Tensor]] = {name: [] for name in _PLAIN}
    for run in runs:
        source, bound = generator(run.seed, "language"), n**-0.5

        def uniform(*shape: int, within: float, source: torch.Generator = source) -> Tensor:
            return torch.empty(shape).uniform_(-within, within, generator=source)

        parts["embedding"].append(uniform(words, n, within=SPREAD))
        weight = uniform(words, n, within=SPREAD)
        parts["decoder"].append(decoder.pack(weight, weight.new_zeros(words)))
        if run.init == "paper":  # the authors' start: a state that is passed on
            parts["hidden"].append(torch.eye(n).repeat(len(GATES), 1))
            bound = 0.0
        else:
            parts["hidden"].append(uniform(len(GATES) * n, n, within=bound))
        parts["bias_input"].append(uniform(len(GATES) * n, within=bound))
        parts["bias_hidden"].append(uniform(len(GATES) * n, within=bound))
    return {name: torch.stack(tensors) for name, tensors in parts.items()}
