"""The step of the language models against a plain loop of torch modules, in float64."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

import torchldr
from torchldr.compress import parameter_groups
from torchldr.functional.doubling import shifted_sum
from torchldr.functional.reference import subdiagonal_reference
from torchldr.matrices import get_structure
from torchldr_paper.data.text import Corpus
from torchldr_paper.language import LanguageFleet, LanguageProtocol, Masks, Text, recurrence
from torchldr_paper.language import decoder as decoders
from torchldr_paper.language.weights import GATES, STRUCTURES, build, initial_tensors
from torchldr_paper.protocol import Run

WORDS = 23
SMALL = LanguageProtocol(
    epochs=2, batch=3, hidden=6, embedding=6, bptt=5, evaluation_batch=2, precision="full", dtype="float64"
)
TORCH_GATES = ("i", "f", "g", "o")


def corpus(seed: int = 0, train: int = 70, valid: int = 31, test: int = 24) -> Corpus:
    numbers = np.random.default_rng(seed)
    parts = [numbers.integers(WORDS, size=size) for size in (train, valid, test)]
    return Corpus("wikitext2", *parts, words=WORDS, source="user", fingerprint=str(seed))


def runs(
    structure: str,
    ranks: tuple[int | None, ...],
    protocol: LanguageProtocol = SMALL,
    gain: float | None = None,
) -> list[Run]:
    return [Run("wikitext2", "lstm", structure, rank, protocol=protocol, gain=gain) for rank in ranks]


class Plain:
    """One replica as torch's own modules, its input matrices from the library's classes."""

    def __init__(self, fleet: LanguageFleet, index: int) -> None:
        run, protocol, n = fleet.runs[index], fleet.protocol, fleet.protocol.hidden
        self.run, self.protocol = run, protocol
        self.embedding, self.decoder = nn.Embedding(WORDS, n).double(), nn.Linear(n, WORDS).double()
        self.lstm = nn.LSTM(n, n).double()
        order = [GATES.index(gate) for gate in TORCH_GATES]

        def gates(t: Tensor) -> Tensor:
            return t[index].unflatten(0, (4, n))[order].flatten(0, 1).clone()

        with torch.no_grad():
            self.embedding.weight.copy_(fleet.embedding[index])
            self.decoder.weight.copy_(fleet.decoder[index, :WORDS, :n])
            self.decoder.bias.copy_(fleet.decoder[index, :WORDS, n])
            self.lstm.weight_hh_l0.copy_(gates(fleet.hidden))
            self.lstm.bias_ih_l0.copy_(gates(fleet.bias_input))
            self.lstm.bias_hh_l0.copy_(gates(fleet.bias_hidden))
        kind = get_structure(run.structure)
        self.structured = [
            {
                name: (t[index, gate][: run.rank] if name in "GH" else t[index, gate])
                .detach()
                .clone()
                .requires_grad_()
                for name, t in fleet.structured.items()
            }
            for gate in order
        ]
        self.kind, self.gain = kind, run.gain or 1
        learned = [
            t
            for tensors in self.structured
            for name, t in tensors.items()
            if not run.fixed or name in ("G", "H")
        ]
        left = {"weight_ih_l0", *(["bias_hh_l0"] if run.one_bias else [])}
        kept = [p for name, p in self.lstm.named_parameters() if name not in left]
        self.parameters = [*self.embedding.parameters(), *self.decoder.parameters(), *kept, *learned]
        self.optimizer = torch.optim.SGD(self.parameters, lr=protocol.lrs[0])

    def weights(self) -> Tensor:
        n, kind = self.protocol.hidden, self.kind
        return self.gain * torch.cat([kind(n, n, **tensors).to_dense() for tensors in self.structured])

    def forward(self, words: Tensor, state: object, keep_x: Tensor, keep_h: Tensor) -> tuple[Tensor, object]:
        x = self.embedding(words) * keep_x
        h, state = functional_call(self.lstm, {"weight_ih_l0": self.weights()}, (x, state))
        return self.decoder(h * keep_h), state

    def train(self, text: Text, masks: Masks) -> float:
        p, total = self.protocol, 0.0
        state = (torch.zeros(1, p.batch, p.hidden, dtype=torch.float64),) * 2
        for start in range(0, len(text.train) - 1, p.bptt):
            size = min(p.bptt, len(text.train) - 1 - start)
            kept = torch.ones(size, p.batch, 2, p.hidden, dtype=torch.float64)
            if masks.kept is not None:
                kept = masks.kept[start : start + size].double() / masks.share
            state = tuple(s.detach() for s in state)
            logits, state = self.forward(
                text.train[start : start + size], state, kept[:, :, 0], kept[:, :, 1]
            )
            targets = text.train[start + 1 : start + 1 + size]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, p.clip)
            self.optimizer.step()
            if p.bound and not self.run.fixed:
                for tensors in self.structured:
                    for name, tensor in tensors.items():
                        if name not in ("G", "H", "weight"):
                            tensor.data.clamp_(-p.bound, p.bound)
            total += float(loss.detach()) * targets.numel()
        return total / text.counts[0]

    @torch.no_grad()
    def evaluate(self, words: np.ndarray) -> float:
        p = self.protocol
        count = len(words) // p.evaluation_batch
        columns = torch.from_numpy(words[: count * p.evaluation_batch]).view(p.evaluation_batch, -1).T
        state = (torch.zeros(1, p.evaluation_batch, p.hidden, dtype=torch.float64),) * 2
        one = torch.ones((), dtype=torch.float64)
        total = 0.0
        for start in range(0, count - 1, p.bptt):
            size = min(p.bptt, count - 1 - start)
            logits, state = self.forward(columns[start : start + size], state, one, one)
            targets = columns[start + 1 : start + 1 + size]
            total += size * float(nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
        return total / (count - 1)


def epoch(fleet: LanguageFleet, number: int) -> None:
    fleet.masks.draw(number)
    for training, rows in ((True, len(fleet.text.train)), (False, len(fleet.text.scored))):
        (fleet.begin_training if training else fleet.begin_scoring)()
        for start in range(0, rows - 1, fleet.protocol.bptt):
            fleet.advance(min(fleet.protocol.bptt, rows - 1 - start), training=training)


@pytest.mark.parametrize("one_bias", [None, True])
def test_the_authors_start_with_fixed_operators(one_bias: bool | None) -> None:
    """Recurrent matrices are the identity, biases 0; fixed operators stay shifts, and one bias may stay."""
    protocol = dataclasses.replace(SMALL, clip=0.25)
    fields = {"init": "paper", "fixed": True, "one_bias": one_bias, "protocol": protocol}
    run = Run("wikitext2", "lstm", "ldr_sd", 3, **fields)  # type: ignore[arg-type]
    source = corpus()
    text = Text.of(source, protocol)
    masks = Masks(text, protocol, seed=0)
    fleet = LanguageFleet([run], text, masks)
    n = protocol.hidden
    assert torch.equal(fleet.hidden[0].unflatten(0, (4, n)), torch.eye(n).double().expand(4, n, n))
    assert not fleet.bias_input.any()
    assert not fleet.bias_hidden.any()
    plain = Plain(fleet, 0)
    masks.draw(0)
    loss = plain.train(text, masks)
    epoch(fleet, 0)
    assert fleet.scores().train == pytest.approx([loss], rel=1e-8)
    assert fleet.bias_input.any()
    assert fleet.bias_hidden.any() == (not one_bias)
    for side in "AC":
        assert (fleet.structured[f"subdiagonal_{side}"] == 1).all()
        assert not fleet.structured[f"corner_{side}"].any()


@pytest.mark.parametrize(("structure", "ranks"), [("toeplitz_like", (1, 3)), ("ldr_sd", (2,))])
def test_even_steps_are_the_rates_of_parameter_groups(structure: str, ranks: tuple[int, ...]) -> None:
    """A step from the same start, with one rate and with even ones: of other parameters it is the same."""
    text = Text.of(corpus(), SMALL)
    changes = []
    for even in (None, True):
        some = [dataclasses.replace(run, even=even) for run in runs(structure, ranks)]
        fleet = LanguageFleet(some, text, Masks(text, SMALL, seed=0))
        before = {name: t.detach().clone() for name, t in fleet.parameters().items()}
        fleet.masks.draw(0)
        fleet.begin_training()
        fleet.advance(SMALL.bptt, training=True)
        changes.append({name: t.detach() - before[name] for name, t in fleet.parameters().items()})
    for index, rank in enumerate(ranks):
        layer = torchldr.StructuredLinear(6, 6, structure=structure, rank=rank, dtype=torch.float64)
        with torch.no_grad():
            for name in fleet.structured:
                own = before[f"structured.{name}"][index, 0]
                layer.get_parameter(name).copy_(own[:rank] if name in "GH" else own)
        rates = {group["name"]: group["lr"] for group in parameter_groups(layer, 1.0, even="sgd")}
        for name, change in changes[1].items():
            factor = rates.get(name.removeprefix("structured."), 1.0)
            bound = before[name][index].abs().max() == SMALL.bound  # brought back after the step
            if not bound:
                torch.testing.assert_close(change[index], factor * changes[0][name][index])
    assert structure == "ldr_sd" or not torch.equal(changes[0]["structured.G"], changes[1]["structured.G"])


@pytest.mark.parametrize(
    ("structure", "ranks"),
    [("ldr_sd", (1, 2, 3)), ("toeplitz_like", (1, 3)), ("low_rank", (2, 1)), ("dense", (None,))],
)
@pytest.mark.parametrize(("lr", "dropout"), [(20.0, 0.2), (0.5, 0.0)])
def test_epochs_are_those_of_a_plain_loop(
    structure: str, ranks: tuple[int | None, ...], lr: float, dropout: float
) -> None:
    # At the small rate nothing is clipped in the end; at the large one every step is.
    large = lr > 1
    protocol = dataclasses.replace(
        SMALL, lrs=(lr,), dropout=dropout, clip=0.25 if large else 100.0, bound=1.0 if large else 0.0
    )
    source = corpus()
    text = Text.of(source, protocol)
    masks = Masks(text, protocol, seed=0)
    fleet = LanguageFleet(runs(structure, ranks, protocol, None if large else 0.3), text, masks)
    norms = fleet.input_weights().norm(dim=(-2, -1))  # as nn.Linear's, whatever the gain
    if structure != "dense":
        assert norms.sub((protocol.hidden / 3) ** 0.5).abs().max() <= (0.5 if structure == "ldr_sd" else 1e-5)
    if structure == "ldr_sd":
        with torch.no_grad():
            draw = torch.Generator().manual_seed(3)
            for name, tensor in fleet.structured.items():
                if name not in "GH":
                    tensor.add_(torch.empty_like(tensor).normal_(0, 0.2, generator=draw))
    plain = [Plain(fleet, index) for index in range(len(ranks))]
    for number in range(2):
        masks.draw(number)
        losses = [model.train(text, masks) for model in plain]
        epoch(fleet, number)
        scores = fleet.scores()
        assert scores.train == pytest.approx(losses, rel=1e-8)
        assert scores.validation == pytest.approx([m.evaluate(source.valid) for m in plain], rel=1e-8)
        assert scores.test == pytest.approx([m.evaluate(source.test) for m in plain], rel=1e-8)
    n = protocol.hidden
    for index, model in enumerate(plain):
        for ours, theirs in (
            (fleet.embedding[index], model.embedding.weight),
            (fleet.decoder[index, :WORDS, :n], model.decoder.weight),
            (fleet.decoder[index, :WORDS, n], model.decoder.bias),
        ):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-8, atol=1e-8)
        order = [GATES.index(gate) for gate in TORCH_GATES]
        ours = fleet.input_weights()[index, order].flatten(0, 1)
        torch.testing.assert_close(ours, model.weights().detach(), rtol=1e-8, atol=1e-8)
    # What fills the decoder up stays what it was.
    assert torch.equal(
        fleet.decoder[:, WORDS:, n], torch.full_like(fleet.decoder[:, WORDS:, n], decoders.NEVER)
    )
    assert not fleet.decoder[:, WORDS:, :n].any()
    assert not fleet.decoder[..., n + 1 :].any()


@given(n=st.integers(1, 21), r=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_doubling_gives_the_sum_of_powers(n: int, r: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    a, c = (torch.empty(n, dtype=torch.float64).normal_(generator=draw) for _ in range(2))
    a[torch.rand(n, generator=draw) < 0.2] = 0  # no division: a zero is an entry like any other
    G, H = (torch.empty(r, n, dtype=torch.float64).normal_(generator=draw) for _ in range(2))
    A, C = (subdiagonal_reference(v[1:], v[0]) for v in (a, c))
    expected, magnitude = torch.zeros(n, n, dtype=torch.float64), torch.zeros(n, n, dtype=torch.float64)
    term, size = G.mT @ H, G.mT.abs() @ H.abs()
    for _ in range(n):
        expected, magnitude = expected + term, magnitude + size
        term, size = A @ term @ C.mT, A.abs() @ size @ C.mT.abs()
    error = (shifted_sum(G.mT @ H, a, c, n) - expected).abs()
    assert (error <= 8 * (n + r) * torch.finfo(torch.float64).eps * magnitude).all()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("size", [5, 8])
def test_matrices_are_those_of_the_class(structure: str, size: int) -> None:
    kind = get_structure(structure)
    ranks = (1, 3) if kind.ranked else (None, None)
    runs = [Run("wikitext2", "lstm", structure, rank, protocol=LanguageProtocol()) for rank in ranks]
    tensors = {k: t.double() for k, t in initial_tensors(runs, size).items()}
    built = build(structure, tensors)
    for index, rank in enumerate(ranks):
        for gate in range(4):
            own = {k: t[index, gate][:rank] if k in "GH" else t[index, gate] for k, t in tensors.items()}
            dense = kind(size, size, **own).to_dense()
            torch.testing.assert_close(built[index, gate], dense)
            assert dense.norm().item() == pytest.approx(
                (size / 3) ** 0.5, rel=0.5 if structure == "dense" else 1e-5
            )


def test_decoder_in_bfloat16_is_near_the_exact_one() -> None:
    """Each of the three products rounds factors and result to 8 bits: errors of some parts in 2^8."""
    draw = torch.Generator().manual_seed(0)
    h = torch.empty(2, 40, 16).uniform_(-1, 1, generator=draw)
    weight, bias = (torch.empty(2, *s).normal_(generator=draw) for s in ((1000, 16), (1000,)))
    targets = torch.randint(1000, (40,), generator=draw)
    packed = decoders.pack(weight, bias)
    exact = decoders.loss_and_gradients(h.double(), packed.double(), targets)
    rough = decoders.loss_and_gradients(h, decoders.narrowed(packed, "bf16"), targets)
    assert rough[2].dtype == torch.bfloat16
    assert rough[0].mean().item() == pytest.approx(exact[0].mean().item(), rel=2e-3)
    for ours, theirs in zip(rough[1:], exact[1:], strict=True):
        assert (ours.double() - theirs).norm() <= 3 * 2**-8 * theirs.norm()
    assert decoders.losses(h, packed, targets).double().sub(exact[0]).abs().max() < 1e-5


def test_a_product_of_bfloat16_on_a_cpu_is_the_rounded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By way of float32: torch's own takes seconds where a CPU has no instruction for it."""
    taken, product = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: (taken.append(a.dtype), product(a, b))[1])
    a, b = (torch.randn(2, 30, 30, generator=torch.Generator().manual_seed(s)).bfloat16() for s in (0, 1))
    ours, exact = decoders._product(a, b), product(a.double(), b.double())
    assert ours.dtype == torch.bfloat16
    assert taken == [torch.float32]
    assert ((ours.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-5).all()


RECURRENCE = """
typedef Real* P;
Real shared[1 << 16];
extern "C" {
void recurrence_forward_(int x, int y, int n, P g, P c, P h, P U, int T, int B)
    { run(x, y, n, [=] { recurrence_forward(g, c, h, U, T, B); }); }
void recurrence_backward_(int x, int y, int n, P g, P c, P dh, P U, P da, int T, int B)
    { run(x, y, n, [=] { recurrence_backward(g, c, dh, U, da, T, B); }); }
}
"""
Compile = Callable[[str, str], ctypes.CDLL]


def pointers(arguments: list[Any]) -> list[Any]:
    assert all(a.is_contiguous() for a in arguments if isinstance(a, Tensor))
    return [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 4, 3, 8), (1, 3, 9, 24), (2, 1, 4, 16)])
def test_the_recurrence_as_kernels(
    compile_kernels: Compile,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
) -> None:
    R, T, B, H = shape
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype).normal_(generator=draw)

    inputs, U, h, c, dh = normal(R, T, B, 4 * H), normal(R, 4 * H, H), *normal(2, R, B, H), normal(R, T, B, H)
    plain = recurrence.forward(inputs.clone(), U, h, c)
    gradient = recurrence.backward(plain, U, dh.clone())
    library = compile_kernels(recurrence.head(dtype, H) + recurrence.SOURCE, RECURRENCE)

    def launch(name: str, gates: Tensor, tensors: list[Any]) -> None:
        getattr(library, f"{name}_")(-(-B // 4), R, 4 * H, *pointers([*tensors, T, B]))

    monkeypatch.setattr(recurrence, "serves", lambda t: True)
    monkeypatch.setattr(recurrence, "_launch", launch)
    trace = recurrence.forward(inputs.clone(), U, h, c)
    for ours, theirs in zip(trace, plain, strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(recurrence.backward(trace, U, dh.clone()), gradient)


@pytest.mark.parametrize("words", [64, 5000])
def test_a_step_of_the_decoder_in_bfloat16(words: int) -> None:
    """The gradient and the losses to bfloat16's digits, and the copy in bfloat16 as it is made anew."""
    draw = torch.Generator().manual_seed(0)
    R, N = 2, 3
    logits = torch.empty(R, N, words).normal_(std=3, generator=draw).bfloat16()
    targets = torch.randint(words, (N,), generator=draw)
    exact = logits.double().log_softmax(-1)
    index = targets.expand(R, -1).unsqueeze(-1)
    want = exact.exp().scatter_add(-1, index, torch.full((R, N, 1), -1.0, dtype=torch.float64))
    losses, d = decoders._softmax_gradient(logits.clone(), targets, torch.float32)
    assert (losses.double() + exact.gather(-1, index).squeeze(-1)).abs().max() < 2**-7
    assert ((d.double() - want).abs() <= 2**-7 * want.abs() + 1e-12).all()

    weight, scale = torch.empty(R, 64, words // 8).normal_(generator=draw), torch.tensor([0.5, -0.25])
    change = torch.empty_like(weight).normal_(generator=draw).bfloat16()
    ours, narrow = weight.clone(), torch.empty_like(change)
    decoders.update(ours, narrow, change, scale)
    torch.testing.assert_close(ours, weight + scale.view(-1, 1, 1) * change)
    assert torch.equal(narrow, ours.bfloat16())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_standard_deviation_is_that_of_what_carries_the_scale(structure: str) -> None:
    kind, size = get_structure(structure), 64
    ranks = (2, 8) if kind.ranked else (None,)
    runs = [Run("wikitext2", "lstm", structure, r, init_std=0.3, protocol=LanguageProtocol()) for r in ranks]
    tensors = initial_tensors(runs, size)
    for name in kind.scaled:
        for own, rank in zip(tensors[name], ranks, strict=True):
            assert own[:, :rank].std().item() == pytest.approx(0.3, rel=0.15)
            assert rank is None or not own[:, rank:].any()
